"""What training minimises, and what it changes for that. An objective is a value: the loop, the
step and the checkpoint ask it, and know none by name.

A batch holds token ids. An id below 0 stands for a token that is read but not learned, such as one
of a prompt: `unlearned` makes one of the other. So the data alone says what is a target, and a
batch keeps its shape whatever is learned of it. In packed data the first token of each document is
marked (`marked_first`): nothing is attended to across it.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from supervisor.config.training.sections import TrainingSection

_FIRST = 1 << 30
"""Added to the id of the first token of a document; no vocabulary is as large."""

Losses = tuple[jax.Array, Mapping[str, jax.Array]]
"""The losses of a batch, and what else is measured of it, by name: the mean of each is told."""


class Objective(Protocol):
    """What the loss of a batch is. Tokens are [examples, width(length)]."""

    @property
    def name(self) -> str:
        """It decides the compiled step, together with `facts_of` and `trainable`."""
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

    @property
    def rollout(self) -> tuple[int, int] | None:
        """The shape of a batch that the model makes itself, which is kept in the state; None: all
        batches come from the data."""
        ...

    def width(self, length: int) -> int:
        """Return how many numbers an example with sequences of `length` tokens has."""
        ...

    def sequences(self, tokens: Any) -> Any:
        """Return the sequences of examples, of numpy or jax: [rows x examples, length + 1]."""
        ...

    def documents(self, tokens: jax.Array) -> jax.Array | None:
        """Return the number of the document of each id that the model reads, of the shape of
        `inputs`; None: a sequence is one document."""
        ...

    def losses(self, logits: jax.Array, reference: jax.Array | None, tokens: jax.Array) -> Losses:
        """Return the losses of `tokens`, [examples, ...], in nats: 0 where nothing is learned.
        `logits` are the model's for `model_inputs`, and `reference` those of the reference; None:
        the losses do not need it."""
        ...

    def num_targets(self, tokens: jax.Array) -> jax.Array | None:
        """Return how many of the losses of `tokens`, of any shape [..., width(length)], are
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
    rollout: None = None

    def width(self, length: int) -> int:
        """See `Objective`."""
        return length + 1

    def sequences(self, tokens: Any) -> Any:
        """See `Objective`."""
        return tokens

    def documents(self, tokens: jax.Array) -> jax.Array | None:
        """See `Objective`."""
        return None

    def losses(self, logits: jax.Array, reference: jax.Array | None, tokens: jax.Array) -> Losses:
        """See `Objective`."""
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]), {}

    def num_targets(self, tokens: jax.Array) -> jax.Array | None:
        """See `Objective`."""
        return None


@dataclass(frozen=True, slots=True)
class Completion:
    """The tokens that are not marked as `unlearned` are learned: those of completions. With
    `is_packed`, the first token of each document is marked."""

    trainable: Any = nnx.Param
    is_packed: bool = False
    rows: int = 1
    metrics: tuple[str, ...] = ()
    reads_reference: bool = False
    rollout: None = None

    @property
    def name(self) -> str:
        """See `Objective`."""
        return "packed completion" if self.is_packed else "completion"

    def width(self, length: int) -> int:
        """See `Objective`."""
        return length + 1

    def sequences(self, tokens: Any) -> Any:
        """See `Objective`."""
        return tokens

    def documents(self, tokens: jax.Array) -> jax.Array | None:
        """See `Objective`."""
        return documents_of(tokens[:, :-1]) if self.is_packed else None

    def losses(self, logits: jax.Array, reference: jax.Array | None, tokens: jax.Array) -> Losses:
        """See `Objective`."""
        targets = tokens[:, 1:]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, token_ids(targets))
        return jnp.where(targets >= 0, losses, 0.0), {}

    def num_targets(self, tokens: jax.Array) -> jax.Array | None:
        """See `Objective`."""
        return jnp.sum(tokens[..., 1:] >= 0)


def facts_of(objective: Objective) -> dict[str, Any]:
    """Return what decides the program of `objective`, a dataclass, as data for JSON: its name, and
    all its fields but `trainable`, and what is callable."""
    assert is_dataclass(objective), "an objective is a dataclass, whose fields say what it is"
    given = {each.name: getattr(objective, each.name) for each in fields(objective)}
    return {"name": objective.name} | {
        name: _as_data(value)
        for name, value in given.items()
        if name != "trainable" and not callable(value)
    }


def model_inputs(objective: Objective, tokens: jax.Array) -> jax.Array:
    """Return the token ids that the model reads of examples, [rows x examples, length]."""
    ids: jax.Array = token_ids(objective.sequences(tokens)[:, :-1])
    return ids


def _as_data(value: Any) -> Any:
    """Return a field of an objective as data for JSON. A section names functions of the user's,
    such as `reward`, which run outside the program."""
    if isinstance(value, TrainingSection):
        return value.model_dump(mode="json", exclude={"reward"})
    return value


def unlearned(ids: Any) -> Any:
    """Return token ids, of numpy or jax, as ids that are read but not learned."""
    return -1 - ids


def token_ids(tokens: Any) -> Any:
    """Return the ids of `tokens`, whether they are learned or not, and marked or not."""
    return abs(tokens + (tokens < 0)) & (_FIRST - 1)


def without_filling(sequence: Any, end: int) -> Any:
    """Return `sequence`, of numpy, without what fills the rest of it: ids of the `end` of a
    document that are not learned."""
    given = np.flatnonzero((sequence >= 0) | (token_ids(sequence) != end))
    return sequence[: given[-1] + 1] if len(given) else sequence[:0]


def marked_first(tokens: Any) -> Any:
    """Return the `tokens` of a document, of numpy, with the first one marked. It is not learned:
    nothing comes before it."""
    marked = tokens.copy()
    marked[0] = unlearned(token_ids(tokens[0]) + _FIRST)
    return marked


def documents_of(tokens: jax.Array) -> jax.Array:
    """Return the number of the document of each of `tokens` [..., length]: how many have begun."""
    return jnp.cumsum(tokens <= unlearned(_FIRST), axis=-1)
