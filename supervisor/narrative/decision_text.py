"""Renders decisions of the core: what is done now, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, assert_never

from supervisor.core.decisions import (
    AskToSave,
    BeginPhase,
    CancelLaunch,
    Decision,
    DumpStacks,
    FinishJob,
    KillWorkers,
    ProbeDevices,
    SignalWorkers,
    StartWorkers,
    TellLivelock,
    TellRecovery,
    TellStages,
    Wait,
)
from supervisor.core.events import LaunchCancelled, SupervisorStarted, WorkersGone
from supervisor.core.exit_codes import ExitCode
from supervisor.core.policy import RestartPolicy
from supervisor.core.state import Status
from supervisor.diagnosis.failure import told_survivors
from supervisor.narrative import device_text
from supervisor.narrative.event_line import Level, Line, attempt_event, job_event
from supervisor.narrative.failure_text import record
from supervisor.narrative.findings import advice_at_end, finding_lines
from supervisor.ports import Transition

_SAY_WHERE = (
    "If the program saves checkpoints, the warning about them says why none of them counts. If it "
    "names no reason, name their folder: --set trainer.init.checkpoint.directory=FOLDER."
)


def decision_lines(decision: Decision, t: Transition, policy: RestartPolicy) -> Iterator[Line]:
    """Yields the lines of one decision of a transition."""
    state = t.after
    match decision:
        case StartWorkers(attempt, _, reason):
            start = _start_in_words(decision, t, policy)
            where = device_text.where(decision, policy)
            yield job_event(
                "attempt-started",
                f"starting attempt {attempt} {start}{where} ({reason})",
                attempt=attempt,
                phase=policy.phases[decision.phase].name,
                step=state.newest,
                num_devices=decision.num_devices,
                max_num_devices=device_text.full_rung(policy.phases[decision.phase]),
                units=list(decision.units),
                reason=reason,
            )
        case ProbeDevices():
            yield from device_text.probing_lines(decision, t, policy)
        case BeginPhase(phase, reason):
            yield job_event(
                "phase-starting", reason, phase=policy.phases[phase].name, reason=reason
            )
        case DumpStacks() | SignalWorkers() | KillWorkers():
            yield from _order_lines(decision, t)
        case Wait(seconds, reason) if state.capacity_check is not None:
            text = f"{reason}; probing again in {seconds:.1f} s"
            yield job_event("capacity-awaited", text, "warning", seconds=seconds, reason=reason)
        case Wait(seconds, reason):
            text = f"waiting {seconds:.1f} s before attempt {state.attempt + 1}"
            after = state.attempt + 1
            yield job_event("backoff", text, seconds=seconds, next_attempt=after, reason=reason)
        case TellRecovery() | TellLivelock():
            yield from finding_lines(decision, t.after.checkpoints)
        case TellStages() | CancelLaunch() | AskToSave():
            pass  # it is only for readers of the journal
        case FinishJob():
            yield from _end_lines(decision, t, policy)
        case unknown:
            assert_never(unknown)


def _start_in_words(start: StartWorkers, t: Transition, policy: RestartPolicy) -> str:
    """Returns where an attempt goes on, as far as that is known."""
    newest, event = t.after.newest, t.event
    if newest is None:
        is_sure = start.attempt == 1 or policy.phases[start.phase].success.committed
        return "from the beginning" if is_sure else "from the beginning, as far as is seen"
    is_last = not isinstance(event, WorkersGone) or event.unproven is None
    return f"from committed step {newest}" if is_last else f"from committed step {newest} or later"


def _end_lines(end: FinishJob, t: Transition, policy: RestartPolicy) -> Iterator[Line]:
    """Yields lines that say how the job ended, and what a person should do."""
    status, code, reason = end.status, end.exit_code, end.reason
    level: Level = "error" if status is Status.FAILED else "info"
    word = code.name if status is Status.DRAINED else status
    text = f"{word}, exit code {code:d}: {reason}"
    failure = t.after.last_failure if status is Status.FAILED else None
    kept = record(failure) if failure is not None else None
    yield job_event(
        "job-ended", text, level, status=status, code=int(code), reason=reason, failure=kept
    )
    advice = device_text.capacity_advice(t, policy)
    if advice is not None:
        yield job_event(
            "advice", f"what to do: {advice}", level, code="wait-for-capacity", advice=advice
        )
    elif failure is not None:
        advice = advice_at_end(failure, t.after, policy)
        finds = policy.phases[t.after.phase].finds_checkpoints
        if code is ExitCode.BUDGET_SPENT and finds and t.after.budget.highest is None:
            advice += f" {_SAY_WHERE}"
        yield job_event("advice", f"what to do: {advice}", level, code=failure.rule, advice=advice)


def _order_lines(order: DumpStacks | SignalWorkers | KillWorkers, t: Transition) -> Iterator[Line]:
    """Yields the line that a running group gets a signal, is killed, or dumps its stacks.

    A kill has a line only if there is anybody to kill, or if no worker's exit is known yet. The
    kill by which a new supervisor makes sure that nothing is left of the last attempt has none:
    `leftovers-killed` names what was left. Nor has that of an attempt without a worker yet.
    """
    match order:
        case DumpStacks(attempt, reason):
            text = f"hang: {reason}; dumping the stacks of all ranks"
            yield attempt_event(
                "hang-detected", attempt, text, "error", **stage_keys(t), reason=reason
            )
        case SignalWorkers(attempt, reason, interrupt):
            assert t.after.due is not None
            left = max(0.0, t.after.due - t.event.at)
            what = "SIGTERM or SIGINT" if interrupt else "SIGTERM"
            text = f"sent {what} ({reason}); SIGKILL after {left:.4g} s"
            yield attempt_event(
                "workers-told-to-stop", attempt, text, "warning", seconds=left, reason=reason
            )
        case KillWorkers(attempt, exits, reason):
            group = t.after.group
            survivors = group.survivors if group is not None and group.lingers else ()
            workers = group.live_pids if group is not None and not group.abandoned else ()
            is_precaution = isinstance(t.event, SupervisorStarted | LaunchCancelled)
            if not is_precaution and (survivors or workers or not exits):
                named = f"; still there: {told_survivors(survivors)}" if survivors else ""
                whom = f" (pid {', '.join(map(str, workers))})" if workers else ""
                text = f"killing the remaining processes{whom}: {reason}{named}"
                pids = [*workers, *(each.pid for each in survivors)]
                yield attempt_event(
                    "workers-killed", attempt, text, "warning", pids=pids, reason=reason
                )


def stage_keys(t: Transition) -> dict[str, Any]:
    """Returns the last stage and step of the attempt, as keys of an event."""
    return {"stage": t.before.liveness.stage, "step": t.before.liveness.step}


def step_in_words(step: int | None, without: str, text: str) -> str:
    """Returns `text` with the step in it; `without` if no step is known."""
    return without if step is None else text.format(step)
