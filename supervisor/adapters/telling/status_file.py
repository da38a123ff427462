"""Writes status.json: the state of the job, in a small file for readers on other machines."""

from __future__ import annotations

import json

from supervisor.core.policy import RestartPolicy
from supervisor.host.notice import Notice, Tell
from supervisor.narrative.standing import standing
from supervisor.ports import Storage, Transition

STATUS = "status.json"
FORMAT = 1


class StatusFile:
    """Replaces status.json as a whole after each decision and each change of the status."""

    def __init__(self, storage: Storage, policy: RestartPolicy, on_error: Tell) -> None:
        self._storage = storage
        self._policy = policy
        self._on_error = on_error
        self._is_broken = False

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
        try:
            self._storage.replace(STATUS, json.dumps(body).encode() + b"\n")
            self._is_broken = False
        except OSError as error:
            if not self._is_broken:
                self._on_error(
                    Notice(
                        "file-unwritable",
                        f"{STATUS} cannot be written: {error.strerror or error}",
                        place=STATUS,
                        reason=error.strerror,
                    )
                )
            self._is_broken = True
