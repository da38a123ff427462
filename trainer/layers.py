"""Parts of the model: linear layers, which may have an adapter, and dropout.

An adapter is a product of two small matrices (LoRA; Hu et al., 2021): a layer with one returns
x W + alpha / rank x A B. B begins at zero, so the model begins as the base. The weights of an
adapter are `nnx.LoRAParam`, which tells them from all others. Masks of dropout follow from keys
that the caller gives, one per sequence.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from supervisor.config.training.sections import LoraConfig


class Linear(nnx.Linear):
    """A linear layer without bias, and with an adapter if `add_adapters` has added one."""

    adapter: Adapter | None = None

    def __init__(self, inputs: int, outputs: int, dtype: Any, *, rngs: nnx.Rngs) -> None:
        super().__init__(inputs, outputs, use_bias=False, dtype=dtype, rngs=rngs)

    def __call__(
        self, inputs: jax.Array, out_sharding: Any = None, *, keys: jax.Array | None = None
    ) -> jax.Array:
        """Transform `inputs` [batch, length, inputs]. `keys` [batch] are for the dropout of the
        adapter; None: no dropout."""
        outputs: jax.Array = super().__call__(inputs, out_sharding)
        return outputs if self.adapter is None else outputs + self.adapter(inputs, keys)


class Adapter(nnx.Module):
    """What is added to the output of one linear layer."""

    def __init__(self, layer: Linear, config: LoraConfig, *, rngs: nnx.Rngs) -> None:
        inputs, outputs = layer.in_features, layer.out_features
        begin = nnx.initializers.he_uniform()
        self.down = nnx.LoRAParam(begin(rngs.params(), (inputs, config.rank), jnp.float32))
        self.up = nnx.LoRAParam(jnp.zeros((config.rank, outputs), jnp.float32))
        self.dtype = layer.dtype
        self.dropout = config.dropout
        self.scale = config.scale

    def __call__(self, inputs: jax.Array, keys: jax.Array | None) -> jax.Array:
        """Return what is added for `inputs` [batch, length, inputs]."""
        x = drop(inputs.astype(self.dtype), self.dropout, keys)
        down, up = self.down[...].astype(self.dtype), self.up[...].astype(self.dtype)
        added: jax.Array = (x @ down) @ up * self.scale
        return added


def fold(keys: jax.Array | None, number: int) -> jax.Array | None:
    """Return per-sequence PRNG keys for submodule `number`; None without `keys`."""
    return None if keys is None else jax.vmap(jax.random.fold_in, (0, None))(keys, number)


def drop(x: jax.Array, rate: float, keys: jax.Array | None) -> jax.Array:
    """Apply dropout at `rate` to `x` [batch, length, hidden]. A sequence's mask follows from its
    key alone, so it does not depend on which sequences share the micro-batch."""
    if keys is None or rate == 0:
        return x
    kept = jax.vmap(lambda key: jax.random.bernoulli(key, 1 - rate, x.shape[1:]))(keys)
    return jnp.where(kept, x / (1 - rate), 0)
