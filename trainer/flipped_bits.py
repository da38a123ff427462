"""Simulated devices that flip bits, for drills and tests: the step as such devices compute it."""

# mypy: allow-untyped-calls
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import jax

from supervisor.protocol.simulated import HeldDevices
from trainer.held_state import CompiledStep
from trainer.step import jit_step_of_leaves
from trainer.train_state import TrainStateSpec


class FlippedBits:
    """Which devices of a mesh flip bits at present, and what the step is with them."""

    def __init__(self, spec: TrainStateSpec, held: HeldDevices) -> None:
        self._spec = spec
        self._held = held

    def devices(self) -> tuple[jax.Device, ...]:
        """Return those of this process: each simulates its own. (A flip needs bitwise mode.)"""
        if not self._spec.config.is_bitwise:
            return ()
        return tuple(jax.local_devices()[place] for place in self._held.flipping)

    def is_drill(self) -> bool:
        """Whether any device of the job flips bits at present, also of another process."""
        return self._held.is_one_flipping

    def train_step(self, healthy: CompiledStep) -> CompiledStep:
        """Return the step of these devices; `healthy` is that of healthy ones."""

        @lru_cache
        def compiled(devices: tuple[jax.Device, ...]) -> Callable[..., Any]:
            in_mesh = list(self._spec.mesh.devices.flat)
            places = tuple(in_mesh.index(device) for device in devices if device in in_mesh)
            if not places:
                return healthy.of_leaves
            faulty: Callable[..., Any] = jit_step_of_leaves(
                replace(self._spec, wrong_places=places)
            )
            return faulty

        return replace(healthy, of_leaves=lambda *given: compiled(self.devices())(*given))
