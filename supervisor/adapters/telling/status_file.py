"""Writes status.json: the state of the job, in a small file for readers on other machines."""

from __future__ import annotations

import json

from supervisor.core.policy import RestartPolicy
from supervisor.host.notice import Tell
from supervisor.host.unwritable import UnwritableOnce
from supervisor.narrative.standing import standing
from supervisor.ports import Storage, Transition

STATUS = "status.json"
FORMAT = 1


class StatusFile:
    """Replaces status.json as a whole after each decision and each change of the status."""

    def __init__(self, storage: Storage, policy: RestartPolicy, on_error: Tell) -> None:
        self._storage = storage
        self._policy = policy
        self._file = UnwritableOnce(STATUS, "cannot be written: {}", on_error)

    def observe(self, transition: Transition) -> None:
        """See `ports.Observer`."""
        if not transition.decisions and transition.after.status == transition.before.status:
            return
        now = standing(transition.after, self._policy)
        body = {
            "v": FORMAT,
            "job": now.job,
            "status": now.status,
            "exit_code": now.exit_code,
            "attempt": now.attempt,
            "num_devices": now.num_devices,
            "step": now.highest_committed,
            "time": transition.wall.isoformat(),
        }
        data = json.dumps(body).encode() + b"\n"
        self._file.attempt(lambda: self._storage.replace(STATUS, data))
