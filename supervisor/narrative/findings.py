"""Renders what changes nothing: a recovery's parts, a livelock, a spike of the loss, a straggler,
how well devices are used, and the command that replays a step."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from supervisor.core.decisions import TellLivelock, TellRecovery
from supervisor.core.ending import work_is_done
from supervisor.core.events import Straggler
from supervisor.core.policy import RestartPolicy
from supervisor.core.start_folders import is_of_one_start
from supervisor.core.state import JobState, Status
from supervisor.diagnosis.failure import Failure
from supervisor.diagnosis.outcome import Verdict
from supervisor.diagnosis.rules.wording import OWN_TRAINER_REPLAYS, OWN_TRAINER_SKIPS
from supervisor.narrative.event_line import Line, attempt_event, count, job_event
from supervisor.protocol.loss_spikes import LossSpike

_ADVICE = (
    "mend that failure, or save more often, so that less is lost each time; "
    "autorestart.max_total_restarts ends such a job"
)
_ADVANCES = 0.8
"""The goodput from which a job advances well enough, so that nobody is warned."""


def finding_lines(told: TellRecovery | TellLivelock, found: str | None) -> Iterator[Line]:
    """Yields the line of a finding. `found` is the checkpoint directory that was found, if the
    config names none."""
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
                yield _not_resumed(told.attempt, told.step, told.missed, found)
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


def _not_resumed(attempt: int, step: int, missed: int, found: str | None) -> Line:
    text = (
        f"it goes on at step {step}, though step {missed} is committed: it restored an older "
        "checkpoint, or none, and runs those steps again. What to do: if the program resumes only "
        "with an option, give it in the command ({resume_step} there stands for the newest step)"
    )
    if found is not None and is_of_one_start(found):
        text += (
            f". Step {missed} was found in {found}: if the program makes a new folder at each "
            "start, it can restore only what it is told, so give it a fixed folder (an argument of "
            "its own)"
        )
    elif found is not None:
        text += (
            f". If it restores from another folder than {found}, where step {missed} was found, "
            "name that one: --set trainer.init.checkpoint.directory=FOLDER"
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


def spike_in_words(it: LossSpike, phase: str = "") -> str:
    """Returns which step's loss stands out, and what was usual before it. `phase` is the name of
    the step's phase, where a job has several."""
    of = f" of phase {phase!r}" if phase else ""
    return (
        f"the loss of step {it.step}{of} stands out: {it.loss:.4g}, where those before it were "
        f"about {it.usual:.4g} and up to {it.bound:.4g} would have been usual"
    )


def is_of_our_trainer(policy: RestartPolicy, phase: str) -> bool:
    """Whether the program of `phase` is the trainer of this project: only its steps prove
    themselves."""
    return any(each.success.committed for each in policy.phases if each.name == phase)


def advice_in_words(failure: Failure, policy: RestartPolicy, phase: str) -> str:
    """Returns what to do about the failure, without what is for our trainer alone where another
    program runs."""
    if is_of_our_trainer(policy, phase):
        return failure.advice
    return failure.advice.replace(OWN_TRAINER_SKIPS, "").replace(OWN_TRAINER_REPLAYS, "")


def advice_at_end(failure: Failure, state: JobState, policy: RestartPolicy) -> str:
    """Returns what to do about the failure, and where it ended a job whose work is committed, what
    that means."""
    phase = policy.phases[state.phase]
    advice, target = advice_in_words(failure, policy, phase.name), phase.success.step
    is_done = work_is_done(state.budget, state.newest, phase)
    if state.status is not Status.FAILED or not is_done or failure.verdict is Verdict.POLICY:
        return advice  # by policy: the checkpoint itself may be damaged, or have NaN in it
    return (
        f"{advice} Step {target} of `success` is committed: the program failed after it, and what "
        f"it does there belongs to its work. If nothing is missing, use the checkpoint of step "
        f"{state.newest}: the work is done. Else mend the end of the program."
    )


def replay_in_words(
    place: str, policy: RestartPolicy, phase: str, step: int | str | None = None
) -> str | None:
    """Returns the command that runs `step` of `phase` again, in `place` as a shell reads it;
    without a step: the one at which the last failure came. None: the phase runs a command."""
    if not is_of_our_trainer(policy, phase):
        return None
    if step is None:
        return f"supervise replay {place}"
    named = f" --phase {shlex.quote(phase)}" if len(policy.phases) > 1 else ""
    return f"supervise replay {place}{named} --step {step}"


def use_in_words(data_wait: float, mfu: float | None) -> str:
    """Returns how well the devices are used. What a device can do is not known of each kind."""
    known = "not known" if mfu is None else f"{mfu:.1%}"
    return f"waits for data {data_wait:.1%}, MFU {known}"


def straggler_in_words(it: Straggler) -> str:
    """Returns which rank keeps the others waiting, by what, and where to look."""
    return (
        f"rank {it.rank} on {it.host} keeps the others waiting: of a step of {it.step_seconds:.2g} "
        f"s it needs {it.seconds:.2g} s before its devices begin (data and host work), the others "
        f"{it.peers:.2g} s; look at its data, CPU and disk"
    )
