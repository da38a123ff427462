"""The tensors of a pretrained model, and which parameter of our decoder each of them is.

Llama and Qwen3 have the same names. A linear layer's weight is [outputs, inputs] there and
[inputs, outputs] here.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from supervisor.config.training.pretrained import PretrainedError
from supervisor.config.training.safetensors import Tensor, read_headers
from supervisor.config.training.sections import ModelConfig

_IGNORED = (".rotary_emb.inv_freq",)
"""Ends of names of tensors that follow from config.json."""
_HEAD = "lm_head.weight"
_MORE = 1000
"""How many parameters beyond those that are there are looked for."""


class Weight(NamedTuple):
    """One parameter."""

    name: str
    """In the files."""
    path: tuple[str | int, ...]
    """In our decoder."""
    shape: tuple[int, ...]
    """In the files."""

    @property
    def is_transposed(self) -> bool:
        """Whether the axes are in the other order here."""
        return self.path[-1] == "kernel"


def weights(model: ModelConfig) -> Iterator[Weight]:
    """Yields all parameters of `model`."""
    hidden, mlp, size = model.hidden_size, model.mlp_size, model.head_size
    queries, keys = model.num_heads * size, model.num_kv_heads * size
    yield Weight(
        "model.embed_tokens.weight", ("embedding", "embedding"), (model.vocab_size, hidden)
    )
    for number in range(model.num_layers):
        here, block = f"model.layers.{number}", ("blocks", number)
        yield Weight(
            f"{here}.input_layernorm.weight", (*block, "attention_norm", "scale"), (hidden,)
        )
        for name, ours, shape in (
            ("q_proj", "query", (queries, hidden)),
            ("k_proj", "key", (keys, hidden)),
            ("v_proj", "value", (keys, hidden)),
            ("o_proj", "output", (hidden, queries)),
        ):
            path = (*block, "attention", ours, "kernel")
            yield Weight(f"{here}.self_attn.{name}.weight", path, shape)
        for name in ("query", "key") if model.qk_norm else ():
            path = (*block, "attention", f"{name}_norm", "scale")
            yield Weight(f"{here}.self_attn.{name[0]}_norm.weight", path, (size,))
        yield Weight(
            f"{here}.post_attention_layernorm.weight", (*block, "mlp_norm", "scale"), (hidden,)
        )
        for name, shape in (
            ("gate", (mlp, hidden)),
            ("up", (mlp, hidden)),
            ("down", (hidden, mlp)),
        ):
            yield Weight(f"{here}.mlp.{name}_proj.weight", (*block, "mlp", name, "kernel"), shape)
    yield Weight("model.norm.weight", ("norm", "scale"), (hidden,))
    if not model.tie_embeddings:
        yield Weight(_HEAD, ("head", "kernel"), (model.vocab_size, hidden))


def find_weights(folder: Path, model: ModelConfig) -> dict[str, Tensor]:
    """Returns where in `folder` each parameter of `model` is, by name.

    Raises:
        PretrainedError: a tensor is missing, is none of the model's, or has another shape.
        OSError: a file cannot be read now.
    """
    found = read_headers(folder)
    # A config.json that is wrong may ask for any number of layers.
    asked = islice(weights(model), len(found) + _MORE)
    wanted = {weight.name: weight for weight in asked}
    ignored = {name for name in found if name.endswith(_IGNORED)}
    if model.tie_embeddings:
        ignored.add(_HEAD)
    missing = [name for name in wanted if name not in found]
    if missing:
        raise PretrainedError(
            f"{folder}: the weights lack {_named(missing)}, which config.json asks for: download "
            "the model again"
        )
    extra = [name for name in found if name not in wanted and name not in ignored]
    if extra:
        raise PretrainedError(
            f"{found[extra[0]].file}: has {_named(extra)}, which our decoder does not compute: use "
            "a model without, or merge adapters into its weights first"
        )
    for name, weight in wanted.items():
        tensor = found[name]
        if tensor.shape != weight.shape:
            raise PretrainedError(
                f"{tensor.file}: the tensor {name} has the shape {list(tensor.shape)}, but "
                f"config.json makes it {list(weight.shape)}: download the model again"
            )
    return {name: found[name] for name in wanted}


def _named(names: list[str]) -> str:
    rest = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"the tensor {names[0]}{rest}"
