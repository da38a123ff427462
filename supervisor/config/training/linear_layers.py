"""The linear layers of our decoder by their paths, without building it: what `lora.pattern` is
searched in. A test holds them equal to those of the model."""

from __future__ import annotations

import re
from collections.abc import Iterator

from supervisor.config.training.sections import LoraConfig, ModelConfig

_OF_A_BLOCK = (
    *(f"attention.{name}" for name in ("query", "key", "value", "output")),
    *(f"mlp.{name}" for name in ("gate", "up", "down")),
)


def linear_layers(model: ModelConfig) -> Iterator[str]:
    """Yields the path of each linear layer."""
    for number in range(model.num_layers):
        yield from (f"blocks.{number}.{name}" for name in _OF_A_BLOCK)
    if not model.tie_embeddings:
        yield "head"


def adapted_layers(model: ModelConfig, lora: LoraConfig) -> list[str]:
    """Returns the paths of the linear layers that get an adapter."""
    pattern = re.compile(lora.pattern)
    return [path for path in linear_layers(model) if pattern.search(path)]
