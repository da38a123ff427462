"""Workers have ended, and what they started lives: a trainer below a shell, or in the background.

A stop belongs to the attempt, not to its first process: a shell that dies of SIGTERM leaves a
trainer behind that is still to save, and so does a launcher that exits with code 0 on it. And a
command that puts its work into the background exits with code 0 at once: that is no success.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from supervisor.core.doing import Lingering, Running, Stopping, WorkerEnded, Workers
from supervisor.core.ending import ended_well, kill, told_ends
from supervisor.core.moves import Outcome
from supervisor.core.policy import RestartPolicy
from supervisor.core.state import JobState
from supervisor.core.stopping import signal
from supervisor.diagnosis.failure import WorkerExit

_SIGTERM_CODE = 128 + 15
"""The exit code by which a shell tells that its program died of SIGTERM."""


def survive(
    state: JobState, group: Running | Stopping, at: float, policy: RestartPolicy
) -> Outcome:
    """Every worker has ended: the survivors get the time that is theirs, then they are killed."""
    workers = group.workers
    if not workers.survivors:
        return kill(state, group, at, told_ends(workers.exits), policy)
    if isinstance(group, Stopping) and state.ends_group:
        return replace(state, doing=Lingering(workers, group.cause, group.deadline)), ()
    if ended_well(state, workers, policy):
        waits = Lingering(workers, WorkerEnded(), at + policy.survivors_wait)
        return replace(state, doing=waits), ()
    code = policy.phases[state.phase].success.exit_code
    if all(_by_sigterm(ended) or ended.code == code for ended in workers.exits):
        who = "its first process" if len(workers.exits) == 1 else "its workers"
        reason = f"{who} ended on a SIGTERM that the supervisor did not send"
        earlier = group.deadline if isinstance(group, Stopping) else inf
        lingering = Lingering(workers, WorkerEnded(), earlier)
        return signal(state, lingering, reason, at, policy, WorkerEnded())
    return kill(state, group, at, told_ends(workers.exits), policy)


def overdue(state: JobState, workers: Workers, policy: RestartPolicy) -> str:
    """Why survivors whose time is over are killed."""
    if ended_well(state, workers, policy):
        return f"all workers had ended well {policy.survivors_wait:g} s before"
    return "the grace period is over"


def _by_sigterm(ended: WorkerExit) -> bool:
    return ended.told_to_stop or ended.signal == "SIGTERM" or ended.code == _SIGTERM_CODE
