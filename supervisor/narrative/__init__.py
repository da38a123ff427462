"""What a person reads: each turn of the decision core in plain sentences.

Written for somebody who opens run.log at 2 a.m.: what happened, why, what was done about it, and
what is left to do. Pure: from a transition to lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from supervisor.core.budget import Charge
from supervisor.core.decisions import (
    BeginPhase,
    DumpStacks,
    FinishJob,
    KillWorkers,
    ProbeDevices,
    SignalWorkers,
    StartWorkers,
    TellLivelock,
    TellRecovery,
    Wait,
)
from supervisor.core.events import (
    CheckpointCommitted,
    DevicesProbed,
    LaunchFailed,
    MaintenanceAnnounced,
    Noticed,
    PhaseBegun,
    QuarantineCleared,
    RungCompileFailed,
    SilenceExcused,
    StopRequested,
    StopSource,
    SupervisorStarted,
    WorkerReported,
    WorkersGone,
    WorkersObserved,
    WorkersStarted,
)
from supervisor.core.exit_codes import ExitCode
from supervisor.core.policy import RestartPolicy
from supervisor.core.state import JobState, Status
from supervisor.diagnosis.failure import told_survivors
from supervisor.narrative import devices
from supervisor.narrative.failures import at, doubted, end_of_traceback, verdict
from supervisor.narrative.findings import found
from supervisor.narrative.line import MAIN as MAIN
from supervisor.narrative.line import Level as Level
from supervisor.narrative.line import Line as Line
from supervisor.narrative.line import attempt_source as attempt_source
from supervisor.narrative.line import budget_used, count
from supervisor.narrative.stops import notice_used, stopped
from supervisor.ports import Transition
from supervisor.protocol.attempts import attempt_folder
from supervisor.protocol.messages import (
    CompiledMessage,
    DevicesMessage,
    EvaluatedMessage,
    NoticeMessage,
    RestoredMessage,
    SigtermMessage,
    Stage,
    StageMessage,
)


def tell(transition: Transition, policy: RestartPolicy) -> Iterator[Line]:
    """The lines that a transition is worth."""
    teller = _TELLERS.get(type(transition.event))
    if teller is not None:
        yield from teller(transition, transition.event, policy)
    for decision in transition.decisions:
        yield from _tell_decision(decision, transition, policy)


def status_line(state: JobState, policy: RestartPolicy) -> str:
    """Where the job stands, in one line."""
    parts = [f"{state.status}: phase {policy.phases[state.phase].name!r}"]
    if state.attempt:
        parts.append(f"attempt {state.attempt}")
    if state.liveness.stage is not None:
        parts.append(str(state.liveness.stage))
    if state.liveness.step is not None:
        parts.append(f"step {state.liveness.step}")
    phase = policy.phases[state.phase]
    if state.ladder.is_shrunk(phase):
        parts.append(f"on {state.ladder.num_devices(phase)} of {phase.rungs[0]} devices")
    parts.append(_step(state.budget.highest, "no checkpoint yet", "last checkpoint: step {}"))
    return ", ".join(parts)


def _tell_decision(decision: Any, t: Transition, policy: RestartPolicy) -> Iterator[Line]:
    state = t.after
    match decision:
        case StartWorkers(attempt, _, reason):
            start = _step(state.budget.highest, "from the beginning", "from committed step {}")
            where = devices.where(decision, policy)
            yield Line(MAIN, f"starting attempt {attempt} {start}{where} ({reason})")
        case ProbeDevices():
            yield Line(MAIN, devices.look(decision, policy))
        case BeginPhase(_, reason):
            yield Line(MAIN, reason)
        case DumpStacks() | SignalWorkers() | KillWorkers():
            yield from _tell_order(decision, t)
        case Wait(seconds, reason) if state.placing is not None:
            yield Line(MAIN, f"{reason}; looking again in {seconds:.1f} s", "warning")
        case Wait(seconds, _):
            text = f"waiting {seconds:.1f} s before attempt {state.attempt + 1}"
            yield Line(MAIN, text)
        case TellRecovery() | TellLivelock():
            yield from found(decision)
        case FinishJob(status, code, reason):
            level: Level = "error" if status is Status.FAILED else "info"
            yield Line(MAIN, f"{status}, exit code {code:d}: {reason}", level)
            if status is Status.FAILED and state.last_failure is not None:
                yield Line(MAIN, f"what to do: {state.last_failure.advice}", level)


def _tell_order(order: DumpStacks | SignalWorkers | KillWorkers, t: Transition) -> Iterator[Line]:
    """What a group that runs is told, or suffers."""
    match order:
        case DumpStacks(attempt, reason):
            text = f"{reason}: a hang; its stacks are dumped"
            yield Line(attempt_source(attempt), text, "error")
        case SignalWorkers(attempt, reason):
            assert t.after.due is not None
            left = t.after.due - t.event.at
            text = f"sent SIGTERM ({reason}); SIGKILL after {left:.4g} s"
            yield Line(attempt_source(attempt), text, "warning")
        case KillWorkers(attempt, exits, reason):
            group = t.after.group
            survivors = group.survivors if group is not None and group.lingers else ()
            if survivors or not exits:
                named = f"; still there: {told_survivors(survivors)}" if survivors else ""
                text = f"killing what is left of it: {reason}{named}"
                yield Line(attempt_source(attempt), text, "warning")


def _step(step: int | None, without: str, text: str) -> str:
    return without if step is None else text.format(step)


def _started(t: Transition, event: SupervisorStarted, policy: RestartPolicy) -> Iterator[Line]:
    names = ", ".join(phase.name for phase in policy.phases)
    yield Line(MAIN, f"job {event.job}; phases: {names}")
    before = t.before
    if before.attempt == 0:
        if event.committed is not None:
            text = f"there is no journal, but a committed checkpoint of step {event.committed}"
            yield Line(MAIN, f"{text}: training goes on from it")
        return
    if not before.status.terminal:
        text = "the supervisor before this one ended without a word (killed, or the machine went)"
        yield Line(MAIN, text, "warning")
    if before.exit_code is not None and ExitCode(before.exit_code).for_good:
        yield Line(MAIN, "the job had failed for good; counts start again at zero")
    used = budget_used(t.after, policy)
    highest = _step(t.after.budget.highest, "no checkpoint yet", "highest committed step {}")
    yield Line(MAIN, f"so far: {count(before.attempt, 'attempt')}, {used}, {highest}")


def _phase_begun(t: Transition, event: PhaseBegun, policy: RestartPolicy) -> Iterator[Line]:
    limits = policy.phases[event.phase]
    place = f"phase {limits.name!r} ({event.phase + 1} of {len(policy.phases)})"
    found = _step(event.committed, "no checkpoint yet", "newest committed step {}")
    budget = f"{count(limits.max_num_restarts, 'restart')} allowed without a new checkpoint"
    yield Line(MAIN, f"{place} in {event.directory}: {found}; {budget}")


def _workers_started(t: Transition, event: WorkersStarted, policy: RestartPolicy) -> Iterator[Line]:
    pids = ", ".join(str(pid) for pid in event.pids)
    logs = "rank0.log" if len(event.pids) == 1 else "rank*.log"
    text = f"running as pid {pids}; output in {attempt_folder(event.attempt)}/{logs}"
    yield Line(attempt_source(event.attempt), text)


def _reported(t: Transition, event: WorkerReported, policy: RestartPolicy) -> Iterator[Line]:
    source = attempt_source(event.attempt)
    match event.message:
        case DevicesMessage(platform, count, kind):
            what = "simulated on the CPU" if platform == "cpu" else kind or platform
            yield Line(source, f"devices found: {count}, {what}")
        case RestoredMessage(step, snapshot=True):
            text = f"resumed from the snapshot of step {step} in memory"
            yield Line(source, text + _newest_below(step, t.before.budget.highest))
        case RestoredMessage(step):
            text = _step(step, "starts afresh: no checkpoint", "restored the state of step {}")
            yield Line(source, text)
        case EvaluatedMessage(step, metrics):
            shown = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
            yield Line(source, f"evaluation after step {step}: {shown}")
        case NoticeMessage() | SigtermMessage() as message:
            yield Line(source, _warning(message, event.rank), "warning")
        case CompiledMessage(seconds, name, ""):
            yield Line(source, f"compiled {name or 'a program'} in {seconds:.1f} s")
        case CompiledMessage(seconds, name, where):
            yield Line(source, f"loaded {name or 'a program'} from {where} in {seconds:.2f} s")
        case StageMessage(stage) if _is_told(event.message, t):
            yield Line(source, f"stage {stage}")


def _warning(message: NoticeMessage | SigtermMessage, rank: int) -> str:
    if isinstance(message, SigtermMessage):
        return f"rank {rank} got a SIGTERM that the supervisor did not send"
    return f"rank {rank}: {message.text}" if rank else message.text


def _is_told(message: StageMessage, t: Transition) -> bool:
    """Whether a person wants to know of a stage; not where its end is told, or it comes often."""
    match message.stage:
        case Stage.TRAINING | Stage.EVALUATING:
            return False
        case Stage.SAVING:  # the commit is told
            return t.after.drains
        case Stage.COMPILING:  # there are hundreds; the long ones are told when they are done
            return not (message.inferred and _trains(t))
    return True


def _newest_below(step: int | None, highest: int | None) -> str:
    """What else could have been resumed from; nothing where that may be damaged or gone."""
    if highest is None:
        return " (there is no checkpoint yet)"
    below = step is not None and highest <= step
    return f" (the newest checkpoint is of step {highest})" if below else ""


def _trains(t: Transition) -> bool:
    return t.before.liveness.stage is Stage.TRAINING


def _committed(t: Transition, event: CheckpointCommitted, policy: RestartPolicy) -> Iterator[Line]:
    if t.before.budget == t.after.budget:
        return
    text = f"checkpoint of step {event.step} is committed"
    if t.before.budget.failures:
        text += f": progress, {count(t.before.budget.failures, 'charged failure')} forgiven"
    yield Line(attempt_source(t.after.attempt), text)


def _observed(t: Transition, event: WorkersObserved, policy: RestartPolicy) -> Iterator[Line]:
    group = t.before.group
    if group is None or group.attempt != event.attempt:
        return
    for ended in event.exits[max(len(group.exits), group.seen) :]:
        doing = t.before.liveness
        where = f" in stage {doing.stage}" if doing.stage is not None else ""
        where += _step(doing.step, "", " after step {}")
        level: Level = "info" if ended.clean else "warning"
        yield Line(attempt_source(event.attempt), f"rank {ended.rank} ended: {ended}{where}", level)


def _gone(t: Transition, event: WorkersGone, policy: RestartPolicy) -> Iterator[Line]:
    if t.before.group is None or t.before.group.attempt != event.attempt:
        return
    source = attempt_source(event.attempt)
    highest = t.before.budget.highest
    if event.committed is not None and (highest is None or event.committed > highest):
        yield Line(source, f"checkpoint of step {event.committed} was committed")
    drain = t.before.drain
    if drain is not None and drain.source is StopSource.PREEMPTION and not _is_done(t):
        if drain.begins is None:  # else nobody has asked for a save yet
            yield notice_used(t, event, drain, policy)
    elif t.before.ends_group and not _is_done(t):
        yield Line(source, stopped(t, event, t.before.group.saved))
    if event.doubt is not None and _is_done(t):
        yield Line(source, doubted(event.doubt), "warning")
    if event.failure is None or t.before.group.abandoned or t.before.drains:
        return
    several = (t.before.group.world_size or 1) > 1
    yield from _failed(source, t.after, policy, several=several)


def _is_done(t: Transition) -> bool:
    """Whether the work of the phase is."""
    return t.after.status is Status.SUCCEEDED or t.after.phase != t.before.phase


def _launch_failed(t: Transition, event: LaunchFailed, policy: RestartPolicy) -> Iterator[Line]:
    yield from _failed(attempt_source(event.attempt), t.after, policy)


def _failed(
    source: str, state: JobState, policy: RestartPolicy, *, several: bool = False
) -> Iterator[Line]:
    failure = state.last_failure
    assert failure is not None
    rank = f" (rank {failure.rank})" if several else ""
    text = f"failed: {failure.cause}; root cause: {failure.root_cause}{rank}{at(failure)}"
    yield Line(source, text, "error")
    for line in end_of_traceback(failure.traceback):
        yield Line(source, f"| {line}", "error", line if failure.rank == 0 else None)
    yield from verdict(source, state)
    limit = state.budget.repetition_limit(policy.phases[state.phase])
    if (repeated := state.budget.repetitions(failure.signature)) and limit:
        text = f"signature {failure.signature}: seen {count(repeated, 'time')} since the last"
        yield Line(source, f"{text} progress; {limit} times end the job")
    if not state.status.terminal:
        again = " if it comes again" if failure.is_guess else ""
        yield Line(source, f"what to do{again}: {failure.advice}")
        suspected = state.placing is not None and state.placing.suspect is not None
        if failure.charge is not Charge.NOTHING and not suspected:
            yield Line(MAIN, budget_used(state, policy))


def _stop(t: Transition, event: StopRequested, policy: RestartPolicy) -> Iterator[Line]:
    if t.after.drain != t.before.drain:
        detail = f": {event.detail}" if event.detail else ""
        yield Line(MAIN, f"asked to stop by {event.source}{detail}", "warning")
        if t.after.drain is not None and t.after.drain.begins is not None:
            yield Line(MAIN, _trains_on(t.after, t.after.drain.begins - event.at))
    elif t.after != t.before:
        yield Line(MAIN, "asked to stop again: the grace period is shortened", "warning")


def _trains_on(state: JobState, seconds: float) -> str:
    took = f"the longest save so far took {state.longest_save:.1f} s"
    return f"{took}: training goes on for {seconds:.0f} s, and then there is time for another one"


def _excused(t: Transition, event: SilenceExcused, policy: RestartPolicy) -> Iterator[Line]:
    if event.why:
        yield Line(MAIN, event.why, "warning")


def _noticed(t: Transition, event: Noticed, policy: RestartPolicy) -> Iterator[Line]:
    yield Line(MAIN, event.text) if event.routine else Line(MAIN, event.text, "warning")


def _announced(t: Transition, event: MaintenanceAnnounced, policy: RestartPolicy) -> Iterator[Line]:
    yield Line(MAIN, event.text, "warning")


_TELLERS: dict[type, Callable[[Transition, Any, RestartPolicy], Iterator[Line]]] = {
    SupervisorStarted: _started,
    PhaseBegun: _phase_begun,
    WorkersStarted: _workers_started,
    WorkerReported: _reported,
    CheckpointCommitted: _committed,
    WorkersObserved: _observed,
    WorkersGone: _gone,
    LaunchFailed: _launch_failed,
    DevicesProbed: devices.probed,
    RungCompileFailed: devices.rung_compile_failed,
    QuarantineCleared: devices.quarantine_cleared,
    StopRequested: _stop,
    Noticed: _noticed,
    MaintenanceAnnounced: _announced,
    SilenceExcused: _excused,
}
