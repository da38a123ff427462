"""What training minimises. An objective is a value: the step asks it, and knows none by name.

A batch holds token ids. An id below 0 stands for a token that is read but not learned, such as one
of a prompt: `unlearned` makes one of the other. So the data alone says what is a target, and a
batch keeps its shape whatever is learned of it.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax

from supervisor.config.training.sections import DataloaderConfig


class Objective(Protocol):
    """What the loss of a batch is. Tokens are [sequences, length + 1]."""

    name: str
    """It decides the compiled step."""

    def inputs(self, tokens: jax.Array) -> jax.Array:
        """Return the token ids that the model reads, [sequences, length]."""
        ...

    def losses(self, logits: jax.Array, tokens: jax.Array) -> jax.Array:
        """Return the loss at each position, [sequences, length], in nats: 0 where nothing is
        learned."""
        ...

    def num_targets(self, tokens: jax.Array) -> jax.Array | None:
        """Return how many positions of `tokens`, of any shape [..., length + 1], are learned; None:
        all are. The loss of a batch is the mean over these."""
        ...


class NextToken:
    """Each token is learned."""

    name = "next token"

    def inputs(self, tokens: jax.Array) -> jax.Array:
        """See `Objective`."""
        return tokens[:, :-1]

    def losses(self, logits: jax.Array, tokens: jax.Array) -> jax.Array:
        """See `Objective`."""
        losses: jax.Array = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        return losses

    def num_targets(self, tokens: jax.Array) -> jax.Array | None:
        """See `Objective`."""
        return None


class Completion:
    """The tokens that are not marked as `unlearned` are learned: those of completions."""

    name = "completion"

    def inputs(self, tokens: jax.Array) -> jax.Array:
        """See `Objective`."""
        ids: jax.Array = token_ids(tokens[:, :-1])
        return ids

    def losses(self, logits: jax.Array, tokens: jax.Array) -> jax.Array:
        """See `Objective`."""
        targets = tokens[:, 1:]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, token_ids(targets))
        return jnp.where(targets >= 0, losses, 0.0)

    def num_targets(self, tokens: jax.Array) -> jax.Array | None:
        """See `Objective`."""
        return jnp.sum(tokens[..., 1:] >= 0)


def objective_of(loader: DataloaderConfig) -> Objective:
    """Return the objective of training on the data of `loader`."""
    return NextToken() if loader.completion_field is None else Completion()


def unlearned(ids: Any) -> Any:
    """Return token ids, of numpy or jax, as ids that are read but not learned."""
    return -1 - ids


def token_ids(tokens: Any) -> Any:
    """Return the ids of `tokens`, whether they are learned or not."""
    return abs(tokens + (tokens < 0))
