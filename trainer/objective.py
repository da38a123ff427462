"""What training minimises, and what it changes for that. An objective is a value: the loop, the
step and the checkpoint ask it, and know none by name.

A batch holds token ids. An id below 0 stands for a token that is read but not learned, such as one
of a prompt: `unlearned` makes one of the other. So the data alone says what is a target, and a
batch keeps its shape whatever is learned of it.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax
from flax import nnx

Losses = tuple[jax.Array, Mapping[str, jax.Array]]
"""The losses of a batch, and what else is measured of it, by name: the mean of each is told."""


class Objective(Protocol):
    """What the loss of a batch is. Tokens are [examples, rows x (length + 1)]."""

    @property
    def name(self) -> str:
        """It decides the compiled step, together with `trainable`."""
        ...

    @property
    def rows(self) -> int:
        """How many sequences of the model an example holds, one after the other."""
        ...

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of what is measured besides the loss."""
        ...

    @property
    def trainable(self) -> Any:
        """A filter of flax: the parameters of the model that training changes. All others are
        frozen: they are kept in the state, and saved, as `frozen`."""
        ...

    @property
    def reads_reference(self) -> bool:
        """Whether the losses need the model as it was at step 0, without adapters. Then its weights
        are kept in `frozen` too."""
        ...

    def inputs(self, tokens: jax.Array) -> jax.Array:
        """Return the token ids that the model reads, [rows x examples, length]."""
        ...

    def losses(self, logits: jax.Array, reference: jax.Array | None, tokens: jax.Array) -> Losses:
        """Return the losses of `tokens`, [examples, ...], in nats: 0 where nothing is learned.
        `logits` are the model's for `inputs`, and `reference` those of the reference; None: the
        losses do not need it."""
        ...

    def num_targets(self, tokens: jax.Array) -> jax.Array | None:
        """Return how many of the losses of `tokens`, of any shape [..., rows x (length + 1)], are
        learned; None: all are. The loss of a batch is the mean over these."""
        ...


@dataclass(frozen=True, slots=True)
class NextToken:
    """Each token is learned."""

    trainable: Any = nnx.Param
    name: str = "next token"
    rows: int = 1
    metrics: tuple[str, ...] = ()
    reads_reference: bool = False

    def inputs(self, tokens: jax.Array) -> jax.Array:
        """See `Objective`."""
        return tokens[:, :-1]

    def losses(self, logits: jax.Array, reference: jax.Array | None, tokens: jax.Array) -> Losses:
        """See `Objective`."""
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]), {}

    def num_targets(self, tokens: jax.Array) -> jax.Array | None:
        """See `Objective`."""
        return None


@dataclass(frozen=True, slots=True)
class Completion:
    """The tokens that are not marked as `unlearned` are learned: those of completions."""

    trainable: Any = nnx.Param
    name: str = "completion"
    rows: int = 1
    metrics: tuple[str, ...] = ()
    reads_reference: bool = False

    def inputs(self, tokens: jax.Array) -> jax.Array:
        """See `Objective`."""
        ids: jax.Array = token_ids(tokens[:, :-1])
        return ids

    def losses(self, logits: jax.Array, reference: jax.Array | None, tokens: jax.Array) -> Losses:
        """See `Objective`."""
        targets = tokens[:, 1:]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, token_ids(targets))
        return jnp.where(targets >= 0, losses, 0.0), {}

    def num_targets(self, tokens: jax.Array) -> jax.Array | None:
        """See `Objective`."""
        return jnp.sum(tokens[..., 1:] >= 0)


def unlearned(ids: Any) -> Any:
    """Return token ids, of numpy or jax, as ids that are read but not learned."""
    return -1 - ids


def token_ids(tokens: Any) -> Any:
    """Return the ids of `tokens`, whether they are learned or not."""
    return abs(tokens + (tokens < 0))
