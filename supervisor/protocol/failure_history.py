"""How often the job has failed so far: the supervisor tells a worker in `SUPERVISE_FAILURES`.

Only the supervisor outlives the failures, so only it can count them. A worker may choose by it how
much work it risks, such as the time between two checkpoints.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from supervisor.protocol.environment import FAILURES


@dataclass(frozen=True, slots=True)
class FailureHistory:
    """The failures of a job in all its attempts so far, and the time in which they came."""

    failures: int = 0
    """Attempts that ended without being asked to, or were lost with their supervisor."""
    seconds: float = 0.0
    """How long workers have run. Of an attempt that was lost with its supervisor, only the time
    until its last new checkpoint is known."""

    def to_environment(self) -> dict[str, str]:
        """Return the worker's environment variable; empty if the job has no past."""
        return {} if self == FailureHistory() else {FAILURES: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> FailureHistory:
        """Return what this worker was told; an empty history if it was told nothing."""
        told = json.loads(environ.get(FAILURES, "{}"))
        return cls(int(told.get("failures", 0)), float(told.get("seconds", 0.0)))
