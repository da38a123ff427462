"""Measures what supervision costs a training while nothing happens.

    python -m benchmarks.overhead [--quick] [--json FILE]

Runs the quickstart's trainer bare and supervised, in turns, and measures its steps per second. For
all processes that supervise adds (supervisor, guard, and those that wait or prepare), measures
their share of one core and their memory (PSS) in the same period. Three settings:

* `defaults`: only the required config keys. Measured twice: from the first steps on, while a
  standby is prepared and other rungs are compiled (`defaults_at_start`), and after that.
* `supervised`: without standby and prefetch, so only supervisor and guard.
* `supervised_each_step`: the same, but the trainer prints each step, and the supervisor reads it.

supervise writes JSON here, which costs it more than the text that it writes by default. Last,
measures a progress call that is not sent, of our trainer's reporter and of `supervise_worker`.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.contest import FailedError
from benchmarks.peers import Peer
from benchmarks.report import Report, options
from benchmarks.training import DEFAULTS, Contestant, Step, Training, training
from supervisor.protocol.environment import PROGRESS_FD, PROGRESS_PIPE, file_identity
from supervisor.protocol.reporter import Reporter
from supervisor.protocol.worker_path import supervise_worker

BARE = Contestant("bare", Peer("bare", (), lambda bin_, argv, folder: list(argv)))
_QUIET = {"standby": "off", "prefetch": False}
SUPERVISED = Contestant("supervised", autorestart=_QUIET)
PRINTS_EACH_STEP = Contestant("supervised_each_step", autorestart=_QUIET)
_AT_START = "defaults_at_start"
_LOG_EVERY = 10

_WARM = 20
"""Steps before the measurement begins."""
_CALLS = 100_000
_EACH_STEP_ROUNDS = 3
"""Rounds in which `supervised_each_step` is measured."""
_DEFAULTS_ROUNDS = 6
"""Rounds in which `defaults` is measured, whose preparations take minutes."""
_PREPARING_TAKES = 900.0
"""Longest wait in seconds for preparations, which use only the CPU time that training leaves."""
_LAST_PREPARED = 1
"""Number of devices of the rung that is compiled last."""


@dataclass
class Measurements:
    """The measurements of one setting, one value for each window."""

    rates: dict[int, float] = field(default_factory=dict)
    """Steps per second, by number of the round."""
    shares: list[float] = field(default_factory=list)
    """Percent of one core."""
    memory: list[float] = field(default_factory=list)
    """MB of PSS."""


def main() -> None:
    """Measure in turns and report."""
    given = options(__doc__)
    rounds, seconds = (1, 20.0) if given.quick else (16, 10.0)
    report = Report("overhead")
    found = {c.name: Measurements() for c in (BARE, SUPERVISED, PRINTS_EACH_STEP, DEFAULTS)}
    found[_AT_START] = Measurements()
    for turn in range(rounds):
        for contestant in _contestants(turn):
            try:
                with _trained(contestant) as run:
                    if contestant is DEFAULTS:
                        _measure(run, turn, seconds, found[_AT_START])
                        if given.quick:
                            raise FailedError("to prepare all takes too long for a quick run")
                        _prepared(run)
                    _measure(run, turn, seconds, found[contestant.name])
            except FailedError as error:
                report.left_out[f"{contestant.name}_{turn}"] = str(error)
    conclude(report, found)
    repeats = range(3 if given.quick else 9)
    report.spread("unsent_progress_call", "us", [_unsent() for _ in repeats])
    report.spread("unsent_step_by_module", "us", [_unsent_by_module() for _ in repeats])
    report.finish(given.json)


def _contestants(turn: int) -> Sequence[Contestant]:
    """Returns the settings to measure in the round `turn`, in another order in every second one."""
    all_of_it = [BARE, SUPERVISED]
    if turn < _DEFAULTS_ROUNDS:
        all_of_it.append(DEFAULTS)
    if turn < _EACH_STEP_ROUNDS:
        all_of_it.append(PRINTS_EACH_STEP)
    return all_of_it if turn % 2 else all_of_it[::-1]


def conclude(report: Report, found: Mapping[str, Measurements]) -> None:
    """Add the figures of all settings to `report`; steps per second also as a ratio to the bare run
    of the same round."""
    bare = found[BARE.name].rates
    for name, one in found.items():
        report.spread(name, "steps_per_s", list(one.rates.values()))
        if name != BARE.name:
            report.spread(name, "cpu_percent", one.shares)
            report.spread(name, "pss_mb", one.memory)
            report.paired(f"{name}_over_bare", one.rates, bare)


@contextmanager
def _trained(contestant: Contestant) -> Iterator[Training]:
    log_every = 1 if contestant is PRINTS_EACH_STEP else _LOG_EVERY
    with (
        tempfile.TemporaryDirectory() as name,
        training(
            contestant, Path(name), every=1000, max_steps=1_000_000, log_every=log_every
        ) as run,
    ):
        run.wait_for_step(_WARM)
        yield run


def _prepared(run: Training) -> None:
    """Wait until all rungs are compiled and a standby is ready."""
    run.wait_for_event("prefetch-done", timeout=_PREPARING_TAKES, num_devices=_LAST_PREPARED)
    run.wait_for_event("standby-ready", timeout=_PREPARING_TAKES)


def _measure(run: Training, turn: int, seconds: float, into: Measurements) -> None:
    """Measure one window of the round `turn`, which takes `seconds`."""
    began, before = time.monotonic(), _processor_time(_ours(run))
    time.sleep(seconds)
    ended, ours = time.monotonic(), _ours(run)
    into.rates[turn] = _rate(run.steps(), began)
    if ours:
        into.shares.append(100 * (_processor_time(ours) - before) / (ended - began))
        into.memory.append(sum(map(_pss, ours)) / 1e6)


def _ours(run: Training) -> list[psutil.Process]:
    """Returns all processes of the run except the trainers; empty for a bare run."""
    trains = {step.pid for step in run.steps()}
    if run.pid in trains:
        return []
    top = psutil.Process(run.pid)
    return [top, *(each for each in top.children(recursive=True) if each.pid not in trains)]


def _processor_time(processes: Sequence[psutil.Process]) -> float:
    """Returns the CPU seconds of all threads and of the children that have ended.

    For living threads it reads nanoseconds from /proc, because `cpu_times` counts hundredths of a
    second.
    """
    spent = 0.0
    for each in processes:
        with suppress(psutil.NoSuchProcess, OSError):  # it has just ended; its parent counts it
            threads = list(Path(f"/proc/{each.pid}/task").iterdir())
            spent += (
                sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9
            )
            times = each.cpu_times()
            spent += times.children_user + times.children_system
    return spent


def _pss(process: psutil.Process) -> float:
    with suppress(psutil.NoSuchProcess):
        return float(process.memory_full_info().pss)
    return 0.0


def _rate(steps: Sequence[Step], since: float) -> float:
    """Returns the steps per second since the time `since`.

    Raises:
        FailedError: there are fewer than two steps.
    """
    counted = [step for step in steps if step.at >= since]
    if len(counted) < 2:
        raise FailedError("it hardly makes a step")
    return (counted[-1].number - counted[0].number) / (counted[-1].at - counted[0].at)


def _unsent() -> float:
    """Returns the microseconds of a progress call that is not sent, because it comes too soon after
    the last one."""
    with _progress_pipe() as (read_end, write_end):
        reporter = Reporter(write_end, step_interval=3600.0)
        metrics = {"loss": 1.0, "learning_rate": 0.1}
        reporter.step(0, metrics)
        began = time.perf_counter()
        for step in range(_CALLS):
            reporter.step(step, metrics)
        taken = time.perf_counter() - began
        assert _lines_in(read_end) == 1, "what was to be timed was sent"
    return 1e6 * taken / _CALLS


def _unsent_by_module() -> float:
    """Returns the microseconds of a `supervise_worker.step` that is not sent."""
    with _progress_pipe() as (read_end, write_end):
        supervise_worker.STEP_INTERVAL = 3600.0
        supervise_worker.connect(
            {PROGRESS_FD: str(write_end), PROGRESS_PIPE: file_identity(write_end)}
        )
        supervise_worker.step(0, loss=1.0)
        began = time.perf_counter()
        for step in range(_CALLS):
            supervise_worker.step(step, loss=1.0)
        taken = time.perf_counter() - began
        assert _lines_in(read_end) == 2, "a stage and one step: what was to be timed was sent"
        supervise_worker.connect({})
    return 1e6 * taken / _CALLS


@contextmanager
def _progress_pipe() -> Iterator[tuple[int, int]]:
    read_end, write_end = os.pipe()
    try:
        yield read_end, write_end
    finally:
        os.close(read_end)
        os.close(write_end)


def _lines_in(read_end: int) -> int:
    return os.read(read_end, 1 << 16).count(b"\n")


if __name__ == "__main__":
    main()
