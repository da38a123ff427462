"""Names the arrays that hold NaN or Inf, in weights that are loaded and in a state to be saved."""

# mypy: allow-untyped-calls
from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

_MOST_NAMED = 3
_PARTS = {
    "params": "the trained parameters",
    "frozen": "the frozen weights (no step changes them)",
    "optimizer": "the optimizer's state",
}
"""The fields of `TrainState` that have floating-point numbers, in words."""


class WeightsNotFiniteError(ValueError):
    """The weights that training would start from hold NaN or Inf."""


def not_finite(tree: Any) -> list[str]:
    """Return the names of the arrays in `tree` that hold NaN or Inf, as `PART.PATH` if the tree is
    a state. All processes must call it alike. It reads the whole tree, and compiles once for it."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    floating = [(path, x) for path, x in leaves if jnp.issubdtype(x.dtype, jnp.floating)]
    if not floating:
        return []
    mesh = floating[0][1].sharding.mesh
    finite = _compiled(NamedSharding(mesh, PartitionSpec()))([x for _, x in floating])
    found = zip(floating, jax.device_get(finite), strict=True)
    return [_name(path) for (path, _), is_finite in found if not is_finite]


@lru_cache(maxsize=2)
def _compiled(sharding: NamedSharding) -> Any:
    return jax.jit(_are_finite, out_shardings=sharding)


def _are_finite(arrays: list[jax.Array]) -> jax.Array:
    return jnp.stack([jnp.isfinite(x).all() for x in arrays])


def _name(path: Any) -> str:
    keys = (getattr(key, "key", getattr(key, "name", getattr(key, "idx", key))) for key in path)
    return ".".join(str(key) for key in keys if key != "value")  # each variable of nnx ends so


def in_words(names: list[str]) -> str:
    """Return which arrays of a state hold NaN or Inf, part by part, the first few by name."""
    return "; ".join(_told(names))


def _told(names: list[str]) -> Iterator[str]:
    for part, words in _PARTS.items():
        paths = [name.removeprefix(f"{part}.") for name in names if name.startswith(f"{part}.")]
        if paths:
            yield f"{words}: {some_of(paths)}"


def some_of(names: list[str]) -> str:
    """Return the first few names, and how many more there are."""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more
