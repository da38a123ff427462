"""status.json: where the job stands, small and in one piece, for a reader elsewhere."""

from __future__ import annotations

import json

from supervisor.core.policy import RestartPolicy
from supervisor.host.notice import Notice, Tell
from supervisor.ports import Storage, Transition

STATUS = "status.json"
FORMAT = 1


class StatusFile:
    """Written anew with each decision."""

    def __init__(self, storage: Storage, policy: RestartPolicy, on_error: Tell) -> None:
        self._storage = storage
        self._policy = policy
        self._on_error = on_error
        self._is_broken = False

    def observe(self, transition: Transition) -> None:
        """See `ports.Observer`."""
        state = transition.after
        if not transition.decisions and state.status == transition.before.status:
            return
        body = {
            "v": FORMAT,
            "job": state.job,
            "status": state.status,
            "exit_code": state.exit_code,
            "attempt": state.attempt,
            "num_devices": state.ladder.num_devices(self._policy.phases[state.phase]),
            "step": state.budget.highest,
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
