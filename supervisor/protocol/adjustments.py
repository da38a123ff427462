"""Adjustments: how the supervisor asks an attempt to deviate from its config.

They are the remedy for a failure that an unchanged attempt would only repeat. Only a worker that
declares that it can adjust (`messages.AdjustableMessage`) is asked to. They come as JSON in
`SUPERVISE_ADJUST`, and hold for one attempt: the next one gets its own.
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
    """Divisor of `max_inflight_computations`."""
    accumulation: int = 1
    """Factor for the gradient accumulation steps; the global batch does not change."""
    skip_steps: tuple[int, ...] = ()
    """Steps whose batch is skipped, in ascending order."""

    def to_environment(self) -> dict[str, str]:
        """Return the worker's environment variable; empty if nothing is to be adjusted."""
        return {} if self == Adjustments() else {ADJUST: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Adjustments:
        """Return what this worker is asked to adjust."""
        asked = json.loads(environ.get(ADJUST, "{}"))
        return cls(
            inflight=int(asked.get(INFLIGHT, 1)),
            accumulation=int(asked.get(ACCUMULATION, 1)),
            skip_steps=tuple(int(step) for step in asked.get(SKIP_STEPS, ())),
        )
