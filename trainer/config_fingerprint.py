"""The fingerprint of a config: the part that must be equal to restore a checkpoint.

Shapes tell most models apart, but not all (other heads of the same total size, another RoPE base),
and an optimizer's state can fit another optimizer. So the keys that matter are stored by name. The
supervisor refuses the same changes of a config before it starts anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from supervisor.config.training.resolved import InitConfig, StartPoint
from supervisor.config.training.sections import NOT_IN_PARAMETERS, LoraConfig

Fingerprint = Mapping[str, Any]

_OF_A_PHASE = ("determinism.elastic", "loop.micro_batch_size", "loop.remat", "loop.scan_layers")
"""Keys that decide the bits of results: they must not change within a phase."""


def fingerprint(init: InitConfig) -> Fingerprint:
    """Return what must be equal to continue the same phase."""
    model = init.model.shape
    lora = init.lora.model_dump(mode="json") if init.lora is not None else {}
    facts = {f"model.{key}": value for key, value in model.items()} | {
        **{f"lora.{key}": lora.get(key) for key in LoraConfig.model_fields},
        "optimizer.name": init.optimizer and str(init.optimizer.name),
        "determinism.elastic": str(init.determinism.elastic),
    }
    if init.is_bitwise:
        facts["loop.micro_batch_size"] = init.loop.micro_batch_size
        facts["loop.remat"] = str(init.loop.remat)
        facts["loop.scan_layers"] = init.loop.scan_layers
    return facts


def fingerprint_across(init: InitConfig, source: StartPoint) -> Fingerprint:
    """Return what must be equal to start a phase from another one. Adapters of that are merged into
    its parameters."""
    merged = (*(f"lora.{key}" for key in LoraConfig.model_fields), "optimizer.name")
    own = (
        *(f"model.{key}" for key in NOT_IN_PARAMETERS),
        *_OF_A_PHASE,
        *(merged if source.load == "params" else ()),
    )
    return {key: value for key, value in fingerprint(init).items() if key not in own}


def differences(saved: Fingerprint, wanted: Fingerprint) -> list[str]:
    """Return a sentence for each difference. A key that `saved` lacks is skipped: another version
    wrote it, so it tells nothing."""
    return [
        f"{key} is {saved[key]!r} there, but {value!r} in the config"
        for key, value in wanted.items()
        if key in saved and saved[key] != value
    ]


def adapters_of(saved: Fingerprint) -> LoraConfig | None:
    """Return the adapters of the checkpoint with the fingerprint `saved`; None: it has none."""
    if saved.get("lora.rank") is None:
        return None
    keys = [key for key in LoraConfig.model_fields if f"lora.{key}" in saved]
    return LoraConfig.model_validate({key: saved[f"lora.{key}"] for key in keys})
