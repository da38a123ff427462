"""The account of an attempt that ended: its evidence, its budget and what was decided.

A fold over the journal's transitions. Pure. The transition in which no process of the attempt is
left is not always the one that decides: a failure that points at the devices waits for a probe.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from supervisor.core.budget import Budget
from supervisor.core.decisions import StartWorkers, TellStages
from supervisor.core.doing import Probing
from supervisor.core.events import (
    DevicesProbed,
    LaunchFailed,
    SupervisorStarted,
    WorkersGone,
)
from supervisor.core.policy import PhasePolicy, RestartPolicy
from supervisor.core.state import JobState
from supervisor.diagnosis.failure import Failure, WorkerExit
from supervisor.narrative.ends import AttemptEnd, end_of
from supervisor.ports import Transition
from supervisor.protocol.loss_spikes import LossSpike


@dataclass(frozen=True, slots=True)
class Count:
    """What one budget was when the attempt started, and what became of it."""

    before: int
    forgiven: int
    """What new checkpoints of the attempt took back."""
    charged: int
    after: int
    limit: int | None
    """None: there is no limit."""

    @property
    def left(self) -> int | None:
        """How many are left; None: there is no limit."""
        return None if self.limit is None else max(0, self.limit - self.after)


@dataclass(frozen=True, slots=True)
class Account:
    """An attempt that ended."""

    attempt: int
    policy: RestartPolicy
    version: str
    """The version of the supervisor that judged it; empty: it is not recorded."""
    started: Transition | None
    """In which it was decided to start it; None: the records that were read lack that."""
    ended: Transition
    """In which its end was known."""
    settled: Transition
    """In which it was decided what follows; the same as `ended`, or a later one."""
    stage: str | None
    """The last stage that was recorded; None: none was."""
    next_rung: int | None = None
    """The devices of the next attempt; None: not known, or it has not started."""

    @property
    def limits(self) -> PhasePolicy:
        """The policy of its phase."""
        return self.policy.phases[self.ended.before.phase]

    @property
    def end(self) -> AttemptEnd:
        """How it ended."""
        event = self.ended.event
        return end_of(self.ended, event) if isinstance(event, WorkersGone) else AttemptEnd.FAILED

    @property
    def failure(self) -> Failure | None:
        """Its failure, judged; None: it did not fail."""
        if self.end is AttemptEnd.FAILED:
            return self.settled.after.last_failure
        event = self.ended.event
        return event.failure if isinstance(event, WorkersGone | LaunchFailed) else None

    @property
    def exits(self) -> tuple[WorkerExit, ...]:
        """How its workers ended, in the order in which that was seen."""
        return self.ended.event.exits if isinstance(self.ended.event, WorkersGone) else ()

    @property
    def ended_before_kill(self) -> int:
        """How many of them ended before the supervisor killed the others."""
        group = self.ended.before.group
        return len(group.exits) if group is not None else 0

    @property
    def loss_spikes(self) -> tuple[LossSpike, ...]:
        """The losses of its steps that stand out, as far as they are remembered. The state also has
        those of earlier attempts, which may have come further than this one."""
        event = self.ended.event
        if not isinstance(event, WorkersGone):
            return ()
        first, last = event.resumed_from or 0, event.step or 0
        earlier = None if self.started is None else self.started.after.loss_spikes
        return tuple(
            each
            for each in self.ended.before.loss_spikes
            # a step that the attempt did not report may have a spike that it did
            if first < each.step
            and (each.step <= last or (earlier is not None and each not in earlier))
        )

    @property
    def is_settled(self) -> bool:
        """Whether it was decided what follows: false while the devices are probed."""
        return suspicion_of(self.settled.after) is None

    @property
    def charged_from(self) -> Budget:
        """The budget right before the charge, with what the end has shown."""
        return _with_commit(self.ended).budget

    @property
    def restarts(self) -> Count:
        """The account of `max_num_restarts`."""
        return self._count("restarts", self.limits.max_num_restarts)

    @property
    def preemptions(self) -> Count:
        """The account of `max_num_preemptions`."""
        return self._count("preemptions", self.limits.max_num_preemptions)

    @property
    def total(self) -> Count:
        """The account of `max_total_restarts`, which nothing refills."""
        return self._count("total", self.limits.max_total_restarts)

    @property
    def repetitions(self) -> int:
        """How often the same failure has come since the last progress, this time included; 0: it is
        not compared."""
        failure = self.failure
        signature = failure.signature if failure is not None else None
        return self.settled.after.budget.repetitions(signature) if signature is not None else 0

    def _count(self, name: str, limit: int | None) -> Count:
        at_end = getattr(self.charged_from, name)
        after = getattr(self.settled.after.budget, name)
        begun = self.started
        is_known = begun is not None and begun.after.phase == self.ended.before.phase
        before = getattr(begun.after.budget, name) if begun is not None and is_known else at_end
        return Count(before, max(0, before - at_end), max(0, after - at_end), after, limit)


def suspicion_of(state: JobState) -> Failure | None:
    """Returns the failure that waits for a probe of the devices; None: none does."""
    doing = state.doing
    suspicion = doing.suspicion if isinstance(doing, Probing) else None
    return suspicion.failure if suspicion is not None else None


def _with_commit(t: Transition) -> JobState:
    """Returns the state before a transition, with the checkpoint that its event found."""
    event = t.event
    committed = event.committed if isinstance(event, WorkersGone) else None
    return t.before.found(committed, t.event.at) if committed is not None else t.before


def last_that_failed(transitions: Iterable[Transition]) -> int | None:
    """Returns the number of the last attempt in `transitions` that failed; None: none did."""
    found = None
    for t in transitions:
        match t.event:
            case WorkersGone(attempt=attempt) as event if t.after != t.before:
                found = attempt if end_of(t, event) is AttemptEnd.FAILED else found
            case LaunchFailed(attempt=attempt):
                found = attempt
            case _:
                pass
    return found


def account_of(
    attempt: int, transitions: Iterable[Transition], policy: RestartPolicy | None
) -> Account | None:
    """Returns the account of an attempt; None: `transitions` do not have its end.

    `policy` is the one before the first of them; None: they begin with a supervisor's start.
    """
    version, stage, started, found = "", None, None, None
    for t in transitions:
        if isinstance(t.event, SupervisorStarted):
            policy, version = t.event.policy, t.event.version
        starts = next((each for each in t.decisions if isinstance(each, StartWorkers)), None)
        if found is not None:
            if isinstance(t.event, DevicesProbed) and not found.is_settled:
                found = replace(found, settled=t)
            if starts is not None:
                return replace(found, next_rung=starts.num_devices)
        stage = _stage_after(t, attempt, stage)
        if found is None and policy is not None and _is_end_of(t, attempt):
            found = Account(attempt, policy, version, started, t, t, stage)
            if starts is not None:
                return replace(found, next_rung=starts.num_devices)
        if starts is not None and starts.attempt == attempt:
            started = t
    return found


def _is_end_of(t: Transition, attempt: int) -> bool:
    is_end = isinstance(t.event, WorkersGone | LaunchFailed) and t.event.attempt == attempt
    return is_end and t.after != t.before


def _stage_after(t: Transition, attempt: int, stage: str | None) -> str | None:
    told = [d for d in t.decisions if isinstance(d, TellStages) and d.attempt == attempt]
    named = [str(each.stage) for each in told if each.stage is not None]
    spent = [name for each in told for name in each.seconds if name != "UNNAMED"]
    return named[-1] if named else spent[-1] if spent else stage
