"""What every event leads to, in every state of the job: found by exploring the decision core.

    python -m tests.simulation.table

writes docs/reference/states.md; nothing there is written by hand. The exploration starts with a new
job. It applies an example of every event to every state whose shape it has not seen yet, until no
new shape comes. A shape (`_shape`) is what the core branches on. Times and attempt
numbers are no part of it, so the shapes are few.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import get_args

from supervisor.core.budget import Charge
from supervisor.core.decisions import ONLY_TOLD, Decision
from supervisor.core.doing import (
    Alive,
    Doing,
    Ended,
    Hang,
    Killing,
    Lingering,
    New,
    Probing,
    Running,
    Stopping,
    cause_of,
    workers_of,
)
from supervisor.core.ending import work_is_done
from supervisor.core.events import (
    BadUnit,
    CheckpointCommitted,
    CheckpointSetAside,
    CheckpointsFound,
    DeadlineReached,
    DeviceFoundWrong,
    DevicesProbed,
    Event,
    HostsLeaving,
    LaunchCancelled,
    LaunchFailed,
    LossesNotFinite,
    LossSpiked,
    MaintenanceAnnounced,
    NativeStacks,
    Noticed,
    Obstacle,
    PhaseBegun,
    QuarantineCleared,
    RestartRequested,
    RungCompileFailed,
    SaveMeasured,
    SaveRequested,
    SilenceExcused,
    StopRequested,
    StopSource,
    Straggler,
    StragglerFound,
    SupervisorStarted,
    Unfit,
    WorkerReported,
    WorkersGone,
    WorkersIdle,
    WorkersObserved,
    WorkersStarted,
)
from supervisor.core.liveness import Silence
from supervisor.core.machine import step
from supervisor.core.policy import PhasePolicy, RestartPolicy
from supervisor.core.state import JobState
from supervisor.diagnosis.failure import Failure, Survivor, Verdict, WorkerExit
from supervisor.diagnosis.success import Success
from supervisor.host.notice import Notice
from supervisor.protocol.loss_spikes import LossSpike
from supervisor.protocol.messages import Stage, StepMessage

PUBLISHED = Path(__file__).parents[2] / "docs" / "reference" / "states.md"

Cell = tuple[str, str]
"""The name of what the job does, and the name of the event."""
Result = tuple[str, tuple[str, ...]]
"""The name of what the job does next, and the names of the decisions."""
Table = Mapping[Cell, frozenset[Result]]

_UNITS = ("0", "1", "2", "3")
_POLICY = RestartPolicy(
    phases=(
        PhasePolicy("a", 2, 1, Success(step=10), rungs=(4, 2), units=_UNITS),
        PhasePolicy("b", 1, 1, Success()),
    ),
    preemption_notice=600.0,
    regrow_at_checkpoint=True,
)
_LONG = 100_000.0
"""Seconds after which every wait of the policy is over."""

_KILLED = Failure("killed", Verdict.RESTART, "sigkill", "why", "what", "SIGKILL", 0, "SIGKILL")
_FAILURES = (
    _KILLED,
    replace(_KILLED, charge=Charge.PREEMPTIONS),
    replace(_KILLED, hardware=True),
    replace(_KILLED, verdict=Verdict.FATAL, rule="assertion", certain=True),
    replace(_KILLED, verdict=Verdict.FATAL, rule="oom", certain=True, per_rung=True),
)
_ENDS = (
    (),
    (WorkerExit(0, code=0),),
    (WorkerExit(0, code=1),),
    (WorkerExit(0, code=0), WorkerExit(1, code=0)),
    (WorkerExit(0, code=0), WorkerExit(1, code=1)),
    (WorkerExit(0, signal="SIGTERM"), WorkerExit(1, signal="SIGTERM")),
)
_LEFT = (Survivor(7, "sleep 3600"),)
UNEXPECTED: frozenset[Cell] = frozenset(
    (kind.__name__, LaunchFailed.__name__) for kind in (Running, Stopping, Lingering)
)
"""Events that an engine never posts in these states if it keeps its contract: a start is answered
once."""


def explore() -> Table:
    """Return everything that each event can lead to, for each thing that a job can do."""
    found: dict[Cell, set[Result]] = defaultdict(set)
    pending, seen = deque([(JobState(), 0.0)]), set[object]()
    while pending:
        state, now = pending.popleft()
        for event in _events(state, now):
            after, decisions = step(state, event, _POLICY)
            found[cell(state, event)].add(result(after, decisions))
            if (shape := _shape(after)) not in seen:
                seen.add(shape)
                pending.append((after, max(now, event.at) + 1.0))
    return {cell: frozenset(results) for cell, results in found.items()}


def cell(before: JobState, event: Event) -> Cell:
    """Return the cell of the table to which one transition belongs."""
    return _name(before.doing), _name(event)


def result(after: JobState, decisions: Iterable[Decision]) -> Result:
    """Return the result of one transition, without the decisions that only tell people
    something."""
    done = (each for each in decisions if not isinstance(each, ONLY_TOLD))
    return _name(after.doing), tuple(_name(decision) for decision in done)


def _name(value: object) -> str:
    return type(value).__name__


def _shape(state: JobState) -> object:
    """Return what the core branches on, without times and counters."""
    doing, ladder, drain = state.doing, state.ladder, state.drain
    return (
        type(doing),
        _shape_of_group(doing, state) if isinstance(doing, Alive) else (),
        (doing.short_since is None, doing.suspicion is None) if isinstance(doing, Probing) else (),
        (doing.exit_code, drain is None) if isinstance(doing, Ended) else (),
        (state.phase, state.directory is None, ladder.is_shrunk(_POLICY.phases[state.phase])),
        drain is not None and not isinstance(doing, Ended),
        min(state.budget.failures, 2),
        work_is_done(state.budget, state.newest, _POLICY.phases[state.phase]),
        len(ladder.struck),
    )


def _shape_of_group(group: Alive, state: JobState) -> object:
    workers, cause, drain = workers_of(group), cause_of(group), state.drain
    shape = (
        type(cause),
        isinstance(cause, Hang) and cause.asked,
        drain is None or drain.begins is None,
    )
    if isinstance(group, Killing) or workers is None:
        return (*shape, isinstance(group, Killing) and group.abandoned, workers is None)
    looks = (state.ladder.look_at is None, state.ladder.larger_since is None)
    return (*shape, workers.exits, bool(workers.survivors), looks, state.longest_save is None)


def _events(state: JobState, now: float) -> Iterator[Event]:
    """Yield examples of every event that fits the state. Late events and those of another attempt
    change nothing."""
    attempt, phase = state.attempt, state.phase
    for once in (True, False):
        yield SupervisorStarted(now, "job", _POLICY, None, once=once)
    if isinstance(state.doing, New):
        return
    yield PhaseBegun(now, phase, "20300101_000000_restartable", None)
    yield WorkersStarted(now, attempt, (1, 2))
    yield WorkerReported(now, attempt, 0, StepMessage(1))
    yield Noticed(now, Notice("observer-failed", "a notice"))
    yield MaintenanceAnnounced(now, "maintenance")
    yield SilenceExcused(now, 1.0)
    yield WorkersIdle(now, attempt, _LONG)
    yield NativeStacks(now, attempt, written=False)
    yield NativeStacks(now, attempt, written=True)
    for times in (1, 100):
        yield LossesNotFinite(now, attempt, 5, times, finite=4, before=None, last=6)
    for committed in (1, 10):
        yield CheckpointCommitted(now + _LONG, phase, committed)
    yield CheckpointsFound(now, phase, "/out/checkpoints")
    yield CheckpointSetAside(now, attempt, 2, 1, "/run/damaged", "it is missing", ("a",))
    yield SaveMeasured(now, attempt, 1.0)
    yield RungCompileFailed(now, phase, 2, "it is too large")
    yield QuarantineCleared(now, ())
    yield DeviceFoundWrong(now, attempt, "1", 5, "wrong gradients of step 5")
    yield LossSpiked(now, attempt, LossSpike(5, 9.0, 2.0, 2.5))
    yield StragglerFound(now, attempt, Straggler(1, 0.7, 0.1, 1.0, "h1"))
    yield RestartRequested(now, "ann on h1")
    yield SaveRequested(now, "ann on h1")
    yield HostsLeaving(now, attempt, "host h2 is about to go: it is drained")
    yield from (StopRequested(now, source) for source in (StopSource.PERSON, StopSource.PREEMPTION))
    yield DeadlineReached(state.due if state.due is not None else now + _LONG)
    yield DeadlineReached(now, Silence(attempt, Stage.TRAINING, 600.0))
    for exits in _ENDS:
        yield WorkersObserved(now, attempt, (1, 2), exits)
        yield WorkersObserved(now, attempt, (1, 2), exits, _LEFT)
    yield from (LaunchFailed(now, attempt, failure) for failure in _FAILURES)
    yield LaunchCancelled(now, attempt)
    for newest in (None, 10):
        yield from (WorkersGone(now, attempt, each, None, 1, newest) for each in (None, *_FAILURES))
    for healthy in (_UNITS, _UNITS[:2], ()):
        bad = tuple(BadUnit(unit, "it is gone", found=False) for unit in _UNITS[len(healthy) :])
        yield DevicesProbed(now, state.looks, healthy, bad)
        yield DevicesProbed(now + _LONG, state.looks, healthy, bad)
    for at in (now, now + _LONG):
        away = Obstacle("the cluster does not answer", "start it again")
        yield DevicesProbed(at, state.looks, (), (), obstacle=away)
    unfit = Obstacle("no host can be used", "install it", lasts=True)
    yield DevicesProbed(now, state.looks, (), (), obstacle=unfit)
    some = Unfit(1, "host d: it does not see model_dir", "share it")
    for at in (now, now + _LONG):
        yield DevicesProbed(at, state.looks, _UNITS[:1], (), unfit=some)


# --- the page ------------------------------------------------------------------------------------


def page(table: Table) -> str:
    """Return the content of docs/reference/states.md."""
    kinds = [kind.__name__ for kind in get_args(Doing)]
    lines = [_HEAD, "```mermaid", "stateDiagram-v2", "    [*] --> New"]
    lines += _edges(table)
    lines += [f"    {end.__name__} --> [*]" for end in get_args(Ended)]
    lines += ["```", "", _TABLE_HEAD]
    for kind in kinds:
        rows = list(_rows(table, kind))
        lines += [f"## {kind}", "", "| event | next | decisions |", "|---|---|---|", *rows, ""]
    return "\n".join(lines).rstrip() + "\n"


def _edges(table: Table) -> Iterator[str]:
    events: dict[tuple[str, str], set[str]] = defaultdict(set)
    for (kind, event), results in table.items():
        restarted = event == SupervisorStarted.__name__ and kind != New.__name__
        for after, _ in results:
            if after != kind and not restarted:
                events[kind, after].add(event)
    order = [kind.__name__ for kind in get_args(Doing)]
    for kind, after in sorted(events, key=lambda edge: (order.index(edge[0]), *edge)):
        yield f"    {kind} --> {after} : {', '.join(sorted(events[kind, after]))}"


def _rows(table: Table, kind: str) -> Iterator[str]:
    for event in (event.__name__ for event in get_args(Event)):
        results = sorted(table.get((kind, event), ()))
        for after, decisions in results:
            if after != kind or decisions:
                mark = "*" if (kind, event) in UNEXPECTED else ""
                yield f"| {event}{mark} | {after} | {', '.join(decisions)} |"


_HEAD = """\
# What a job does, and what changes that

Generated by `python -m tests.simulation.table` from the decision core; a test keeps it current.
The boxes are the variants of `supervisor/core/doing.py`, the arrows are named after the events of
`supervisor/core/events.py`. A supervisor that starts (`SupervisorStarted`) finds the job in any of
them; where it leads is in the tables only.
"""
_TABLE_HEAD = """\
One table for each variant: every event that can lead to another one, or to a decision. An event
that is not in a table changes at most what a job knows, not what it does. Decisions that are only
told are left out (`ONLY_TOLD` in `supervisor/core/decisions.py`). What is marked with * no engine
posts there that keeps its contract (`supervisor/engines/engine.py`): the core accepts it.
"""


def main() -> None:
    """Write the page."""
    PUBLISHED.write_text(page(explore()), encoding="utf-8")
    print(f"wrote {PUBLISHED}")


if __name__ == "__main__":
    main()
