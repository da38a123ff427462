"""Learning from preferences (DPO; Rafailov et al., 2023): of two completions of a prompt, one is
chosen and one rejected.

A completion's implicit reward is beta times how much more likely the model makes it than the
reference does: the model as it was at step 0, without adapters. The loss of a pair is
-log sigmoid(reward of the chosen one - reward of the rejected one): log 2 at step 0.

An example is a row of twice the length: the sequence with the chosen completion, then that with the
rejected one. So a pair is never cut, however the batch is.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from trainer.objective import Losses, token_ids


@dataclass(frozen=True, slots=True)
class DirectPreference:
    """The chosen completion is to become more likely than the rejected one."""

    beta: float
    """How strongly the model is held to the reference."""
    trainable: Any = nnx.Param
    name: str = "direct preference"
    rows: int = 2
    metrics: tuple[str, ...] = ("reward_margin", "reward_accuracy")
    reads_reference: bool = True
    rollout: None = None

    def width(self, length: int) -> int:
        """See `Objective`."""
        return self.rows * (length + 1)

    def sequences(self, tokens: Any) -> Any:
        """See `Objective`."""
        return tokens.reshape(self.rows * len(tokens), -1)

    def documents(self, tokens: jax.Array) -> jax.Array | None:
        """See `Objective`."""
        return None

    def losses(self, logits: jax.Array, reference: jax.Array | None, tokens: jax.Array) -> Losses:
        """See `Objective`. Metrics by pair: `reward_margin`, and `reward_accuracy`: 1 where the
        chosen completion has the higher reward."""
        assert reference is not None
        targets = self.sequences(tokens)[:, 1:]
        ratio = _log_likelihood(logits, targets) - _log_likelihood(reference, targets)
        chosen, rejected = jnp.moveaxis(ratio.reshape(-1, self.rows), 1, 0)
        margin = self.beta * (chosen - rejected)
        measured = {
            "reward_margin": margin,
            "reward_accuracy": (margin > 0).astype(jnp.float32),
        }
        return -jax.nn.log_sigmoid(margin), measured

    def num_targets(self, tokens: jax.Array) -> jax.Array | None:
        """See `Objective`. Each pair counts alike."""
        return None


def _log_likelihood(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Return the logarithm of the probability of each sequence's completion, [sequences]."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, token_ids(targets))
    return -jnp.sum(jnp.where(targets >= 0, losses, 0.0), axis=-1)
