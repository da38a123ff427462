"""What a stop saved, and what work is lost, in words: as far as it is known."""

from __future__ import annotations

from functools import partial

from supervisor.core.events import WorkersGone
from supervisor.core.policy import RestartPolicy
from supervisor.core.state import Drain
from supervisor.narrative.event_line import Line, count, main, of_attempt
from supervisor.ports import Transition

_NONE = "no checkpoint is seen where the job looks for them (trainer.init.checkpoint.directory)"


def stopped(t: Transition, event: WorkersGone, before: int | None) -> Line:
    """What was saved since the group was to end, when `before` was the newest committed step."""
    newest = _newest(t, event, before)
    saved = _is_above(newest, before)
    if saved:
        kept = f"step {newest} is saved"
    else:
        kept = _NONE if newest is None else f"no new checkpoint, the newest is of step {newest}"
    text = f"stopped: {kept}; {_lost(event, newest)}"
    lost = _lost_steps(event, newest)
    return of_attempt(
        "attempt-stopped",
        event.attempt,
        text,
        saved=saved,
        step=newest,
        ending_step=event.step,
        lost_steps=lost,
    )


def notice_used(t: Transition, event: WorkersGone, drain: Drain, policy: RestartPolicy) -> Line:
    """Whether a save fitted into the notice of a preemption."""
    seconds, newest = event.at - drain.at, _newest(t, event, drain.highest)
    taken = f"{seconds:.1f} s"
    if policy.preemption_notice is not None:
        taken += f" (of {policy.preemption_notice:g})"
    tell = partial(
        main,
        attempt=event.attempt,
        seconds=seconds,
        notice_seconds=policy.preemption_notice,
        ending_step=event.step,
        lost_steps=_lost_steps(event, newest),
    )
    if _is_above(newest, drain.highest):
        text = f"the notice was enough: step {newest} is saved, and all over in {taken}"
        return tell("notice-used", text, saved=True, step=newest)
    text = f"no checkpoint came of the notice in {taken}"
    return tell("notice-used", text, "warning", saved=False, step=newest)


def _newest(t: Transition, event: WorkersGone, before: int | None) -> int | None:
    """The newest committed step. A store that does not answer in the end tells none, and one that
    lags an older one; and one that was committed before may have been removed since."""
    seen = t.before.newest
    if event.committed is None or seen is None:
        return seen if event.committed is None else event.committed
    return max(seen, event.committed) if seen != before else event.committed


def _is_above(newest: int | None, before: int | None) -> bool:
    return newest is not None and (before is None or newest > before)


def _lost_steps(event: WorkersGone, newest: int | None) -> int | None:
    """How many steps are lost; None: not known."""
    return None if event.step is None or newest is None else max(0, event.step - newest)


def _lost(event: WorkersGone, newest: int | None) -> str:
    if event.step is None:
        return "what is lost since then is not known, because the program told no steps"
    told = f"(last step told: {event.step})"
    if newest is None:
        return f"what it did is lost unless it is saved elsewhere {told}"
    return f"lost since then: {count(_lost_steps(event, newest) or 0, 'step')} {told}"
