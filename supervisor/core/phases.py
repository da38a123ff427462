"""Transitions between phases. Each phase has a directory and counts of its own."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core.budget import Budget
from supervisor.core.decisions import BeginPhase
from supervisor.core.doing import Beginning, Succeeded
from supervisor.core.events import PhaseBegun
from supervisor.core.guesses import Guesses
from supervisor.core.ladder import Ladder
from supervisor.core.livelock import Livelock
from supervisor.core.policy import RestartPolicy
from supervisor.core.recovery import Recovery
from supervisor.core.remediation import Remediation
from supervisor.core.state import JobState
from supervisor.core.transitions import StepResult, drained, finish, go_on


def begin(state: JobState, reason: str, at: float, policy: RestartPolicy) -> StepResult:
    """Begin the phase if it has no directory yet, else go on to the next attempt."""
    if state.directory is None:
        state = replace(state, doing=Beginning(deadline=at + policy.confirm_interval))
        return state, (BeginPhase(state.phase, reason, state.checkpoints, state.checkpoint_kinds),)
    return go_on(state, reason, at, policy)


def phase_begun(state: JobState, event: PhaseBegun, policy: RestartPolicy) -> StepResult:
    """The phase has its directory: start its first attempt."""
    if event.phase != state.phase or state.directory is not None:
        return state, ()
    state = state.found(event.committed, event.at)
    state = replace(state, directory=event.directory)
    if state.drain is not None:
        return drained(state, state.drain)
    name = policy.phases[event.phase].name
    return go_on(state, f"phase {name!r} starts", event.at, policy)


def phase_succeeded(state: JobState, at: float, policy: RestartPolicy, why: str = "") -> StepResult:
    """The phase succeeded: begin the next one, or end the job after the last.

    `why` says more about it; empty: there is no more to say.
    """
    name = policy.phases[state.phase].name
    told = f"; {why}" if why else ""
    if state.phase + 1 < len(policy.phases):
        if state.drain is None:
            return next_phase(state, f"phase {name!r} succeeded{told}", at, policy)
        return drained(_in_phase(state, state.phase + 1, policy), state.drain)
    success = policy.phases[state.phase].success
    reason = f"phase {name!r} succeeded" if len(policy.phases) > 1 else "the job succeeded"
    return finish(state, Succeeded(success.step, success.is_proof), f"{reason}{told}")


def next_phase(state: JobState, reason: str, at: float, policy: RestartPolicy) -> StepResult:
    """Begin the phase after this one."""
    return begin(_in_phase(state, state.phase + 1, policy), reason, at, policy)


def begin_anew(state: JobState, at: float, policy: RestartPolicy) -> StepResult:
    """Run the whole job again with fresh counts. Checkpoints stay, with the directories where they
    were found, and attempt numbers go on."""
    reason = "the job had succeeded by its exit code alone, which is not final: it runs again"
    return begin(_in_phase(state, 0, policy), reason, at, policy)


def _in_phase(state: JobState, number: int, policy: RestartPolicy) -> JobState:
    short = state.ladder.doubtful or state.ladder.is_shrunk(policy.phases[state.phase])
    finds = policy.phases[number].finds_checkpoints
    most = max(len(state.known_checkpoints), state.phase + 1)
    return replace(
        state,
        phase=number,
        directory=None,
        checkpoints=state.checkpoints_of(number) if finds else None,
        checkpoint_kinds=state.checkpoint_kinds if number == state.phase else (),
        known_checkpoints=tuple(state.checkpoints_of(phase) for phase in range(most)),
        newest=None,
        budget=Budget(),
        livelock=Livelock(),
        remediation=Remediation(),
        guesses=Guesses(),
        ladder=Ladder(doubtful=short),
        recovery=Recovery(),
        longest_save=None,
        loss_spikes=(),
        last_failure=None,
    )
