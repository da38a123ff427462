"""Measures the decision core with the events of 10,000 hosts, and what it writes to the journal.

    python -m benchmarks.core_scale [--quick] [--json FILE]

A job on as many machines of a cluster, one worker each, loses half of them at once; the workers of
the other half are killed. Their ends come in random order, in a few observations. A probe answers
which hosts are left, the job goes on with them, and a probe finds half of them bad. There are no
processes: the events are made here. `most_step_*` is the longest single decision;
`journal_bytes_per_host_*` is the size of the records of an attempt, divided by the hosts of the
full rung.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from ipaddress import IPv4Address
from itertools import count

from benchmarks.report import Report, options
from supervisor.core.decisions import KillWorkers, ProbeDevices
from supervisor.core.events import (
    BadUnit,
    DeadlineReached,
    DevicesProbed,
    Event,
    PhaseBegun,
    SupervisorStarted,
    WorkersGone,
    WorkersObserved,
    WorkersStarted,
)
from supervisor.core.machine import step
from supervisor.core.policy import PhasePolicy, RestartPolicy
from supervisor.core.state import JobState
from supervisor.diagnosis.failure import Failure, Verdict, WorkerExit
from supervisor.diagnosis.success import Success
from supervisor.history.encoding import encode
from supervisor.history.record import Turn, line_of_turn

_WALL = datetime(2026, 1, 1, tzinfo=UTC)
_LOST = Failure("host lost", Verdict.RESTART, "lost", "a host is gone", "none", "", 0, "SIGKILL")
_LOST_HOST = replace(_LOST, hardware=True, machine=True)
_CHIPS = 4
_OBSERVATIONS = 5
"""How many observations of growing numbers of ends come of a group that ends."""


@dataclass
class Fleet:
    """A job on `hosts`, as the core sees it."""

    hosts: tuple[str, ...]
    rungs: tuple[int, ...]
    random: random.Random
    state: JobState = field(default_factory=JobState)
    now: float = 0.0
    seconds: list[float] = field(default_factory=list)
    """How long each decision took."""
    bytes: int = 0
    """The size of the journal."""
    _numbers: Callable[[], int] = field(default_factory=lambda: count(1).__next__)

    def __post_init__(self) -> None:
        phase = PhasePolicy(
            name="only",
            max_num_restarts=3,
            success=Success(step=1_000_000),
            rungs=self.rungs,
            num_hosts=len(self.hosts),
            workers_are_units=True,
        )
        self.policy = RestartPolicy(phases=(phase,))

    def happens(self, event: Event) -> Sequence[object]:
        """The core decides about `event`; the record of it is added to the journal's size."""
        before = self.state
        began = time.perf_counter()
        self.state, decisions = step(before, event, self.policy)
        self.seconds.append(time.perf_counter() - began)
        changes = _changes(before, self.state)
        if decisions or changes:
            turn = Turn(self._numbers(), "benchmark", _WALL, event, decisions, changes)
            self.bytes += len(line_of_turn(turn))
        return decisions

    def starts(self) -> None:
        """The supervisor and the first attempt start."""
        self.happens(SupervisorStarted(self.now, "job", self.policy, None))
        self.happens(PhaseBegun(self.now, 0, "20260101_000000_restartable", None))
        self.happens(DevicesProbed(self.now, self.state.looks, self.hosts, ()))
        self._attempt_starts()

    def loses(self, lost: Sequence[str], *, found: bool = False) -> None:
        """The hosts `lost` are gone, or compute wrongly (`found`); the attempt ends, and the next
        one starts on others."""
        running = self.state.ladder.units(self.policy.phases[0])
        attempt, pids = self.state.attempt, _pids(running)
        exits = [WorkerExit(rank, signal="SIGKILL") for rank in range(len(running))]
        self.random.shuffle(exits)
        exits[0] = WorkerExit(exits[0].rank, code=1)
        killed = False
        for number in range(1, _OBSERVATIONS + 1):
            seen = tuple(exits[: max(1, number * len(exits) // _OBSERVATIONS)])
            self.now += 0.05
            self.happens(WorkersObserved(self.now, attempt, pids, seen))
            deadline = self.state.deadline
            if not killed and deadline is not None and deadline <= self.now + 0.1:
                self.now = max(self.now, deadline)
                decided = self.happens(DeadlineReached(self.now))
                killed = any(isinstance(each, KillWorkers) for each in decided)
        gone = WorkersGone(self.now, attempt, _LOST_HOST, None, None, None, exits=tuple(exits))
        left = frozenset(running) - frozenset(lost)
        for decision in self.happens(gone):
            if isinstance(decision, ProbeDevices):
                healthy = tuple(unit for unit in running if unit in left)
                bad = tuple(BadUnit(unit, "it does not answer", found) for unit in lost)
                self.happens(DevicesProbed(self.now, decision.number, healthy, bad))
        self._attempt_starts()

    def _attempt_starts(self) -> None:
        self.now += 1.0
        running = self.state.ladder.units(self.policy.phases[0])
        self.happens(WorkersStarted(self.now, self.state.attempt, _pids(running), self.now))


def main() -> None:
    """Measure and report."""
    given = options(__doc__)
    report = Report("core_scale")
    number = 1_000 if given.quick else 10_000
    for name, rungs in (("64_rungs", 64), ("2000_rungs", 2_000)):
        most, size = [], 0.0
        for turn in range(2 if given.quick else 5):
            fleet = _fleet(number, rungs, random.Random(turn))
            fleet.starts()
            begun = fleet.bytes
            fleet.loses(fleet.random.sample(fleet.hosts, number // 2))
            size = (fleet.bytes - begun) / number
            left = fleet.state.ladder.units(fleet.policy.phases[0])
            fleet.loses(left[: len(left) // 2], found=True)
            most.append(1000 * max(fleet.seconds))
        report.spread(f"most_step_{name}", "ms", most)
        report.figure(f"journal_bytes_per_host_{name}", size)
    report.figure("hosts", number)
    report.finish(given.json)


def _fleet(number: int, rungs: int, random: random.Random) -> Fleet:
    sizes = {max(1, number * each // rungs) * _CHIPS for each in range(1, rungs + 1)}
    first = int(IPv4Address("10.128.100.100"))  # machines are named after their addresses
    hosts = tuple(str(IPv4Address(first + index)) for index in range(number))
    return Fleet(hosts, tuple(sorted(sizes, reverse=True)), random)


def _pids(running: Sequence[str]) -> tuple[int, ...]:
    return tuple(range(100_000, 100_000 + len(running)))


def _changes(before: JobState, after: JobState) -> dict[str, object]:
    told, now = (encode(state.durable(), JobState) for state in (before, after))
    return {name: value for name, value in now.items() if told[name] != value}


if __name__ == "__main__":
    main()
