"""`python -m trainer.check`: what is wrong with a config, its defaults, and its rungs; without jax.

One JSON object on standard input, `{"trainer": {...}, "device_counts": [N, ...]}` (the full number
first; none where it is not known), one on standard output: `errors`, `resolved` (the trainer's
sections with every default; empty where there are errors), and of the counts the `rungs` and the
`unusable` ones, each with its reason.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from supervisor.protocol.shortening import beginning
from trainer.config import ConfigError, Problem, parse
from trainer.records import DataError, first_records
from trainer.rungs import Rung, infeasible, ladder
from trainer.schema import DataloaderConfig, InitConfig, TrainerConfig

_MAX_VALUE = 200


def check(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to `request`, both as in the module's description."""
    try:
        config = parse(request)
    except ConfigError as error:
        return _answer(error.problems)
    problems = _unreadable(config)
    if problems:
        return _answer(problems)
    counts = request.get("device_counts", [])
    if not counts:
        return _answer(_unresolved(config.init), _resolved(config))
    config = _with_micro_batch(config, counts[0])
    problems = infeasible(config.init, counts[0])
    if problems:
        return _answer(problems)
    return _answer([], _resolved(config)) | _ladder(config.init, counts)


def _unreadable(config: TrainerConfig) -> list[Problem]:
    """Data files that cannot be read, or whose first record is not what the config says."""
    fit, vocab_size = config.fit, config.init.model.vocab_size
    loaders: list[tuple[tuple[str, ...], DataloaderConfig]]
    loaders = [(("train_dataloader",), fit.train_dataloader)]
    if fit.validation is not None:
        loaders.append((("validation", "dataloader"), fit.validation.dataloader))
    problems = []
    for where, loader in loaders:
        try:
            first_records(loader, vocab_size)
        except (DataError, OSError) as error:
            problems.append(Problem(("trainer", "fit", *where, "paths"), str(error)))
    return problems


def _unresolved(init: InitConfig) -> list[Problem]:
    """What cannot be known without the number of devices, and must be."""
    if not init.is_bitwise or init.loop.micro_batch_size is not None:
        return []
    message = (
        "must be given for determinism.elastic: bitwise where init.devices does not say how many "
        "devices there are"
    )
    return [Problem(("trainer", "init", "loop", "micro_batch_size"), message)]


def _with_micro_batch(config: TrainerConfig, num_devices: int) -> TrainerConfig:
    """`config` where a device holds as much on a smaller rung as on the full one, unless it says
    otherwise: shrinking must not run out of the memory that was enough before."""
    loop = config.init.loop
    if loop.micro_batch_size is not None:
        return config
    share = max(1, loop.global_batch_size // num_devices)
    init = config.init.model_copy(
        update={"loop": loop.model_copy(update={"micro_batch_size": share})}
    )
    return config.model_copy(update={"init": init})


def _resolved(config: TrainerConfig) -> dict[str, Any]:
    return {"trainer": config.model_dump(mode="json", exclude_none=True)}


def _answer(problems: list[Problem], resolved: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "errors": [_error(one) for one in problems],
        "resolved": resolved or {},
        "rungs": [],
        "unusable": [],
    }


def _ladder(init: InitConfig, counts: list[int]) -> dict[str, Any]:
    found = ladder(init, counts)
    return {
        "rungs": [_rung(one) for one in found.values() if isinstance(one, Rung)],
        "unusable": [
            {"num_devices": count, "reason": reason}
            for count, reason in found.items()
            if isinstance(reason, str)
        ],
    }


def _error(problem: Problem) -> dict[str, Any]:
    error = {"loc": problem.loc, "message": problem.message, "value": _bounded(problem.value)}
    return error | ({"known": problem.known} if problem.known else {})


def _rung(one: Rung) -> dict[str, Any]:
    return {
        "num_devices": one.num_devices,
        "mesh": {"data": one.data, "fsdp": one.fsdp},
        "per_device_batch": one.per_device_batch,
        "accumulation": one.accumulation,
    }


def _bounded(value: object) -> object:
    """`value` where it is a small JSON scalar, else the beginning of how it prints."""
    if value is None or isinstance(value, bool | int):
        return value if -(2**63) < (value or 0) < 2**63 else beginning(repr(value), _MAX_VALUE)
    if isinstance(value, str):
        return beginning(value, _MAX_VALUE)
    return (
        value
        if isinstance(value, float) and abs(value) < 1e300
        else beginning(repr(value), _MAX_VALUE)
    )


if __name__ == "__main__":
    json.dump(check(json.load(sys.stdin)), sys.stdout)
