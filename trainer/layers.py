"""Parts of the model: linear layers, which may have an adapter, and dropout.

An adapter is a product of two small matrices (LoRA; Hu et al., 2021): a layer with one returns
x W + alpha / rank x A B. B begins at zero, so the model begins as the base. The weights of an
adapter are `nnx.LoRAParam`, which tells them from all others. Masks of dropout follow from keys
that the caller gives, one per sequence.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from supervisor.config.training.sections import LoraConfig

KERNEL_SCALE = "kernel_scale"
"""The name of the scales of an int8 kernel in the path of a parameter."""


class Linear(nnx.Linear):
    """A linear layer without bias, and with an adapter if `add_adapters` has added one. Its kernel
    is int8 if `int8.quantise_linear_layers` has made it so."""

    adapter: Adapter | None = None
    kernel_scale: nnx.Param[jax.Array] | None = None
    """The scale of each output channel of an int8 kernel; None: the kernel is float32."""

    def __init__(self, inputs: int, outputs: int, dtype: Any, *, rngs: nnx.Rngs) -> None:
        super().__init__(inputs, outputs, use_bias=False, dtype=dtype, rngs=rngs)

    def __call__(
        self, inputs: jax.Array, out_sharding: Any = None, *, keys: jax.Array | None = None
    ) -> jax.Array:
        """Transform `inputs` [batch, length, inputs]. `keys` [batch] are for the dropout of the
        adapter; None: no dropout. `out_sharding` is a parameter of flax's: XLA chooses."""
        kernel = self.kernel[...].astype(self.dtype)
        outputs = product(inputs.astype(self.dtype), kernel)
        if self.kernel_scale is not None:
            outputs = outputs * self.kernel_scale[...].astype(self.dtype)
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
        return low_rank_product(x, down, up, self.scale)


@jax.custom_vjp
def product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Return `x` [..., inputs] times `kernel` [inputs, outputs].

    JAX's own gradient of the kernel is the transpose of a product, for which XLA on CPU has no
    quick code: see `docs/adr/0112-the-gradient-of-a-kernel-is-no-transposed-product.md`.
    """
    return x @ kernel


def _product_forward(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, Any]:
    return x @ kernel, (x, kernel)


def _product_backward(
    saved: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, kernel = saved
    return gradient @ kernel.T, jnp.einsum("...i,...o->io", x, gradient)


product.defvjp(_product_forward, _product_backward)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def low_rank_product(x: jax.Array, down: jax.Array, up: jax.Array, scale: float) -> jax.Array:
    """Return `x` [..., inputs] times `down` [inputs, rank] times `up` [rank, outputs] times
    `scale`.

    Nothing that is as large as `x` or the result is scaled, or transposed for a gradient: see
    `docs/adr/0113-an-adapter-transposes-what-is-small.md`.
    """
    return x @ (down * scale) @ up


def _low_rank_forward(
    x: jax.Array, down: jax.Array, up: jax.Array, scale: float
) -> tuple[jax.Array, Any]:
    narrow = x @ (down * scale)
    return narrow @ up, (x, narrow, down, up)


def _low_rank_backward(
    scale: float, saved: tuple[jax.Array, ...], gradient: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    x, narrow, down, up = saved
    negative = gradient @ -up.T
    # Without the factor, XLA takes transpose(product) for a product in the other order.
    of_down = (jnp.einsum("...r,...i->ri", negative, x) * -scale).T
    of_up = jnp.einsum("...r,...o->ro", narrow, gradient)
    return negative @ (down * -scale).T, of_down, of_up


low_rank_product.defvjp(_low_rank_forward, _low_rank_backward)


def fold(keys: jax.Array | None, number: int | jax.Array) -> jax.Array | None:
    """Return per-sequence PRNG keys for submodule `number`; None without `keys`."""
    return None if keys is None else jax.vmap(jax.random.fold_in, (0, None))(keys, number)


def drop(x: jax.Array, rate: float, keys: jax.Array | None) -> jax.Array:
    """Apply dropout at `rate` to `x` [batch, length, hidden]. A sequence's mask follows from its
    key alone, so it does not depend on which sequences share the micro-batch."""
    if keys is None or rate == 0:
        return x
    kept = jax.vmap(lambda key: jax.random.bernoulli(key, 1 - rate, x.shape[1:]))(keys)
    return jnp.where(kept, x / (1 - rate), 0)
