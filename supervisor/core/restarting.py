"""A person wants a fresh attempt: the one that runs saves, and the next one starts at once.

    RestartRequested -> SignalWorkers -> KillWorkers -> WorkersGone -> StartWorkers

Then the group ends like any other (see `ending`), and nothing is charged. A wait before the next
attempt is over. While an attempt ends or starts already, there is nothing to do.
"""

from __future__ import annotations

from supervisor.core.doing import BackingOff, MakesWay, Running, Waiting
from supervisor.core.events import RestartRequested
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
