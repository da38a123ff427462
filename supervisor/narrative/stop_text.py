"""Renders what a stop saved, and how much work is lost, as far as that is known."""

from __future__ import annotations

from functools import partial

from supervisor.core.events import StopSource, WorkersGone
from supervisor.core.policy import RestartPolicy
from supervisor.core.state import Drain, JobState
from supervisor.narrative.event_line import Line, attempt_event, count, job_event
from supervisor.ports import Transition


def no_checkpoint(state: JobState, policy: RestartPolicy) -> str:
    """Returns that the phase of `state` has no checkpoint, and where supervise looked for one."""
    if state.checkpoints is not None:
        return "no checkpoint is left in the directory in which they were found"
    if policy.phases[state.phase].finds_checkpoints:
        return (
            "no checkpoint was found, neither in model_dir nor where the program was seen to write"
        )
    return "no checkpoint was found in trainer.init.checkpoint.directory"


def stopped(t: Transition, event: WorkersGone, before: int | None, policy: RestartPolicy) -> Line:
    """Returns the line about what was saved since the group was asked to end. `before` was the
    newest committed step at that time."""
    newest = _newest(t, event, before)
    saved = _is_above(newest, before)
    if saved:
        kept = f"step {newest} was saved"
    else:
        kept = (
            no_checkpoint(t.before, policy)
            if newest is None
            else f"no new checkpoint, the newest is of step {newest}"
        )
    if event.unproven is not None:
        kept += (
            f"; step {event.unproven} is complete, but was not seen closed, so it does not count "
            "yet: the program may go on from it"
        )
    if not saved and _was_cut_off(t, event):
        kept += (
            "; it was killed while it still ran: if a save takes longer, raise "
            "trainer.init.autorestart.grace_period"
        )
    text = f"stopped: {kept}; {_lost_work(event, newest)}"
    lost = _num_lost_steps(event, newest)
    return attempt_event(
        "attempt-stopped",
        event.attempt,
        text,
        saved=saved,
        step=newest,
        ending_step=event.step,
        lost_steps=lost,
    )


def _was_cut_off(t: Transition, event: WorkersGone) -> bool:
    """Whether somebody asked the group to end, who could wait longer, and it had to be killed."""
    group, drain = t.before.group, t.before.drain
    if group is None or drain is None or drain.source is StopSource.PREEMPTION:
        return False
    has_run = group.survivors or any(each.signal == "SIGKILL" for each in event.exits)
    return group.killing and bool(has_run)


def notice_used(t: Transition, event: WorkersGone, drain: Drain, policy: RestartPolicy) -> Line:
    """Returns the line that says whether a save fitted into the notice of a preemption."""
    seconds, newest = event.at - drain.at, _newest(t, event, drain.highest)
    taken = f"{seconds:.1f} s"
    notice = policy.preemption_notice if drain.notice is None else drain.notice
    if notice is not None:
        taken += f" (of {notice:.4g})"
    tell = partial(
        job_event,
        attempt=event.attempt,
        seconds=seconds,
        notice_seconds=notice,
        ending_step=event.step,
        lost_steps=_num_lost_steps(event, newest),
    )
    if _is_above(newest, drain.highest):
        text = f"the notice was long enough: step {newest} was saved, and all processes ended in "
        text += taken
        return tell("notice-used", text, saved=True, step=newest)
    text = f"no checkpoint was saved after the notice; the processes ended in {taken}"
    return tell("notice-used", text, "warning", saved=False, step=newest)


def _newest(t: Transition, event: WorkersGone, before: int | None) -> int | None:
    """Returns the newest committed step, as far as it is known.

    If the store did not answer at the end (`event.committed` is None), it is the last step seen.
    The store may lag: a step seen since the stop counts, even if `event.committed` is older. A step
    seen before the stop (`before`) does not count: it may have been removed since.
    """
    seen = t.before.newest
    if event.committed is None or seen is None:
        return seen if event.committed is None else event.committed
    return max(seen, event.committed) if seen != before else event.committed


def _is_above(newest: int | None, before: int | None) -> bool:
    return newest is not None and (before is None or newest > before)


def _num_lost_steps(event: WorkersGone, newest: int | None) -> int | None:
    """Returns how many steps are lost; None: not known, as where a step may prove good."""
    if event.step is None or newest is None or event.unproven is not None:
        return None
    return max(0, event.step - newest)


def _lost_work(event: WorkersGone, newest: int | None) -> str:
    if event.step is None:
        return "the lost work is not known, because the program reported no steps"
    reported = f"(last reported step: {event.step})"
    if event.unproven is not None:
        most = count(max(0, event.step - (newest or 0)), "step")
        return f"lost: at most {most} {reported}"
    if newest is None and event.starting_step:
        since = count(max(0, event.step - event.starting_step), "step")
        return (
            f"the program had begun at step {event.starting_step}; the {since} since then are "
            f"lost, unless it saved them in a way that supervise does not see {reported}"
        )
    if newest is None:
        return (
            "all work is lost, unless the program saved it in a way that supervise does not see "
            f"{reported}"
        )
    return f"lost since then: {count(_num_lost_steps(event, newest) or 0, 'step')} {reported}"
