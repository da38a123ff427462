"""Renders findings of the core that change nothing: a recovery's parts, a progress livelock."""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.core.decisions import TellLivelock, TellRecovery
from supervisor.core.events import Straggler
from supervisor.narrative.event_line import Line, attempt_event, count, job_event

_ADVICE = (
    "mend that failure, or save more often, so that less is lost each time; "
    "autorestart.max_total_restarts ends such a job"
)
_ADVANCES = 0.8
"""The goodput from which a job advances well enough, so that nobody is warned."""


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
            if told.missed is not None:
                yield _not_resumed(told.attempt, told.step, told.missed)
        case TellLivelock():
            yield job_event(
                "livelock",
                _livelock(told),
                "info" if _advances(told) else "warning",
                root_cause=told.failure,
                times=told.times,
                restarts_in_all=told.total,
                seconds=told.seconds,
                goodput=told.goodput,
                advice=_ADVICE,
            )


def _recovery(told: TellRecovery) -> str:
    parts = ", ".join(f"{part} {seconds:.2f}" for part, seconds in told.parts.items())
    lost = f"; lost work: {'not known' if told.lost is None else count(told.lost, 'step')}"
    return f"resumed at step {told.step} in {told.seconds:.2f} s: {parts}{lost}"


def _not_resumed(attempt: int, step: int, missed: int) -> Line:
    text = (
        f"it goes on at step {step}, though step {missed} is committed: it restored an older "
        "checkpoint, or none, and runs those steps again. What to do: if the program resumes only "
        "with an option, give it in the command ({resume_step} there stands for the newest step)"
    )
    return attempt_event(
        "not-resumed", attempt, text, "warning", step=step, newest_committed_step=missed
    )


def _advances(told: TellLivelock) -> bool:
    return told.goodput >= _ADVANCES


def _livelock(told: TellLivelock) -> str:
    name, kept = "progress livelock: ", f"{told.goodput:.0%} became committed steps"
    if _advances(told):
        name, kept = "", f"{kept}, so the job advances"
    return (
        f"{name}the same failure came {told.times} times, each time after a new checkpoint, which "
        f"refills the restart budget: {told.failure}; of the last {told.seconds:.0f} s, {kept}. "
        f"What to do: {_ADVICE}, which has had {count(told.total, 'restart')} so far"
    )


def straggler_in_words(it: Straggler) -> str:
    """Returns which rank keeps the others waiting, by what, and where to look."""
    return (
        f"rank {it.rank} on {it.host} keeps the others waiting: of a step of {it.step_seconds:.2g} "
        f"s it needs {it.seconds:.2g} s before its devices begin (data and host work), the others "
        f"{it.peers:.2g} s; look at its data, CPU and disk"
    )
