"""Checks a phase of our trainer, fills in its defaults, and lays it out on each rung."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from supervisor.config.problems import Location
from supervisor.config.training.data_files import DataError, check_first_records
from supervisor.config.training.layout import Rung, full_rung_problem, ladder
from supervisor.config.training.resolved import InitConfig, TrainerConfig, parse_with_problems
from supervisor.config.training.sections import DataloaderConfig


@dataclass(frozen=True, slots=True)
class CheckedSections:
    """The result of a check. If there are problems, the other fields are empty."""

    problems: Sequence[tuple[Location, str]] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    """The trainer's sections with all defaults filled in."""
    layouts: Mapping[int, Mapping[str, Any] | str] = field(default_factory=dict)
    """By number of devices: how the trainer uses them, or as a text why it cannot."""


def check(trainer: Mapping[str, Any], device_counts: Sequence[int] = ()) -> CheckedSections:
    """Checks the phase in `trainer` for these numbers of devices, the full one first.

    `device_counts` is empty if the number of devices is not known.
    """
    config, problems = parse_with_problems(trainer)
    if config is not None and not problems:
        problems = [*_unreadable(config)]
    if config is None or problems:
        return CheckedSections(problems)
    if not device_counts:
        return CheckedSections([*_unresolved(config.init)], _params(config))
    config = _with_micro_batch(config, device_counts[0])
    problem = full_rung_problem(config.init, device_counts[0])
    if problem is not None:
        return CheckedSections([problem])
    found = ladder(config.init, device_counts)
    layouts = {count: _layout(one) for count, one in found.items()}
    return CheckedSections((), _params(config), layouts)


def _unreadable(config: TrainerConfig) -> Iterator[tuple[Location, str]]:
    """Yields the data files that cannot be read, or whose first record is not of the form that the
    config says: the key and the message."""
    fit, vocab_size = config.fit, config.init.model.vocab_size
    loaders: list[tuple[tuple[str, ...], DataloaderConfig]]
    loaders = [(("train_dataloader",), fit.train_dataloader)]
    if fit.validation is not None:
        loaders.append((("validation", "dataloader"), fit.validation.dataloader))
    for where, loader in loaders:
        try:
            check_first_records(loader, vocab_size)
        except (DataError, OSError) as error:
            yield ("fit", *where, "paths"), str(error)


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
    share = max(1, loop.global_batch_size // num_devices)
    init = config.init.model_copy(
        update={"loop": loop.model_copy(update={"micro_batch_size": share})}
    )
    return config.model_copy(update={"init": init})


def _params(config: TrainerConfig) -> dict[str, Any]:
    return config.model_dump(mode="json", exclude_none=True)


def _layout(found: Rung | str) -> Mapping[str, Any] | str:
    if isinstance(found, str):
        return found
    return {
        "num_devices": found.num_devices,
        "mesh": {"data": found.data, "fsdp": found.fsdp},
        "per_device_batch": found.per_device_batch,
        "accumulation": found.accumulation,
    }
