"""Reads the shape of a model from `config.json` in a folder of Hugging Face, without its weights.

A key of that file that changes what the model computes is either understood here or refused by
name: a model that silently computes something else trains on, and is worthless.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from supervisor.config.problems import shown
from supervisor.protocol.reading import (
    UnreadableError,
    open_file,
    parse_object,
    read_open_file,
)

CONFIG = "config.json"
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""By `model_type`: the name of the models of `transformers` that our decoder computes."""
LARGEST = 16 << 20
"""The most bytes of a JSON file of such a folder, but for the tokenizer's."""

_PLAIN: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "use_sliding_window": (False,),
    "partial_rotary_factor": (1, 1.0),
    "quantization_config": (),
}
"""Keys that our decoder knows one meaning of: the values that have it. Left out or null, they have
it too."""
_DEFAULT_THETA = 10_000.0
"""What `transformers` takes where a file names no base."""
_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


class PretrainedError(ValueError):
    """A folder with a pretrained model cannot be used; the text names the file, the key and the
    remedy. The same folder never can."""


def read_shape(folder: Path) -> dict[str, Any]:
    """Returns the keys of `ModelConfig` that `config.json` in `folder` decides.

    Raises:
        PretrainedError: it is not there, is damaged, or names something that our decoder does not
            compute.
    """
    path = folder / CONFIG
    config = _Keys(path, read_folder_object(path))
    kind = config.found.get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise config.refusal(
            "model_type", f"is not supported: use a model of type {' or '.join(ARCHITECTURES)}"
        )
    for key, values in _PLAIN.items():
        given = config.found.get(key)
        if given is not None and given not in values:
            raise config.refusal(key, "is not supported: use a model without it")
    layers = config.found.get("layer_types") or []
    if not isinstance(layers, list) or any(layer != "full_attention" for layer in layers):
        raise config.refusal("layer_types", "is not supported: use a model with full attention")
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    is_llama = kind == "llama"  # files of Qwen3 say all of it
    return {
        "hidden_size": hidden,
        "num_layers": config.count("num_hidden_layers"),
        "num_heads": heads,
        "num_kv_heads": config.count("num_key_value_heads", heads if is_llama else None),
        "head_size": config.count("head_dim", max(1, hidden // heads) if is_llama else None),
        "mlp_size": config.count("intermediate_size"),
        "vocab_size": config.count("vocab_size"),
        "tie_embeddings": config.flag("tie_word_embeddings"),
        "norm_epsilon": config.positive("rms_norm_eps", 1e-6),
        "qk_norm": kind == "qwen3",
        **_rope(config),
    }


def read_folder_object(path: Path) -> dict[str, Any]:
    """Returns the JSON object in `path`, a file of a pretrained model.

    Raises:
        PretrainedError: it is not there, or is no JSON object.
        OSError: it cannot be read now.
    """
    try:
        return parse_object(read_linked(path, LARGEST), path)
    except (FileNotFoundError, NotADirectoryError):
        raise PretrainedError(
            f"{path}: there is no such file: name a folder as `save_pretrained` of transformers "
            "writes it, or download the model again"
        ) from None
    except UnreadableError as error:
        raise PretrainedError(f"{error}: download the model again") from None


def read_linked(path: Path, limit: int) -> bytes:
    """Returns what is in the file `path`, which may be a link: a hub's cache has nothing but links.
    Errors as `protocol.reading.read`."""
    with open_file(path, linked=True) as file:
        return read_open_file(file, path, limit)


class _Keys:
    """The keys of a config file, each read as what it must be."""

    def __init__(self, path: Path, found: Mapping[str, Any]) -> None:
        self.path = path
        self.found = found

    def refusal(self, key: str, why: str) -> PretrainedError:
        value = shown(self.found.get(key))
        return PretrainedError(f"{self.path}: {key} {why} (value {value})")

    def count(self, key: str, default: int | None = None) -> int:
        value = self.found.get(key)
        if value is None and default is not None:
            return default
        if type(value) is not int or value < 1:
            raise self.refusal(key, "must be a whole number above 0: download the model again")
        return value

    def positive(self, key: str, default: float | None = None) -> float:
        value = self.found.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int | float) or value is True or not 0 < value < float("inf"):
            raise self.refusal(key, "must be a number above 0: download the model again")
        return float(value)

    def flag(self, key: str) -> bool:
        value = self.found.get(key, False)
        if type(value) is not bool:
            raise self.refusal(key, "must be true or false: download the model again")
        return value


def _rope(config: _Keys) -> dict[str, Any]:
    """Returns what is said of the rotary embeddings. Files since transformers 5 say all of it in
    `rope_parameters`; older ones have `rope_theta`, and `rope_scaling` for what deviates."""
    key = "rope_parameters" if config.found.get("rope_parameters") is not None else "rope_scaling"
    given = config.found.get(key) or {}
    if not isinstance(given, dict):
        raise config.refusal(key, "must be a mapping: download the model again")
    inner = _Keys(config.path, {f"{key}.{name}": value for name, value in given.items()})
    kind = given.get("rope_type", given.get("type", "default"))
    theta = config.positive("rope_theta", _DEFAULT_THETA)
    theta = inner.positive(f"{key}.rope_theta", theta)
    if given.get("partial_rotary_factor", 1) != 1:
        raise inner.refusal(
            f"{key}.partial_rotary_factor", "is not supported: use a model without it"
        )
    if kind == "default":
        return {"rope_theta": theta}
    if kind != "llama3":
        name = "rope_type" if "rope_type" in given else "type"
        raise inner.refusal(
            f"{key}.{name}", "is not supported: use a model with the type default or llama3"
        )
    scaling = {name: inner.positive(f"{key}.{name}") for name in _LLAMA3}
    if scaling["low_freq_factor"] >= scaling["high_freq_factor"]:
        raise inner.refusal(
            f"{key}.low_freq_factor", "must be below high_freq_factor: download the model again"
        )
    return {"rope_theta": theta, "rope_scaling": scaling}


def config_of(model: Any, folder: Path | None, dtype: str) -> dict[str, Any]:
    """Returns the content of `config.json` for `model`, a `ModelConfig`, with weights of the type
    `dtype`. What our decoder does not need, such as the ids of special tokens, is as in `folder`,
    from which the model came (None: it is new).

    Raises:
        PretrainedError, OSError: as `read_folder_object`.
    """
    kind = "qwen3" if model.qk_norm else "llama"
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": model.rope_theta}
    if model.rope_scaling is not None:
        rope |= {"rope_type": "llama3", **model.rope_scaling.model_dump()}
    given = {} if folder is None else read_folder_object(folder / CONFIG)
    old = ("torch_dtype", "rope_theta", "rope_scaling")
    return {
        **{key: value for key, value in given.items() if key not in old},
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_size,
        "intermediate_size": model.mlp_size,
        "vocab_size": model.vocab_size,
        "tie_word_embeddings": model.tie_embeddings,
        "rms_norm_eps": model.norm_epsilon,
        "rope_parameters": rope,
        # The same, for transformers before 5.
        "rope_theta": model.rope_theta,
        **({} if model.rope_scaling is None else {"rope_scaling": rope}),
        "hidden_act": "silu",
        "attention_bias": False,
        "dtype": dtype,
    }
