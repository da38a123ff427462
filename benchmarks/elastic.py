"""Measures how long it takes to go on with fewer devices, and whether it changes the results.

    python -m benchmarks.elastic [--quick] [--json FILE]

Runs the quickstart's trainer on eight simulated devices, in turns:

* A restart on the same rung after a kill; then a restart on the next smaller rung after a device is
  lost, which includes a probe of the devices. Three settings: no standby and a prefetched compile
  for the smaller rung; no standby and no prefetch (smaller rung only); the default standby, which
  is prepared for the same rung, and prefetch. Seconds from the trainer's death to the next
  completed step, as supervise reports them; and from the loss of the device, as the benchmark sees
  it.
* Steps per second while a compile is prefetched, against a run without prefetch in the same period.
* Four workers, one of which is killed: seconds until no process of the group is left, and until the
  next group completes a step.
* A storm: devices are lost and returned at random times in the bitwise mode. Compares the
  parameters at the end with an undisturbed run, bit by bit.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks import losses
from benchmarks.report import Report, options
from benchmarks.training import Contestant, Training, training
from supervisor.protocol import simulated

_DEVICES = {"devices": {"platform": "cpu", "count": 8}}
_LADDER = {"ladder": [8, 4, 2], "min_num_devices": 2}
_SMALLER = 4
_OFF = {**_LADDER, "standby": "off"}
ELASTIC = Contestant("elastic", autorestart=_OFF, init=_DEVICES)
WARM = Contestant("warm", autorestart=_LADDER, init=_DEVICES)
COLD = Contestant("cold", autorestart={**_OFF, "prefetch": False}, init=_DEVICES)
GROUP = Contestant("group", autorestart=_LADDER, init={**_DEVICES, "workers": 4})
_TAKES = 600.0
"""Longest wait in seconds for preparations, which use only the CPU time that training leaves."""


def main() -> None:
    """Measure in turns and report."""
    given = options(__doc__)
    rounds, changes = (1, 4) if given.quick else (10, 50)
    report = Report("elastic")
    found: dict[str, list[float]] = {
        "same_rung": [],
        "smaller": [],
        "smaller_cold": [],
        "same_rung_standby": [],
        "smaller_standby": [],
        "lost_device": [],
        "prefetch": [],
        "group_down": [],
        "group_next_step": [],
    }
    rates: dict[str, list[float]] = {
        "alone": [],
        "while_prefetching": [],
    }
    for _ in range(rounds):
        window = _measure_restarts(found, rates)
        _measure_with_standby(found)
        _measure_cold(found, rates, window)
        _measure_group(found)
    for name, values in found.items():
        report.spread(name, "s", values)
    for name, values in rates.items():
        report.spread(name, "steps_per_s", values)
    report.ratio("smaller_over_same_rung", "smaller_s", "same_rung_s")
    report.ratio("smaller_over_same_rung_standby", "smaller_standby_s", "same_rung_standby_s")
    report.ratio("prefetched_over_cold", "smaller_s", "smaller_cold_s")
    pairs = {name: dict(enumerate(values)) for name, values in rates.items()}
    report.paired("while_prefetching_over_alone", pairs["while_prefetching"], pairs["alone"])
    storm = losses.storm(changes)
    report.figure("storm_changes", storm.changes)
    report.figure("storm_rung_changes", storm.rung_changes)
    report.figure("storm_explained", storm.explained)
    report.figure("storm_bit_identical", storm.bit_identical)
    report.finish(given.json)


def _measure_restarts(
    found: dict[str, list[float]], rates: dict[str, list[float]]
) -> tuple[float, float]:
    """Measure restarts on the same rung, and on a smaller one with prefetch. Returns when the
    prefetch began and ended, in seconds since the first step."""
    with _run(ELASTIC) as run:
        began, ended = _wait_for_prefetch(run)
        found["prefetch"].append(ended - began)
        rates["while_prefetching"].append(_rate(run, began, ended))
        _wait_until_ready(run, 0)
        found["same_rung"].append(_restart_after_kill(run, 1))
        _wait_40_steps(run)
        found["smaller"].append(_restart_after_loss(run, 2)[1])
        first = run.steps()[0].at
        return began - first, ended - first


def _measure_with_standby(found: dict[str, list[float]]) -> None:
    """Measure the same restarts with a standby."""
    with _run(WARM) as run:
        run.wait_for_event("prefetch-done", timeout=_TAKES, num_devices=_SMALLER)
        _wait_until_ready(run, 1)
        found["same_rung_standby"].append(_restart_after_kill(run, 1))
        _wait_until_ready(run, 2)
        lost, smaller = _restart_after_loss(run, 2)
        found["lost_device"].append(lost)
        found["smaller_standby"].append(smaller)


def _measure_cold(
    found: dict[str, list[float]], rates: dict[str, list[float]], window: tuple[float, float]
) -> None:
    """Measure a restart on a smaller rung without prefetch. Before that, measure the steps per
    second in `window`, while nothing is prefetched."""
    with _run(COLD) as run:
        first = run.steps()[0].at
        began, ended = first + window[0], first + window[1]
        run.wait_for("some steps", lambda: time.monotonic() > ended, _TAKES)
        rates["alone"].append(_rate(run, began, ended))
        _wait_until_ready(run, 0)
        found["smaller_cold"].append(_restart_after_loss(run, 1)[1])


def _wait_40_steps(run: Training) -> None:
    """Wait 40 steps, until the job runs normally and a probe process is ready again."""
    run.wait_for_step(run.steps()[-1].number + 40)


def _wait_for_prefetch(run: Training) -> tuple[float, float]:
    """Wait for the prefetch for the smaller rung; returns when it began and ended."""
    run.wait_for_event("prefetch-began", timeout=_TAKES, num_devices=_SMALLER)
    began = time.monotonic()
    run.wait_for_event("prefetch-done", timeout=_TAKES, num_devices=_SMALLER)
    ended = time.monotonic()
    return began, ended


def _rate(run: Training, since: float, until: float) -> float:
    steps = [step for step in run.steps() if since <= step.at <= until]
    return (steps[-1].number - steps[0].number) / (steps[-1].at - steps[0].at)


def _restart_after_kill(run: Training, restarts: int) -> float:
    run.kill_trainer()
    return float(_recovery(run, restarts)["seconds"])


def _restart_after_loss(run: Training, restarts: int) -> tuple[float, float]:
    """Take a device away; returns the seconds from the loss, and from the trainer's death, to the
    next step."""
    began, last = time.monotonic(), run.steps()[-1]
    simulated.mark_lost(run.folder / "run" / simulated.FILE, "6")
    step = run.wait_for_step(0, since=began, not_by=[last.pid])
    return step.at - began, float(_recovery(run, restarts)["seconds"])


def _recovery(run: Training, restarts: int) -> dict[str, Any]:
    run.wait_for("what supervise reports", lambda: len(run.recoveries()) == restarts, _TAKES)
    return run.recoveries()[-1]


def _measure_group(found: dict[str, list[float]]) -> None:
    """Kill one of four workers, and measure how long the group takes to end and to restart."""
    with _run(GROUP) as run:
        _wait_until_ready(run, 4)
        pids = run.events("workers-started")[-1]["pids"]
        victim = next(pid for pid in pids if pid != run.steps()[-1].pid)
        began = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        while any(_lives(pid) for pid in pids):
            time.sleep(0.001)
        found["group_down"].append(time.monotonic() - began)
        step = run.wait_for_step(0, since=began, not_by=pids)
        found["group_next_step"].append(step.at - began)


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def _run(contestant: Contestant) -> Iterator[Training]:
    with (
        tempfile.TemporaryDirectory() as name,
        training(contestant, Path(name), every=20, max_steps=1_000_000) as run,
    ):
        run.wait_for_step(1)
        yield run


def _wait_until_ready(run: Training, standbys: int) -> None:
    """Wait until a checkpoint is committed and `standbys` standbys have been ready so far."""
    run.wait_for_event("standby-ready", standbys, _TAKES)
    run.wait_for_event("checkpoint-committed", timeout=_TAKES)


if __name__ == "__main__":
    main()
