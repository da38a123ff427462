"""Checks a phase of our trainer, fills in its defaults, and lays it out on each rung."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from supervisor.config.problems import Location, shown
from supervisor.config.training.data_files import DataError, check_amount, check_first_records
from supervisor.config.training.layout import Rung, full_rung_problem, ladder
from supervisor.config.training.pretrained import PretrainedError
from supervisor.config.training.pretrained_tensors import find_weights
from supervisor.config.training.resolved import (
    InitConfig,
    TrainerConfig,
    loaders,
    parse_with_problems,
)
from supervisor.config.training.reward_function import why_missing
from supervisor.config.training.sections import ModelConfig


@dataclass(frozen=True, slots=True)
class CheckedSections:
    """The result of a check. If there are problems, the other fields are empty."""

    problems: Sequence[tuple[Location, str]] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    """The trainer's sections with all defaults filled in."""
    layouts: Mapping[int, Mapping[str, Any] | str] = field(default_factory=dict)
    """By number of devices: how the trainer uses them, or as a text why it cannot."""


def check(
    trainer: Mapping[str, Any], device_counts: Sequence[int] = (), *, data_may_grow: bool = False
) -> CheckedSections:
    """Checks the phase in `trainer` for these numbers of devices, the full one first.

    `device_counts` is empty if the number of devices is not known. With `data_may_grow` an earlier
    phase may write more data.
    """
    config, problems = parse_with_problems(trainer)
    if config is not None and not problems:
        problems = [
            *_unusable_weights(config.init.model),
            *_unreadable(config, data_may_grow=data_may_grow),
            *_missing_reward(config.init),
        ]
    if config is None or problems:
        return CheckedSections(problems)
    if not device_counts:
        return CheckedSections([*_unresolved(config.init)], _params(config))
    config = _with_micro_batch(config, device_counts[0])
    problem = full_rung_problem(config.init, device_counts[0])
    if problem is not None:
        return CheckedSections([problem])
    found = ladder(config.init, device_counts)
    apart = config.init.num_rollout_devices
    layouts = {count: _layout(one, apart) for count, one in found.items()}
    return CheckedSections((), _params(config), layouts)


def _unusable_weights(model: ModelConfig) -> Iterator[tuple[Location, str]]:
    """Yields the problem of the pretrained weights, of which only the headers are read."""
    try:
        if model.folder is not None:
            find_weights(model.folder, model)
    except (PretrainedError, OSError) as error:
        yield ("init", "model", "pretrained"), str(error)


def _unreadable(config: TrainerConfig, *, data_may_grow: bool) -> Iterator[tuple[Location, str]]:
    """Yields the data files that cannot be read, that have a record among the first ones which is
    not of the form that the config says, or that hold too little: the key and the message."""
    for where, loader in loaders(config.fit):
        try:
            asks = loader.asks(config.init.grpo)
            check_first_records(loader, config.init.model.vocab_size, asks=asks)
            if not data_may_grow:
                check_amount(loader, counts_bytes=config.init.tokenizer_folder is None)
        except (DataError, OSError) as error:
            yield ("fit", *where, "paths"), str(error)


def _missing_reward(init: InitConfig) -> Iterator[tuple[Location, str]]:
    """Yields the key of a reward function that is not there."""
    name = init.grpo.reward if init.grpo is not None else None
    if name is not None and (why := why_missing(name)) is not None:
        yield ("init", "grpo", "reward"), f"{why} (value {shown(name)})"


def _unresolved(init: InitConfig) -> Iterator[tuple[Location, str]]:
    """Yields the keys that must be given because the number of devices is not known."""
    if init.is_bitwise and init.loop.micro_batch_size is None:
        yield (
            ("init", "loop", "micro_batch_size"),
            "must be given for determinism.elastic: bitwise where init.devices does not say how "
            "many devices there are",
        )


def _with_micro_batch(config: TrainerConfig, num_devices: int) -> TrainerConfig:
    """Returns `config` with a `micro_batch_size`: the given one, or else the share of one device on
    the full rung.

    So a device never holds more on a smaller rung than on the full one, and shrinking does not run
    out of memory.
    """
    loop = config.init.loop
    if loop.micro_batch_size is not None:
        return config
    training = max(1, num_devices - config.init.num_rollout_devices)
    share = max(1, loop.global_batch_size // training)
    init = config.init.model_copy(
        update={"loop": loop.model_copy(update={"micro_batch_size": share})}
    )
    return config.model_copy(update={"init": init})


def _params(config: TrainerConfig) -> dict[str, Any]:
    return config.model_dump(mode="json", exclude_none=True)


def _layout(found: Rung | str, rollout_devices: int) -> Mapping[str, Any] | str:
    if isinstance(found, str):
        return found
    return {
        "num_devices": found.num_devices,
        "mesh": {"data": found.data, "fsdp": found.fsdp},
        "per_device_batch": found.per_device_batch,
        "accumulation": found.accumulation,
        **({"rollout_devices": rollout_devices} if rollout_devices else {}),
    }
