"""Renders transitions of the core as lines of the log: name and keys for tools, text for people.

The sentences are written for somebody who opens run.log at 2 a.m.: what happened, why, what was
done about it, and what is left to do. All functions are pure. `catalogue` lists the events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from supervisor.core.doing import BackingOff, Running, Stopping, Waiting
from supervisor.core.events import (
    CheckpointCommitted,
    CheckpointSetAside,
    CheckpointsFound,
    DeviceFoundWrong,
    DevicesProbed,
    LaunchFailed,
    LossesNotFinite,
    LossSpiked,
    MaintenanceAnnounced,
    Noticed,
    PhaseBegun,
    QuarantineCleared,
    RestartRequested,
    RungCompileFailed,
    SaveRequested,
    SilenceExcused,
    StopRequested,
    StragglerFound,
    SupervisorStarted,
    WorkerReported,
    WorkersGone,
    WorkersObserved,
    WorkersStarted,
)
from supervisor.core.exit_codes import ExitCode
from supervisor.core.policy import RestartPolicy
from supervisor.core.start_folders import is_of_one_start
from supervisor.core.state import JobState
from supervisor.files.attempts import attempt_folder
from supervisor.host.notice import Notice
from supervisor.narrative import device_text, ends
from supervisor.narrative.decision_text import decision_lines, step_in_words
from supervisor.narrative.event_line import MAIN as MAIN
from supervisor.narrative.event_line import Level as Level
from supervisor.narrative.event_line import Line as Line
from supervisor.narrative.event_line import (
    attempt_event,
    budget_keys,
    budget_used,
    count,
    job_event,
)
from supervisor.narrative.failure_text import pids_in_words
from supervisor.narrative.findings import (
    replay_in_words,
    spike_in_words,
    straggler_in_words,
)
from supervisor.narrative.stop_text import no_checkpoint
from supervisor.ports import Transition
from supervisor.protocol.messages import (
    CompiledMessage,
    DevicesMessage,
    EvaluatedMessage,
    NoticeCode,
    NoticeMessage,
    RestoredMessage,
    SigtermMessage,
    Stage,
    StageMessage,
)


def render(transition: Transition, policy: RestartPolicy) -> Iterator[Line]:
    """Yields the lines of a transition: first those of its event, then those of its decisions."""
    teller = _TELLERS.get(type(transition.event))
    if teller is not None:
        yield from teller(transition, transition.event, policy)
    for decision in transition.decisions:
        yield from decision_lines(decision, transition, policy)


def _started(t: Transition, event: SupervisorStarted, policy: RestartPolicy) -> Iterator[Line]:
    names = ", ".join(phase.name for phase in policy.phases)
    listed = [phase.name for phase in policy.phases]
    text = f"job {event.job}; phases: {names}"
    version = event.version or None
    if version is not None:
        text += f"; supervise {version}"
    yield job_event("supervisor-started", text, job=event.job, phases=listed, version=version)
    before = t.before
    if event.attempt > before.attempt:
        first, last = before.attempt + 1, event.attempt
        which = f"attempts {first} to {last} have" if last > first else f"attempt {last} has"
        numbers = "these numbers are" if last > first else "this number is"
        text = f"{which} a folder, but no record: {numbers} not used again"
        yield job_event("attempts-unrecorded", text, "warning", attempt=last)
    if before.attempt == 0:
        if event.committed is not None:
            text = f"there is no journal, but a committed checkpoint of step {event.committed}"
            text += ": training goes on from it"
            yield job_event("checkpoint-without-journal", text, "warning", step=event.committed)
        return
    if not before.status.terminal:
        text = (
            "the previous supervisor left no record of its end: it was killed, its machine was "
            "lost, or it could not write"
        )
        yield job_event("supervisor-lost", text, "warning", attempt=before.attempt)
    if before.exit_code is not None and ExitCode(before.exit_code).for_good:
        text = "the job had failed for good; counts start again at zero"
        yield job_event("counts-reset", text, code=before.exit_code)
    yield from _checkpoints_gone(t, event.committed, policy)
    used = budget_used(t.after, policy)
    highest = t.after.budget.highest
    newest = step_in_words(event.committed, "no checkpoint seen yet", "newest committed step {}")
    kept = step_in_words(highest, newest, "highest committed step {}")
    yield job_event(
        "job-resumed",
        f"so far: {count(before.attempt, 'attempt')}, {used}, {kept}",
        attempts=before.attempt,
        step=event.committed if highest is None else highest,
        **budget_keys(t.after, policy),
    )


def _checkpoints_gone(t: Transition, newest: int | None, policy: RestartPolicy) -> Iterator[Line]:
    """Yields a warning if the checkpoint of the highest committed step is gone; `newest` is the
    newest that is there."""
    highest = t.before.budget.highest
    if highest is None:
        return
    if newest is None:
        text = no_checkpoint(t.before, policy)
    elif newest < highest:
        text = f"the newest checkpoint is of step {newest}"
    else:
        return
    text += f", but step {highest} was committed before: only a step above that is progress"
    yield job_event("checkpoints-gone", text, "warning", step=newest, highest=highest)


def _phase_begun(t: Transition, event: PhaseBegun, policy: RestartPolicy) -> Iterator[Line]:
    if t.after.directory == t.before.directory:
        return
    limits = policy.phases[event.phase]
    place = f"phase {limits.name!r} ({event.phase + 1} of {len(policy.phases)})"
    found = step_in_words(event.committed, "no checkpoint seen yet", "newest committed step {}")
    budget = f"{count(limits.max_num_restarts, 'restart')} allowed without a new checkpoint"
    yield job_event(
        "phase-began",
        f"{place} in {event.directory}: {found}; {budget}",
        phase=limits.name,
        phase_number=event.phase + 1,
        num_phases=len(policy.phases),
        directory=event.directory,
        step=event.committed,
        max_num_restarts=limits.max_num_restarts,
    )


def _workers_started(t: Transition, event: WorkersStarted, policy: RestartPolicy) -> Iterator[Line]:
    if t.before.group is None or t.before.group.attempt != event.attempt:
        return
    pids = pids_in_words(event.pids, t.after.ladder.hosts(policy.phases[t.after.phase]))
    logs = "rank0.log" if len(event.pids) == 1 else "rank*.log"
    place = f"{attempt_folder(event.attempt)}/{logs}"
    text = f"running as pid {pids}; output in {place}"
    placement = t.after.ladder.placement
    yield attempt_event(
        "workers-started",
        event.attempt,
        text,
        pids=list(event.pids),
        standby=event.standby,
        place=place,
        num_devices=placement.num_devices if placement is not None else None,
    )


def _reported(t: Transition, event: WorkerReported, policy: RestartPolicy) -> Iterator[Line]:
    tell = partial(attempt_event, attempt=event.attempt, rank=event.rank)
    match event.message:
        case DevicesMessage(platform, count, kind):
            what = "simulated on the CPU" if platform == "cpu" else kind or platform
            text = f"devices found: {count}, {what}"
            yield tell("devices-found", text=text, num_devices=count, platform=platform, kind=kind)
        case RestoredMessage(step, snapshot=True):
            text = f"resumed from the snapshot of step {step} in memory"
            text += _newest_checkpoint_remark(step, t.before.newest)
            newest = t.before.budget.highest
            yield tell("snapshot-restored", text=text, step=step, newest_committed_step=newest)
        case RestoredMessage(step):
            text = step_in_words(
                step, "starts afresh: no checkpoint", "restored the state of step {}"
            )
            yield tell("state-restored", text=text, step=step)
        case EvaluatedMessage(step, metrics):
            shown = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
            text = f"evaluation after step {step}: {shown}"
            yield tell("evaluated", text=text, step=step, metrics=dict(metrics))
        case NoticeMessage(said, code, step):
            text = f"rank {event.rank}: {said}" if event.rank else said
            name = code if code in _NOTICES else "worker-notice"
            yield tell(
                name,
                text=text,
                level="info" if name in _ROUTINE_NOTICES else "warning",
                code=code or None,
                step=step,
            )
        case SigtermMessage():
            text = f"rank {event.rank} got a SIGTERM that the supervisor did not send"
            yield tell("worker-told-to-stop", text=text, level="warning")
        case CompiledMessage(seconds, name, ""):
            text = f"compiled {name or 'a program'} in {seconds:.1f} s"
            yield tell("program-compiled", text=text, program=name, seconds=seconds)
        case CompiledMessage(seconds, name, where):
            text = f"loaded {name or 'a program'} from {where} in {seconds:.2f} s"
            yield tell("program-loaded", text=text, program=name, seconds=seconds, place=where)
        case StageMessage(stage) if _has_line(event.message, t):
            yield tell("stage-entered", text=f"stage {stage}", stage=stage)


_NOTICES = frozenset(NoticeCode)
_ROUTINE_NOTICES = frozenset({NoticeCode.ROLLOUT_MESH_CHOSEN, NoticeCode.SAVE_INTERVAL_CHOSEN})
"""Those that warn of nothing."""


def _has_line(message: StageMessage, t: Transition) -> bool:
    """True if the log gets a line when a stage begins. A stage whose end has a line, or that comes
    often, gets none."""
    match message.stage:
        case Stage.TRAINING | Stage.EVALUATING:
            return False
        case Stage.SAVING:  # the commit has a line
            return t.after.drains
        case Stage.COMPILING:  # there are hundreds; the long ones have a line when they are done
            return not (message.inferred and _trains(t))
    return True


def _newest_checkpoint_remark(step: int | None, newest: int | None) -> str:
    """Returns a remark on the `newest` committed step beside a snapshot of `step`; empty if it is
    above the snapshot, because then that checkpoint may be damaged or gone."""
    if newest is None:
        return " (there is no checkpoint yet)"
    below = step is not None and newest <= step
    return f" (the newest checkpoint is of step {newest})" if below else ""


def _trains(t: Transition) -> bool:
    return t.before.liveness.stage is Stage.TRAINING


def _committed(t: Transition, event: CheckpointCommitted, policy: RestartPolicy) -> Iterator[Line]:
    before, now = t.before.budget, t.after.budget
    is_later = () != before.epochs != now.epochs
    if t.before.newest == t.after.newest and not is_later:
        return
    epoch = f" of epoch {'/'.join(map(str, event.epochs))}" if event.epochs else ""
    text = f"checkpoint of step {event.step}{epoch} is committed"
    highest = before.highest
    if now.is_base(highest or 0, before.epochs or None):
        text += f": the steps of the program count from here, step {highest} may be a base model's "
        text += "or an earlier run's"
    elif not is_later:
        text += ends.no_progress(event.step, highest)
    forgiven = before.failures - now.failures
    if forgiven:
        text += f": progress, {count(forgiven, 'charged failure')} forgiven"
    yield attempt_event(
        "checkpoint-committed", t.after.attempt, text, step=event.step, forgiven=forgiven
    )


def _checkpoints_found(
    t: Transition, event: CheckpointsFound, policy: RestartPolicy
) -> Iterator[Line]:
    if t.before.checkpoints == t.after.checkpoints:
        return
    text = f"checkpoints found in {event.directory}: a new step there is progress"
    if not is_of_one_start(event.directory):
        text += "; set checkpoint.directory to choose another directory"
    before, now = t.before.budget, t.after.budget
    forgiven = before.failures - now.failures
    if now.begun_in == t.after.attempt and now.latest_epoch != before.latest_epoch:
        text += "; it is of a later epoch, and progress once an attempt goes on there"
    elif now.latest_epoch != before.latest_epoch and before.highest is not None:
        text += "; it is of a later epoch: progress"
        text += f", {count(forgiven, 'charged failure')} forgiven" if forgiven else ""
    yield attempt_event(
        "checkpoints-found", t.after.attempt, text, place=event.directory, forgiven=forgiven
    )


def _checkpoint_set_aside(
    t: Transition, event: CheckpointSetAside, policy: RestartPolicy
) -> Iterator[Line]:
    if t.before.group is None or t.before.attempt != event.attempt:
        return
    goes_on = step_in_words(
        event.newest, "no checkpoint is left", "the attempt begins at the one of step {}"
    )
    advice = "suspect the disk; to use it all the same, move it back"
    yield attempt_event(
        "checkpoint-damaged",
        event.attempt,
        f"the checkpoint of step {event.step} is damaged ({event.reason}): moved to {event.place}; "
        f"{goes_on}. What to do: {advice}",
        "warning",
        step=event.step,
        place=event.place,
        reason=event.reason,
        files=list(event.files),
        newest_committed_step=event.newest,
        advice=advice,
    )


def _observed(t: Transition, event: WorkersObserved, policy: RestartPolicy) -> Iterator[Line]:
    group = t.before.group
    if group is None or group.attempt != event.attempt:
        return
    for ended in event.exits[max(len(group.exits), group.seen) :]:
        yield ends.rank_ended_line(t, ended)


def _stop(t: Transition, event: StopRequested, policy: RestartPolicy) -> Iterator[Line]:
    if t.after.drain != t.before.drain:
        detail = f": {event.detail}" if event.detail else ""
        text, code = f"asked to stop by {event.source}{detail}", event.source.name
        yield job_event("stop-requested", text, "warning", code=code, detail=event.detail)
        if t.after.drain is not None and t.after.drain.begins is not None:
            left = t.after.drain.begins - event.at
            text, took = _trains_on(t.after, left), t.after.longest_save
            yield job_event("stop-postponed", text, seconds=left, longest_save=took)
    elif t.after != t.before:
        text = "asked to stop again: the grace period is shortened"
        yield job_event("stop-hurried", text, "warning", code=event.source.name)


def _restart(t: Transition, event: RestartRequested, policy: RestartPolicy) -> Iterator[Line]:
    match t.before.doing, t.after.doing:
        case Running(), Stopping():
            then = "this one saves and ends, and nothing is charged"
        case BackingOff(), _ if t.decisions:
            then = "the wait for it is over"
        case Waiting(), _ if t.decisions:
            then = "the devices are probed again at once"
        case _ if t.before.drain is not None:
            then = "the job stops, so there will be none"
        case _:
            then = "an attempt starts or ends already, so nothing changes"
    text = f"asked for a fresh attempt by {event.who}: {then}"
    yield job_event("restart-requested", text, "warning", detail=event.who)


def _save(t: Transition, event: SaveRequested, policy: RestartPolicy) -> Iterator[Line]:
    then = "it is asked to save and trains on" if t.decisions else "nothing trains now, so nothing"
    then += "" if t.decisions else " is saved"
    text = f"asked for a checkpoint by {event.who}: {then}"
    yield job_event("save-requested", text, detail=event.who)


def _trains_on(state: JobState, seconds: float) -> str:
    took = f"the longest save so far took {state.longest_save:.1f} s"
    return f"{took}: training goes on for {seconds:.0f} s, and then there is time for another one"


def _excused(t: Transition, event: SilenceExcused, policy: RestartPolicy) -> Iterator[Line]:
    if event.why:
        seconds, why = event.seconds, event.why
        yield job_event("silence-excused", why, "warning", seconds=seconds, reason=why)


def _not_finite(t: Transition, event: LossesNotFinite, policy: RestartPolicy) -> Iterator[Line]:
    group = t.before.group
    if event.times > 1 or group is None or group.attempt != event.attempt:
        return
    kept = step_in_words(
        event.before,
        "no checkpoint from before it is known",
        "the newest checkpoint from before it is of step {}, as far as is seen",
    )
    stays = "the attempt is ended if the losses stay so"
    then = stays if event.finite is not None else "no loss was finite before it"
    text = f"the loss of step {event.since} is NaN or Inf; {kept}; {then}"
    yield attempt_event(
        "loss-not-finite",
        event.attempt,
        text,
        "warning",
        step=event.since,
        newest_committed_step=event.before,
    )


def _notice_lines(t: Transition, event: Noticed, policy: RestartPolicy) -> Iterator[Line]:
    yield notice_line(event.text, "info" if event.routine else "warning")


def notice_line(notice: Notice, level: Level) -> Line:
    """Returns the line of a notice."""
    return Line(notice.event, MAIN, str(notice), level, notice.keys)


def _straggler(t: Transition, event: StragglerFound, policy: RestartPolicy) -> Iterator[Line]:
    if t.before != t.after:
        it = event.straggler
        yield job_event(
            "straggler",
            straggler_in_words(it),
            "warning",
            rank=it.rank,
            host=it.host,
            seconds=it.seconds,
            peers=it.peers,
            step_seconds=it.step_seconds,
        )


def _spiked(t: Transition, event: LossSpiked, policy: RestartPolicy) -> Iterator[Line]:
    if t.before != t.after:
        it, text = event.spike, spike_in_words(event.spike)
        phase = policy.phases[t.before.phase].name
        if (replay := replay_in_words("MODEL_DIR", policy, phase, it.step)) is not None:
            text += f"; `{replay}` shows its batch"
        yield attempt_event(
            "loss-spike",
            event.attempt,
            f"{text}. Training goes on",
            "warning",
            step=it.step,
            loss=it.loss,
            usual=it.usual,
            bound=it.bound,
        )


def _announced(t: Transition, event: MaintenanceAnnounced, policy: RestartPolicy) -> Iterator[Line]:
    yield job_event("maintenance-announced", event.text, "warning", detail=event.text)


_TELLERS: dict[type, Callable[[Transition, Any, RestartPolicy], Iterator[Line]]] = {
    SupervisorStarted: _started,
    PhaseBegun: _phase_begun,
    WorkersStarted: _workers_started,
    WorkerReported: _reported,
    CheckpointCommitted: _committed,
    CheckpointsFound: _checkpoints_found,
    CheckpointSetAside: _checkpoint_set_aside,
    WorkersObserved: _observed,
    WorkersGone: ends.workers_gone_lines,
    LaunchFailed: ends.launch_failed,
    DevicesProbed: device_text.probed,
    RungCompileFailed: device_text.rung_compile_failed,
    QuarantineCleared: device_text.quarantine_cleared,
    StopRequested: _stop,
    RestartRequested: _restart,
    SaveRequested: _save,
    Noticed: _notice_lines,
    MaintenanceAnnounced: _announced,
    SilenceExcused: _excused,
    LossesNotFinite: _not_finite,
    StragglerFound: _straggler,
    DeviceFoundWrong: device_text.found_wrong,
    LossSpiked: _spiked,
}
