"""Renders the end of an attempt: how it ended, and its failure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum

from supervisor.core.budget import Charge
from supervisor.core.doing import Alive, Killing, MakesWay, Probing, cause_of
from supervisor.core.events import LaunchFailed, StopSource, WorkersGone
from supervisor.core.policy import RestartPolicy
from supervisor.core.state import JobState, Status
from supervisor.diagnosis.failure import Failure, WorkerExit
from supervisor.diagnosis.signals import signal_of
from supervisor.narrative.decision_text import stage_keys, step_in_words
from supervisor.narrative.device_text import blamed
from supervisor.narrative.event_line import (
    Line,
    attempt_event,
    budget_keys,
    budget_used,
    count,
    job_event,
)
from supervisor.narrative.failure_text import (
    attempt_failed_line,
    end_of_traceback,
    place_of_failure,
    rank_in_words,
    record,
    success_warning,
    verdict,
)
from supervisor.narrative.findings import advice_in_words
from supervisor.narrative.stop_text import notice_used, stopped
from supervisor.ports import Transition


class AttemptEnd(StrEnum):
    """How an attempt ended."""

    SUCCEEDED = "SUCCEEDED"
    """The phase succeeded."""
    FAILED = "FAILED"
    DRAINED = "DRAINED"
    """The job was asked to stop."""
    MADE_WAY = "MADE_WAY"
    """The attempt made way for a larger rung, for a fresh one that a person wanted, or moved off
    hosts that are about to go."""
    LOST = "LOST"
    """The attempt was killed because its supervisor had died."""


def end_of(t: Transition, event: WorkersGone) -> AttemptEnd:
    """Returns how the attempt of the group that is gone ended; `t` is the transition of `event`."""
    group = t.before.doing
    cause = cause_of(group) if isinstance(group, Alive) else None
    if isinstance(group, Killing) and group.abandoned:
        return AttemptEnd.LOST
    if t.after.status is Status.SUCCEEDED or t.after.phase != t.before.phase:
        return AttemptEnd.SUCCEEDED
    if t.before.drains:
        return AttemptEnd.DRAINED
    if isinstance(cause, MakesWay) and cause.explains(event.failure):
        return AttemptEnd.MADE_WAY
    return AttemptEnd.FAILED


def no_progress(step: int, highest: int | None) -> str:
    """Returns a remark that `step` is not above the `highest` committed step; empty if it is."""
    if highest is None or step > highest:
        return ""
    return f": no progress, step {highest} was committed before"


def workers_gone_lines(t: Transition, event: WorkersGone, policy: RestartPolicy) -> Iterator[Line]:
    """Yields the lines about an attempt of which no process is left, and why it ended."""
    if t.before.group is None or t.before.group.attempt != event.attempt:
        return
    event = replace(event, committed=t.before.budget.own(event.committed))
    newest, end = t.before.newest, end_of(t, event)
    failure = t.after.last_failure if end is AttemptEnd.FAILED else None
    for ended in event.exits[max(len(t.before.group.exits), t.before.group.seen) :]:
        yield rank_ended_line(t, ended)
    yield _attempt_ended_line(t, event, end, failure)
    if event.committed is not None and (newest is None or event.committed > newest):
        text = f"checkpoint of step {event.committed} was committed"
        text += no_progress(event.committed, t.before.budget.highest)
        yield attempt_event(
            "checkpoint-committed", event.attempt, text, step=event.committed, forgiven=0
        )
    drain, is_done = t.before.drain, end is AttemptEnd.SUCCEEDED
    if t.before.ends_group and not is_done:
        yield stopped(t, event, t.before.group.saved, policy)
        if drain is not None and drain.source is StopSource.PREEMPTION and drain.begins is None:
            yield notice_used(t, event, drain, policy)
    if event.doubt is not None and is_done:
        text = success_warning(event.doubt)
        yield attempt_event(
            "success-doubted", event.attempt, text, "warning", exception=event.doubt
        )
    if failure is not None:
        several = (t.before.group.world_size or 1) > 1
        yield from _failure_lines(
            event.attempt, failure, t.after, policy, step=event.step, several=several
        )
        yield from blamed(t, policy)


def rank_ended_line(t: Transition, ended: WorkerExit) -> Line:
    """Returns the line that says how a worker of the live group ended.

    It is no warning if we asked for that end. Output is read late: a step from there need not be
    the last one.
    """
    group, doing = t.before.group, t.before.liveness
    assert group is not None
    where = f" in stage {doing.stage}" if doing.stage is not None else ""
    later = " or later" if doing.recognised or doing.in_output else ""
    where += step_in_words(doing.step, "", f" after step {{}}{later}")
    return attempt_event(
        "rank-ended",
        group.attempt,
        f"rank {ended.rank} ended: {ended}{where}",
        "info" if ended.clean or group.killing or _as_asked(t, ended) else "warning",
        rank=ended.rank,
        code=ended.code,
        signal=ended.signal,
        **stage_keys(t),
    )


def _as_asked(t: Transition, ended: WorkerExit) -> bool:
    """Whether the worker ended by the signal that the supervisor had sent it: SIGINT only for a
    person."""
    hang = t.before.group.hang if t.before.group is not None else None
    was_sent = t.before.ends_group and (hang is None or hang.asked)
    drain = t.before.drain
    by_person = drain is not None and drain.source is StopSource.PERSON
    asked_by = ("SIGTERM", "SIGINT") if by_person else ("SIGTERM",)
    return was_sent and not ended.told_to_stop and signal_of(ended) in asked_by


def launch_failed(t: Transition, event: LaunchFailed, policy: RestartPolicy) -> Iterator[Line]:
    """Yields the lines about an attempt whose workers could not be started."""
    if t.before.group is not None and t.before.group.attempt == event.attempt:
        failure = t.after.last_failure or event.failure
        text = "could not be started"
        yield attempt_event(
            "launch-failed", event.attempt, text, status=AttemptEnd.FAILED, failure=record(failure)
        )
        yield from _failure_lines(event.attempt, failure, t.after, policy)
        yield from blamed(t, policy)


def _attempt_ended_line(
    t: Transition, event: WorkersGone, end: AttemptEnd, failure: Failure | None
) -> Line:
    """Returns the line that says how far the attempt came."""
    start = event.resumed_from if event.starting_step is None else event.starting_step
    none = step_in_words(
        t.before.newest,
        "no checkpoint was found",
        "no checkpoint is there now; the newest was of step {}",
    )
    kept = step_in_words(event.committed, none, "newest checkpoint: step {}")
    if event.unproven is not None and not t.before.ends_group:
        kept += f"; step {event.unproven} is complete, but was not seen closed"
    ran = "" if event.step is None else f" at step {event.step}"
    ran += "" if event.step is None or start is None else f", from step {start}"
    return attempt_event(
        "attempt-ended",
        event.attempt,
        f"ended{ran}: {end}; {kept}",
        status=end,
        starting_step=start,
        from_snapshot=event.from_snapshot,
        ending_step=event.step,
        steps_progressed=_steps_progressed(event.step, start, end),
        newest_committed_step=event.committed,
        failure=record(failure) if failure is not None else None,
    )


def _steps_progressed(step: int | None, start: int | None, end: AttemptEnd) -> int | None:
    """Returns how many steps an attempt completed; None: not known, because the supervisor that
    counted them has ended, or because nobody told where the attempt began."""
    if step is None:
        return None if end is AttemptEnd.LOST else 0
    return max(0, step - start) if start is not None else None


def _failure_lines(
    attempt: int,
    failure: Failure,
    state: JobState,
    policy: RestartPolicy,
    *,
    step: int | None = None,
    several: bool = False,
) -> Iterator[Line]:
    """Yields the lines about the failure of an attempt; `step` is the last completed step that was
    reported."""
    hosts = state.ladder.hosts(policy.phases[state.phase])
    rank = f" ({rank_in_words(failure, hosts)})" if several else ""
    text = f"failed: {failure.cause}; root cause: {failure.root_cause}{rank}"
    text += place_of_failure(failure)
    yield attempt_failed_line(attempt, text, failure, step)
    for line in end_of_traceback(failure.traceback):
        quotes = line if failure.rank == 0 else None
        yield attempt_event(
            "traceback", attempt, f"| {line}", "error", quotes=quotes, rank=failure.rank
        )
    yield from verdict(attempt, failure, state)
    limit = state.budget.repetition_limit(policy.phases[state.phase])
    if (repeated := state.budget.repetitions(failure.signature)) and limit:
        text = f"signature {failure.signature}: seen {count(repeated, 'time')} since the last"
        yield attempt_event(
            "failure-repeated",
            attempt,
            f"{text} progress; {limit} times end the job",
            signature=failure.signature,
            times=repeated,
            limit=limit,
        )
    if not state.status.terminal:
        again = " if it comes again" if failure.is_guess else ""
        advice = advice_in_words(failure, policy, policy.phases[state.phase].name)
        text = f"what to do{again}: {advice}"
        yield attempt_event("advice", attempt, text, code=failure.rule, advice=advice)
        suspected = isinstance(state.doing, Probing) and state.doing.suspicion is not None
        if failure.charge is not Charge.NOTHING and not suspected:
            yield job_event("budget-used", budget_used(state, policy), **budget_keys(state, policy))
