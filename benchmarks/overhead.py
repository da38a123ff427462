"""What it costs a training to be supervised while nothing happens.

    python -m benchmarks.overhead [--quick] [--json FILE]

Steps per second of the quickstart's trainer, bare and supervised in turns (without what is prepared
in the background, which costs nothing once it waits); over the same time the share of one core that
supervisor and guard take, and the memory that is theirs (PSS). Once with every tenth step printed,
as the quickstart has it, and once with each of them: the supervisor reads all that is printed. Then
the cost of a progress call that is not sent.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from benchmarks.contest import FailedError
from benchmarks.peers import Peer
from benchmarks.report import Report, options
from benchmarks.training import Contestant, Step, Training, training
from supervisor.host import guard
from supervisor.protocol.reporter import Reporter

BARE = Contestant("bare", Peer("bare", (), lambda bin_, argv, folder: list(argv)))
_QUIET = {"standby": "off", "prefetch": False}
SUPERVISED = Contestant("supervised", autorestart=_QUIET)
TALKATIVE = Contestant("supervised_each_step", autorestart=_QUIET)
_LOG_EVERY = 10

_WARM = 20
"""Steps before the measurement."""
_CALLS = 100_000
_TALKATIVE_ROUNDS = 3


def main() -> None:
    """Measure in turns, and report."""
    given = options(__doc__)
    rounds, seconds = (1, 5.0) if given.quick else (16, 10.0)
    report = Report("overhead")
    rates: dict[str, list[float]] = {BARE.name: [], SUPERVISED.name: []}
    shares: dict[str, list[float]] = {SUPERVISED.name: [], TALKATIVE.name: []}
    memory: list[float] = []
    for turn in range(rounds):
        pair = (BARE, SUPERVISED) if turn % 2 else (SUPERVISED, BARE)
        for contestant in (*pair, TALKATIVE) if turn < _TALKATIVE_ROUNDS else pair:
            log_every = 1 if contestant is TALKATIVE else _LOG_EVERY
            with (
                tempfile.TemporaryDirectory() as name,
                training(
                    contestant, Path(name), every=1000, max_steps=1_000_000, log_every=log_every
                ) as run,
            ):
                run.wait_for_step(_WARM)
                began = time.monotonic()
                ours = _ours(run) if contestant is not BARE else []
                before = _processor_time(ours)
                time.sleep(seconds)
                if ours:
                    spent = _processor_time(ours) - before
                    shares[contestant.name].append(100 * spent / (time.monotonic() - began))
                    memory.append(sum(process.memory_full_info().pss for process in ours) / 1e6)
                if contestant.name in rates:
                    rates[contestant.name].append(_rate(run.steps(), began))
    for name, values in rates.items():
        report.spread(name, "steps_per_s", values)
    report.ratio("steps_ratio", "supervised_steps_per_s", "bare_steps_per_s")
    report.spread("supervisor_cpu", "percent", shares[SUPERVISED.name])
    report.spread("supervisor_cpu_each_step", "percent", shares[TALKATIVE.name])
    report.spread("supervisor_pss", "mb", memory)
    report.spread("unsent_progress_call", "us", [_unsent() for _ in range(3 if given.quick else 9)])
    report.finish(given.json)


def _ours(run: Training) -> list[psutil.Process]:
    """Supervisor, guard and watcher."""
    supervisor = psutil.Process(run.pid)
    below = supervisor.children(recursive=True)  # the guard, and its watcher
    guards = [child for child in below if guard.__file__ in child.cmdline()]
    if not guards:
        raise FailedError("the supervisor has no guard")
    return [supervisor, *guards]


def _processor_time(processes: Sequence[psutil.Process]) -> float:
    """Seconds, of all threads: to the nanosecond, where `cpu_times` counts hundredths."""
    threads = (path for each in processes for path in Path(f"/proc/{each.pid}/task").iterdir())
    return sum(int((path / "schedstat").read_text().split()[0]) for path in threads) / 1e9


def _rate(steps: Sequence[Step], since: float) -> float:
    """Steps per second."""
    counted = [step for step in steps if step.at >= since]
    if len(counted) < 2:
        raise FailedError("it hardly makes a step")
    return (counted[-1].number - counted[0].number) / (counted[-1].at - counted[0].at)


def _unsent() -> float:
    """Microseconds of a progress call that comes too soon after the one before to be sent."""
    read_end, write_end = os.pipe()
    reporter = Reporter(write_end, step_interval=3600.0)
    metrics = {"loss": 1.0, "learning_rate": 0.1}
    reporter.step(0, metrics)
    began = time.perf_counter()
    for step in range(_CALLS):
        reporter.step(step, metrics)
    taken = time.perf_counter() - began
    sent = os.read(read_end, 1 << 16).count(b"\n")
    assert sent == 1, "what was to be timed was sent"
    os.close(read_end)
    os.close(write_end)
    return 1e6 * taken / _CALLS


if __name__ == "__main__":
    main()
