"""Frozen weights of linear layers as int8: symmetric, with a scale for each output channel.

An int8 weight stands for weight x scale, where the scale is the channel's largest weight / 127. So
zero stays zero, and each weight is off by half a scale at most.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from trainer.layers import KERNEL_SCALE, Linear

_LARGEST = 127


def quantised(kernel: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return `kernel` [inputs, outputs] as int8, and the scale [outputs] of each channel.

    XLA may turn a division by a broadcast or a constant into a multiplication, which gives other
    bits, depending on the rest of the program. So there is none: the bits are the same anywhere.
    """
    largest = jnp.max(jnp.abs(kernel), axis=0)
    largest = jnp.where(largest > 0, largest, _LARGEST)
    inverse = jnp.reciprocal(largest) * _LARGEST
    return jnp.round(kernel * inverse).astype(jnp.int8), largest * jnp.float32(1 / _LARGEST)


def dequantised(kernel: jax.Array, scale: jax.Array) -> jax.Array:
    """Return the float32 weights that an int8 `kernel` stands for."""
    weights: jax.Array = kernel.astype(jnp.float32) * scale
    return weights


def quantise_linear_layers(model: nnx.Module) -> None:
    """Make the weights of all linear layers of `model` int8."""
    for _, layer in nnx.iter_modules(model):
        if isinstance(layer, Linear):
            kernel, scale = quantised(layer.kernel[...])
            layer.kernel, layer.kernel_scale = nnx.Param(kernel), nnx.Param(scale)


def quantised_like(weights: Any, like: Any) -> Any:
    """Return the `weights` of a model (a state of nnx), as int8 where those of `like` are."""
    flat = dict(nnx.to_flat_state(weights))
    for path, _ in nnx.to_flat_state(like):
        kernel = (*path[:-1], "kernel")
        if path[-1] == KERNEL_SCALE and kernel in flat:
            values, scale = quantised(flat[kernel][...])
            flat[path], flat[kernel] = nnx.Param(scale), flat[kernel].replace(values)
    return nnx.from_flat_state(flat)


def in_float(weights: Any) -> dict[Any, Any]:
    """Return `weights` (a state of nnx) flat, with float32 in place of int8."""
    flat = dict(nnx.to_flat_state(weights))
    for path in [path for path in flat if path[-1] == KERNEL_SCALE]:
        scale, kernel = flat.pop(path), (*path[:-1], "kernel")
        flat[kernel] = flat[kernel].replace(dequantised(flat[kernel][...], scale[...]))
    return flat
