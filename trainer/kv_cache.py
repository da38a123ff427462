"""Keys and values of the tokens that a model has read, so that the next token costs one token.

Sequences stand from the left: token i of a sequence is at place i, whatever else is in the batch.
What stands after the `length` tokens of a sequence is never attended to, and is overwritten by
the next ones.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclass(slots=True)
class LayerCache:
    """The cache of one layer of attention. `attend` changes it, so under `jax.jit` it is returned
    like any other result."""

    keys: jax.Array
    """[batch, places, heads, size]"""
    values: jax.Array
    length: jax.Array
    """The tokens that each sequence has, [batch]."""

    @classmethod
    def empty(cls, batch: int, places: int, heads: int, size: int, dtype: Any) -> LayerCache:
        """Return the cache of sequences without tokens, with room for `places` of them."""
        nothing = jnp.zeros((batch, places, heads, size), dtype)
        return cls(nothing, nothing, jnp.zeros(batch, jnp.int32))

    def places(self, count: int) -> jax.Array:
        """Return the places of the next `count` tokens of each sequence, [batch, count]."""
        return self.length[:, None] + jnp.arange(count, dtype=jnp.int32)

    def attend(self, query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        """Add tokens, [batch, count, heads, size], and attend from each of them to itself and to
        all that come before it."""
        places = self.places(key.shape[1])
        row = jnp.arange(len(places))[:, None]
        self.keys = self.keys.at[row, places].set(key)
        self.values = self.values.at[row, places].set(value)
        self.length = self.length + key.shape[1]
        earlier = jnp.arange(self.keys.shape[1]) <= places[:, :, None]
        mask = earlier[:, None]
        return jax.nn.dot_product_attention(query, self.keys, self.values, mask=mask)


Cache = Sequence[LayerCache]
"""The caches of the layers, in order."""


def set_lengths(cache: Cache, lengths: jax.Array) -> None:
    """Forget what stands after the first `lengths` tokens, [batch], of each sequence."""
    for layer in cache:
        layer.length = lengths
