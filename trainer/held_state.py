"""The state between two steps, as the leaves of its tree.

Each call of a compiled program takes its arguments apart and puts its results together. For flax's
variables that is Python: microseconds for each weight and each moment of the optimizer, at every
step. So the train step takes and returns leaves, and the tree is made when somebody reads it.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from trainer.data import Batch
from trainer.step import Metrics
from trainer.train_state import TrainState, TrainStateSpec

Leaves = list[jax.Array]


@dataclass(frozen=True, slots=True)
class CompiledStep:
    """A compiled step of leaves, which can also be called with a state and tokens."""

    of_leaves: Callable[[Leaves, jax.Array | Batch], tuple[Leaves, Metrics]]
    tree: Any
    """The structure of the state."""

    @classmethod
    def of(cls, spec: TrainStateSpec, of_leaves: Callable[..., Any]) -> CompiledStep:
        """Return the step of states of `spec`."""
        return cls(of_leaves, jax.tree.structure(spec.abstract))

    def __call__(self, state: TrainState, tokens: jax.Array) -> tuple[TrainState, Metrics]:
        """Return the state after one more step, and the step's metrics. The state is donated."""
        leaves, metrics = self.of_leaves(jax.tree.leaves(state), tokens)
        return jax.tree.unflatten(self.tree, leaves), metrics


class HeldState:
    """The newest state."""

    def __init__(self, state: TrainState) -> None:
        """Begin with `state`."""
        self._whole: TrainState | None = state
        self._leaves, self._tree = jax.tree.flatten(state)

    @property
    def whole(self) -> TrainState:
        """The state itself."""
        if self._whole is None:
            self._whole = jax.tree.unflatten(self._tree, self._leaves)
        return self._whole

    @whole.setter
    def whole(self, state: TrainState) -> None:
        self._whole = state
        self._leaves = jax.tree.leaves(state)

    def advance(self, step: CompiledStep, tokens: jax.Array | Batch) -> Metrics:
        """Take one step with the `tokens` of a `BatchSharder`; returns its metrics. The arrays of
        the state before are donated: whoever has read them must not read them again."""
        self._leaves, metrics = step.of_leaves(self._leaves, tokens)
        self._whole = None
        return metrics
