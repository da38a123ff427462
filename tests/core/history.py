"""Tells a job's history to the decision core, event by event, and keeps what it decided."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from supervisor.core.budget import Charge
from supervisor.core.decisions import Decision, FinishJob, StartWorkers, TellStages
from supervisor.core.events import (
    CheckpointCommitted,
    DeadlineReached,
    Event,
    LaunchFailed,
    PhaseBegun,
    StopRequested,
    StopSource,
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
from supervisor.narrative import Line
from supervisor.narrative.rendered import RenderedTransition, with_lines
from supervisor.ports import Transition

RETRY = Failure("killed", Verdict.RESTART, "sigkill", "why", "what", "SIGKILL", 0, "SIGKILL")
FATAL = replace(RETRY, verdict=Verdict.FATAL, rule="assertion")
PREEMPTED = replace(RETRY, charge=Charge.PREEMPTIONS)
SAME = replace(RETRY, signature="ValueError-1")
OTHER = replace(RETRY, signature="ValueError-2")
FREE = replace(RETRY, charge=Charge.NOTHING)


def policy(*phases: PhasePolicy, restarts: int = 3, preemptions: int = 2) -> RestartPolicy:
    """A policy of the given phases, or of one with these budgets and 100 steps."""
    one = PhasePolicy("only", restarts, preemptions, Success(step=100))
    return RestartPolicy(phases=phases or (one,))


WALL = datetime(2026, 1, 1, tzinfo=UTC)
TWO = policy(PhasePolicy("one", 1, 1, Success(step=10)), PhasePolicy("two", 1, 1, Success(step=20)))
"""A policy of two phases."""


class History:
    """A job under `policy`; every method is something that happens to it."""

    def __init__(self, policy: RestartPolicy) -> None:
        self.policy = policy
        self.state = JobState()
        self.now = 0.0
        self.events: list[Event] = []
        self.turns: list[RenderedTransition] = []
        self.decided: list[Decision] = []
        """Without `stages`."""
        self.stages: list[TellStages] = []

    def happens(self, event: Event) -> tuple[Decision, ...]:
        """Any event; returns what is decided now, but for what the journal is told of stages."""
        before = self.state
        self.events.append(event)
        self.state, decisions = step(before, event, self.policy)
        transition = Transition(event, before, self.state, decisions, WALL)
        self.turns.append(with_lines(transition, self.policy))
        self.stages += [each for each in decisions if isinstance(each, TellStages)]
        others = tuple(each for each in decisions if not isinstance(each, TellStages))
        self.decided += others
        return others

    def starts(self, committed: int | None = None, *, once: bool = True) -> tuple[Decision, ...]:
        """A supervisor starts; its phase begins if it has not yet."""
        event = SupervisorStarted(self.now, "job", self.policy, committed, once=once)
        decisions = self.happens(event)
        if self.state.directory is None and not self.state.status.terminal:
            decisions = self.begins()
        return decisions

    def begins(self, committed: int | None = None) -> tuple[Decision, ...]:
        """The phase has its directory."""
        name = f"phase{self.state.phase}"
        return self.happens(PhaseBegun(self.now, self.state.phase, name, committed))

    def runs(self, workers: int = 1) -> tuple[Decision, ...]:
        """The attempt's workers run."""
        pids = tuple(range(1000, 1000 + workers))
        return self.happens(WorkersStarted(self.now, self.state.attempt, pids))

    def cannot_launch(self, failure: Failure = RETRY) -> tuple[Decision, ...]:
        """The attempt's workers could not be started."""
        return self.happens(LaunchFailed(self.now, self.state.attempt, failure))

    def commits(self, step: int) -> tuple[Decision, ...]:
        """A checkpoint of the current phase is seen committed."""
        return self.happens(CheckpointCommitted(self.now, self.state.phase, step))

    def ends(self, *exits: WorkerExit) -> tuple[Decision, ...]:
        """Workers end."""
        group = self.state.group
        assert group is not None
        pids = tuple(range(1000, 1000 + (group.world_size or 1)))
        return self.happens(WorkersObserved(self.now, group.attempt, pids, exits))

    def gone(
        self,
        failure: Failure | None = RETRY,
        committed: int | None = None,
        adjustable: tuple[str, ...] = (),
        snapshot: int | None = None,
        trained: bool | None = None,
    ) -> tuple[Decision, ...]:
        """The group is confirmed gone; it had resumed from memory, if `snapshot` is a step."""
        attempt, memory = self.state.attempt, snapshot is not None
        gone = WorkersGone(
            self.now, attempt, failure, snapshot, snapshot, committed, adjustable, memory
        )
        gone = replace(gone, trained=trained)
        return self.happens(gone)

    def fails(
        self,
        failure: Failure = RETRY,
        committed: int | None = None,
        adjustable: tuple[str, ...] = (),
        snapshot: int | None = None,
    ) -> tuple[Decision, ...]:
        """The attempt runs, its worker dies, and it is judged; a backoff is waited out."""
        self.runs()
        self.ends(WorkerExit(0, signal="SIGKILL"))
        decisions = self.gone(failure, committed, adjustable, snapshot)
        return self.waits() if self.state.backoff is not None else decisions

    def succeeds(self) -> tuple[Decision, ...]:
        """The attempt runs, and its worker ends having done its work."""
        self.runs()
        self.ends(WorkerExit(0, code=0))
        return self.gone(None)

    def waits(self) -> tuple[Decision, ...]:
        """The deadline comes."""
        assert self.state.deadline is not None
        self.now = max(self.now, self.state.deadline)
        return self.happens(DeadlineReached(self.now))

    def stops(self, source: StopSource = StopSource.SIGTERM) -> tuple[Decision, ...]:
        """Somebody wants the job to stop."""
        return self.happens(StopRequested(self.now, source))

    @property
    def told(self) -> list[Line]:
        """What is told of the last turn."""
        return list(self.turns[-1].lines)

    @property
    def starts_decided(self) -> list[int]:
        """The numbers of the attempts that were started."""
        return [d.attempt for d in self.decided if isinstance(d, StartWorkers)]

    @property
    def finish(self) -> FinishJob | None:
        """How the job ended last."""
        return next((d for d in reversed(self.decided) if isinstance(d, FinishJob)), None)


def started(given: RestartPolicy | None = None) -> History:
    """A job whose first attempt was decided on."""
    history = History(given or policy())
    history.starts()
    return history
