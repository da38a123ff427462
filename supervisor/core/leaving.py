"""Hosts are about to go: the attempt saves, and the next one runs on others.

    HostsLeaving -> SignalWorkers -> KillWorkers -> WorkersGone -> ProbeDevices -> StartWorkers

Then the group ends like any other (see `ending`), and nothing is charged. The probe leaves out the
hosts that go: a spare takes their ranks, or the job goes on with a smaller rung, or it waits (see
`capacity_check`). If all hosts go, the engine posts an announced preemption, which ends the job.
"""

from __future__ import annotations

from supervisor.core.doing import MakesWay, Running
from supervisor.core.events import HostsLeaving
from supervisor.core.policy import RestartPolicy
from supervisor.core.state import JobState
from supervisor.core.stopping import grace_to_save
from supervisor.core.transitions import StepResult, signal


def hosts_leaving(state: JobState, event: HostsLeaving, policy: RestartPolicy) -> StepResult:
    """Ask the group to save and to stop, if it runs and was not asked yet. The engine posts the
    event again whenever more hosts go."""
    group = state.doing
    if not isinstance(group, Running) or state.attempt != event.attempt or state.drain is not None:
        return state, ()
    cause, grace = MakesWay(state.newest, event.reason), grace_to_save(state, policy)
    reason = f"{event.reason}: the job saves, and moves off"
    return signal(state, group, reason, event.at, policy, cause, grace)
