"""A person wants a fresh attempt, or a checkpoint of the one that runs.

    RestartRequested -> SignalWorkers -> KillWorkers -> WorkersGone -> StartWorkers
    SaveRequested -> AskToSave

For a fresh attempt the group saves and ends like any other (see `ending`), the next one starts at
once, and nothing is charged. A wait before the next attempt is over. A checkpoint is an ordinary
one: `CheckpointCommitted` tells of it, and the group trains on. While an attempt ends or starts,
there is nothing to do for either.
"""

from __future__ import annotations

from supervisor.core.decisions import AskToSave
from supervisor.core.doing import BackingOff, MakesWay, Running, Waiting
from supervisor.core.events import RestartRequested, SaveRequested
from supervisor.core.policy import RestartPolicy
from supervisor.core.state import JobState
from supervisor.core.transitions import StepResult, go_on, probe, signal


def restart_requested(
    state: JobState, event: RestartRequested, policy: RestartPolicy
) -> StepResult:
    """Ask the group to save and to stop, or end the wait for the next attempt."""
    if state.drain is not None:
        return state, ()
    reason = f"{event.who} asked for a fresh attempt"
    match state.doing:
        case Running() as group:
            cause = MakesWay(state.newest, restarts=reason)
            return signal(state, group, f"{reason}: it saves", event.at, policy, cause)
        case BackingOff():
            return go_on(state, reason, event.at, policy)
        case Waiting(_, _, since, missing):
            return probe(state, reason, event.at, policy, short_since=since, missing=missing)
        case _:
            return state, ()


def save_requested(state: JobState, event: SaveRequested, policy: RestartPolicy) -> StepResult:
    """Ask the workers to save, if they train."""
    if not isinstance(state.doing, Running) or state.drain is not None or state.directory is None:
        return state, ()
    return state, (AskToSave(state.attempt, state.directory, event.who),)
