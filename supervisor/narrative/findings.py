"""Renders findings of the core that change nothing: a recovery's parts, a progress livelock."""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.core.decisions import TellLivelock, TellRecovery
from supervisor.narrative.event_line import Line, attempt_event, count, job_event

_ADVICE = (
    "mend that failure, or save more often, so that less is lost each time; "
    "autorestart.max_total_restarts ends such a job (76)"
)


def finding_lines(told: TellRecovery | TellLivelock) -> Iterator[Line]:
    """Yields the line of a finding."""
    match told:
        case TellRecovery():
            yield attempt_event(
                "recovered",
                told.attempt,
                _recovery(told),
                step=told.step,
                seconds=told.seconds,
                parts=dict(told.parts),
                lost_steps=told.lost,
            )
        case TellLivelock():
            yield job_event(
                "livelock",
                _livelock(told),
                "warning",
                root_cause=told.failure,
                times=told.times,
                restarts_in_all=told.total,
                seconds=told.seconds,
                goodput=told.goodput,
                advice=_ADVICE,
            )


def _recovery(told: TellRecovery) -> str:
    parts = ", ".join(f"{part} {seconds:.2f}" for part, seconds in told.parts.items())
    lost = "" if told.lost is None else f"; lost work: {count(told.lost, 'step')}"
    return f"resumed at step {told.step} in {told.seconds:.2f} s: {parts}{lost}"


def _livelock(told: TellLivelock) -> str:
    return (
        f"progress livelock: the same failure came {told.times} times, each time after a new "
        f"checkpoint, which refills the restart budget: {told.failure}; of the last "
        f"{told.seconds:.0f} s, {told.goodput:.0%} became committed steps. What to do: {_ADVICE}, "
        f"which has had {count(told.total, 'restart')} so far"
    )
