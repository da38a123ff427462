"""Makes the report of a job from its transitions, one by one: its attempts and why they failed, its
steps, checkpoints, rungs and recoveries. Pure.

The account of an attempt needs the transitions from its start until the next one starts, so only
these are kept at a time: a job may have ten thousand attempts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from supervisor.core.decisions import FinishJob, StartWorkers, TellRecovery, TellStages
from supervisor.core.events import (
    CheckpointCommitted,
    LaunchFailed,
    SupervisorStarted,
    WorkersGone,
)
from supervisor.core.policy import RestartPolicy
from supervisor.diagnosis.failure import WorkerExit
from supervisor.files.attempts import attempt_folder
from supervisor.narrative.alternatives import decided
from supervisor.narrative.attempt_account import Account, account_of
from supervisor.narrative.ends import AttemptEnd
from supervisor.narrative.event_line import count
from supervisor.narrative.failure_text import end_of_traceback
from supervisor.ports import Transition
from supervisor.report.job_report import (
    Attempt,
    Commit,
    FailedAttempt,
    Head,
    LossCurve,
    RecoveryTime,
    Report,
    Rung,
    StepSeen,
)
from supervisor.report.timeline import Timeline, time_of

_MOST_EXITS = 8
"""Exits of ranks that are told one by one."""
RUNNING = "RUNNING"
_UNKNOWN = "UNKNOWN"


class JobFold:
    """A job up to the last transition that was taken."""

    def __init__(self, policy: RestartPolicy | None) -> None:
        """`policy` is the one before the first transition; None: a supervisor's start is first."""
        self._policy = policy
        self._timeline = Timeline()
        self._began: float | None = None
        self._last = 0.0
        """The time of the last transition."""
        self._running = 0.0
        """The seconds in which a supervisor ran, so far."""
        self._committed_at = 0.0
        """`_running` when the newest checkpoint was committed."""
        self._slice: list[Transition] = []
        """The transitions since the last attempt was started, and the one that started it."""
        self._policy_of_slice = policy
        self._attempts: list[Attempt] = []
        self._failures: list[FailedAttempt] = []
        self._recoveries: list[RecoveryTime] = []
        self._steps: list[StepSeen] = []
        self._commits: list[Commit] = []
        self._rungs: list[Rung] = []
        self._ended_because = ""

    def take(self, t: Transition) -> None:
        """Take one more transition."""
        now = time_of(t)
        if self._began is None:
            self._began = self._last = now
        if isinstance(t.event, SupervisorStarted):
            self._policy = t.event.policy
        else:
            self._running += max(0.0, now - self._last)
        self._last = max(self._last, now)
        self._timeline.take(t)
        self._take_steps(t, now)
        self._take_commit(t, now)
        for each in t.decisions:
            if isinstance(each, FinishJob):
                self._ended_because = each.reason
        self._slice.append(t)
        start = next((each for each in t.decisions if isinstance(each, StartWorkers)), None)
        if start is not None:
            self._settle()
            self._begin(start, t, now)

    def report(
        self,
        head: Head,
        until: float | None,
        goodput: dict[str, Any] | None,
    ) -> Report:
        """Returns the report; `until` is the time at which the job lives, None: it does not."""
        self._settle()
        attempts = self._attempts
        if attempts and attempts[-1].ended is None and until is not None:
            attempts[-1] = replace(attempts[-1], end=RUNNING)
        began = self._began if self._began is not None else head.made
        spans = self._timeline.spans(until)
        phases = self._policy.phases if self._policy is not None else ()
        rungs = [each.rungs[0] for each in phases if each.rungs]
        why = self._ended_because if head.exit_code is not None else ""
        return Report(
            head=replace(head, ended_because=why),
            began=began,
            until=max(self._last if until is None else until, began),
            spans=spans,
            attempts=tuple(attempts),
            failures=tuple(self._failures),
            recoveries=tuple(self._recoveries),
            goodput=goodput,
            steps=tuple(self._steps),
            commits=tuple(self._commits),
            rungs=tuple(self._rungs),
            full_rung=max(rungs, default=None),
        )

    # --- attempts ---------------------------------------------------------------------------------

    def _begin(self, start: StartWorkers, t: Transition, now: float) -> None:
        """An attempt starts."""
        assert self._policy is not None
        phase = self._policy.phases[start.phase]
        devices = start.num_devices or t.after.ladder.num_devices(phase)
        number, newest = start.attempt, t.after.newest
        begun = Attempt(number, phase.name, now, None, _UNKNOWN, devices, newest, None)
        self._attempts.append(begun)
        if devices is not None and (not self._rungs or self._rungs[-1].num_devices != devices):
            self._rungs.append(Rung(now, devices))
        self._slice = [t]
        self._policy_of_slice = self._policy

    def _settle(self) -> None:
        """The attempt that was started last has ended, or the journal has no more of it."""
        if not self._attempts:
            return
        attempt = self._attempts[-1]
        account = account_of(attempt.number, self._slice, self._policy_of_slice)
        if account is None:
            return
        ended, event = time_of(account.ended), account.ended.event
        first, last = attempt.first_step, attempt.last_step
        if isinstance(event, WorkersGone):
            began = event.resumed_from if event.starting_step is None else event.starting_step
            first = first if began is None else began
            last = event.step if event.step is not None else last
        failure = account.failure if account.end is AttemptEnd.FAILED else None
        self._attempts[-1] = replace(
            attempt,
            ended=ended,
            end=str(account.end),
            first_step=first,
            last_step=last,
            code=failure.rule if failure is not None else None,
        )
        if failure is not None:
            self._failures.append(_failed(account, attempt.phase))

    # --- steps and checkpoints --------------------------------------------------------------------

    def _take_steps(self, t: Transition, now: float) -> None:
        for each in t.decisions:
            if isinstance(each, TellRecovery):
                told = RecoveryTime(each.attempt, now, each.step, dict(each.parts), each.lost)
                self._recoveries.append(told)
            if isinstance(each, TellRecovery | TellStages) and each.step is not None:
                self._saw(each.step, now, each.attempt)
        if isinstance(t.event, WorkersGone) and t.event.step is not None:
            self._saw(t.event.step, now, t.event.attempt)

    def _saw(self, step: int, now: float, attempt: int) -> None:
        last = self._steps[-1] if self._steps else None
        if last is None or (last.step, last.attempt) != (step, attempt):
            self._steps.append(StepSeen(now, step, attempt))
        if self._attempts and self._attempts[-1].number == attempt:
            self._attempts[-1] = replace(self._attempts[-1], last_step=step)

    def _take_commit(self, t: Transition, now: float) -> None:
        """A checkpoint was committed that is not the newest one already."""
        newest, before = t.after.newest, t.before.newest
        is_told = isinstance(t.event, CheckpointCommitted | WorkersGone)
        if not is_told or newest is None or newest == before:
            return
        if before is not None and newest < before:
            return  # the newer one is gone
        assert self._policy is not None
        phase = self._policy.phases[t.before.phase].name
        age = self._running - self._committed_at
        self._commits.append(Commit(now, newest, phase, age))
        self._committed_at = self._running


def report_of_transitions(
    transitions: Iterable[Transition],
    policy: RestartPolicy | None,
    head: Head,
    until: float | None = None,
    goodput: dict[str, Any] | None = None,
) -> Report:
    """Returns the report of these transitions: see `JobFold`."""
    fold = JobFold(policy)
    for t in transitions:
        fold.take(t)
    return fold.report(head, until, goodput)


def with_losses(report: Report, losses: Iterable[LossCurve], why_not: str) -> Report:
    """Returns the report with these losses; `why_not` says why there are none, or not all."""
    return replace(report, losses=tuple(losses), no_losses=why_not)


def _failed(account: Account, phase: str) -> FailedAttempt:
    failure, event, outcome = account.failure, account.ended.event, decided(account)
    assert failure is not None
    gone = event if isinstance(event, WorkersGone) else None
    restarts = account.restarts
    return FailedAttempt(
        attempt=account.attempt,
        phase=phase,
        time=time_of(account.ended),
        exits=tuple(_exits(account.exits, launched=not isinstance(event, LaunchFailed))),
        stage=account.stage,
        step=gone.step if gone is not None else None,
        committed=gone.committed if gone is not None else account.ended.after.newest,
        rank=failure.rank,
        root_cause=failure.root_cause,
        place=failure.where,
        traceback=tuple(end_of_traceback(failure.traceback)),
        code=failure.rule,
        verdict=str(failure.verdict),
        certain=failure.is_certain,
        cause=failure.cause,
        reason=failure.reason,
        advice=failure.advice,
        restarts=f"{restarts.charged} charged: {restarts.after} of {restarts.limit} used",
        decision=str(outcome),
        decided_because=outcome.reason if outcome.kind != "end" else "",
        files=f"{account.ended.before.directory}/{attempt_folder(account.attempt)}",
    )


def _exits(exits: tuple[WorkerExit, ...], *, launched: bool) -> Iterator[str]:
    if not exits:
        unknown = "the exits of the ranks are not in the journal"
        yield unknown if launched else "no rank was started"
    yield from (f"rank {each.rank}: {each}" for each in exits[:_MOST_EXITS])
    if (more := len(exits) - _MOST_EXITS) > 0:
        yield f"and {count(more, 'more rank')}"
