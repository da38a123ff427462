"""Adjustments: what the supervisor asks an attempt to do otherwise than its config says.

They answer a failure that trying again as before would only repeat. A worker that can obey says so
(`messages.AdjustableMessage`); nobody else is asked to. They come in `SUPERVISE_ADJUST` as JSON and
hold for this attempt alone: the next one is told anew.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from supervisor.protocol.environment import ADJUST

INFLIGHT = "inflight"
ACCUMULATION = "accumulation"
SKIP_STEPS = "skip_steps"


@dataclass(frozen=True, slots=True)
class Adjustments:
    """How an attempt differs from the config."""

    inflight: int = 1
    """What `max_inflight_computations` is divided by."""
    accumulation: int = 1
    """What gradient accumulation is multiplied by; the global batch stays."""
    skip_steps: tuple[int, ...] = ()
    """Steps whose batch is passed over, in ascending order."""

    def to_environment(self) -> dict[str, str]:
        """The variable that says this to a worker; nothing where all is as configured."""
        return {} if self == Adjustments() else {ADJUST: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Adjustments:
        """What this worker is asked to adjust."""
        asked = json.loads(environ.get(ADJUST, "{}"))
        return cls(
            inflight=int(asked.get(INFLIGHT, 1)),
            accumulation=int(asked.get(ACCUMULATION, 1)),
            skip_steps=tuple(int(step) for step in asked.get(SKIP_STEPS, ())),
        )
