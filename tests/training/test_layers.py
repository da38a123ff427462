"""The products of a linear layer and its adapter: their gradients, and how XLA computes them."""

# mypy: allow-untyped-calls
from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainer.layers import low_rank_product, product

_TRANSPOSED = re.compile(r"lhs_contracting_dims=\{0\}, rhs_contracting_dims=\{1\}")
"""A product of two transposed matrices."""
_LAYER = (16, 8)
_ADAPTER = (16, 2), (2, 8)


def _gradients(
    function: Callable[..., jax.Array], *weights: tuple[int, int], dtype: Any = jnp.float32
) -> Any:
    """Return the jitted gradients of `function` of inputs [3, 5, 16] and weights of these shapes,
    and what they are computed of."""
    shapes = (3, 5, 8), (3, 5, 16), *weights
    keys = jax.random.split(jax.random.key(0), len(shapes))
    factor, *given = (
        jax.random.normal(key, shape, dtype) for key, shape in zip(keys, shapes, strict=True)
    )
    gradients = jax.grad(lambda *given: jnp.sum(factor * function(*given)), range(len(given)))
    return jax.jit(gradients), given


def _program(gradients: Any, given: Any) -> str:
    program: str = gradients.lower(*given).compile().as_text()
    return program


def _assert_alike(ours: Any, theirs: Any, given: Any, tolerance: float) -> None:
    for one, other in zip(ours(*given), theirs(*given), strict=True):
        assert one.dtype == other.dtype == given[0].dtype
        found, expected = (np.asarray(each, np.float32) for each in (one, other))
        np.testing.assert_allclose(
            found, expected, rtol=tolerance, atol=tolerance * abs(expected).max()
        )


@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 1e-5), (jnp.bfloat16, 1e-2)])
def test_gradients_of_a_product_are_jaxs_own(dtype: Any, tolerance: float) -> None:
    ours, given = _gradients(product, _LAYER, dtype=dtype)
    theirs, _ = _gradients(jnp.matmul, _LAYER, dtype=dtype)
    _assert_alike(ours, theirs, given, tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 1e-5), (jnp.bfloat16, 3e-2)])
def test_gradients_of_an_adapter_are_jaxs_own(dtype: Any, tolerance: float) -> None:
    ours, given = _gradients(partial(_adapted, 2.5), *_ADAPTER, dtype=dtype)
    theirs, _ = _gradients(lambda x, down, up: x @ down @ up * 2.5, *_ADAPTER, dtype=dtype)
    _assert_alike(ours, theirs, given, tolerance)


def test_the_gradient_of_a_kernel_is_no_transposed_product() -> None:
    """XLA on CPU has no quick code for a product of two transposed matrices."""
    assert not _TRANSPOSED.search(_program(*_gradients(product, _LAYER)))


@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_a_gradient_of_an_adapter_transposes_nothing_wide(scale: float) -> None:
    program = _program(*_gradients(partial(_adapted, scale), *_ADAPTER))
    assert not _TRANSPOSED.search(program)
    assert "f32[16,15]" not in program, "the inputs are transposed"


def _adapted(scale: float, x: jax.Array, down: jax.Array, up: jax.Array) -> jax.Array:
    return low_rank_product(x, down, up, scale)


def test_what_training_computes_is_what_an_evaluation_does() -> None:
    """The forward part of a gradient of our own is a function of its own."""
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = (3, 16), (16, 2), (2, 8), (16, 8)
    x, down, up, kernel = (jax.random.normal(k, s) for k, s in zip(keys, shapes, strict=True))
    adapted, _ = jax.vjp(partial(_adapted, 2.5), x, down, up)
    np.testing.assert_allclose(adapted, x @ down @ up * 2.5, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(_adapted(2.5, x, down, up), adapted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(jax.vjp(product, x, kernel)[0], x @ kernel, rtol=1e-5, atol=1e-5)
