"""Adapters (`layers.Adapter`) are trained while the weights of the model are frozen: where a model
gets them, and how they are merged into its weights.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import re
from typing import Any

from flax import nnx

from supervisor.config.training.sections import LoraConfig
from trainer.int8 import in_float
from trainer.layers import Adapter, Linear

_ADAPTER = "adapter"


def add_adapters(model: nnx.Module, config: LoraConfig, *, rngs: nnx.Rngs) -> None:
    """Add an adapter to each linear layer of `model` whose path matches the pattern."""
    pattern = re.compile(config.pattern)
    layers = {
        ".".join(map(str, path)): layer
        for path, layer in nnx.iter_modules(model)
        if isinstance(layer, Linear)
    }
    for path in sorted(layers):
        if pattern.search(path):
            layers[path].adapter = Adapter(layers[path], config, rngs=rngs)


def merged(adapters: Any, base: Any, scale: float) -> Any:
    """Return the weights of the model without adapters that computes what `base` with `adapters`
    (states of nnx) does, but for rounding. They are float32."""
    weights, low_rank = in_float(base), dict(nnx.to_flat_state(adapters))
    for path, up in low_rank.items():
        if path[-1] == "up":
            layer = path[: -len((_ADAPTER, "up"))]
            down, kernel = low_rank[*layer, _ADAPTER, "down"], weights[*layer, "kernel"]
            sum_ = kernel[...] + scale * (down[...] @ up[...])
            weights[*layer, "kernel"] = kernel.replace(sum_)
    return nnx.from_flat_state(weights)
