"""Reads the trainer's part of trainer.yaml, and tells what is wrong with it.

It must load quickly and without jax: the supervisor asks for a check (`trainer.check`) before it
starts anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from supervisor.protocol.location import Uri
from supervisor.protocol.shortening import beginning
from trainer.schema import (
    Adafactor,
    AdamW,
    DataloaderConfig,
    FitConfig,
    Lion,
    PhaseConfig,
    Sgd,
    TrainerConfig,
)
from trainer.sources import matching_files
from trainer.tokenizer import VOCABULARY_SIZE

Location = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a config. `known` holds the keys allowed in place of an unknown one."""

    loc: Location
    message: str
    value: Any = None
    known: tuple[str, ...] = ()

    def __str__(self) -> str:
        value = beginning(repr(self.value), 200)
        text = f"{'.'.join(map(str, self.loc))} = {value}: {self.message}"
        return f"{text} (known: {', '.join(self.known)})" if self.known else text


class ConfigError(ValueError):
    """A configuration that cannot be trained; `problems` tells all that is wrong with it."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("invalid configuration\n" + "\n".join(f"  {one}" for one in problems))
        self.problems = problems


def parse(mapping: Mapping[str, Any]) -> TrainerConfig:
    """The configuration of one phase in `mapping`, `{"trainer": {...}}`.

    Raises:
        ConfigError: with every problem found.
    """
    try:
        config = PhaseConfig.model_validate(mapping).trainer
    except ValidationError as error:
        raise ConfigError([_problem(one, mapping) for one in error.errors()]) from None
    problems = _contradictions(config)
    if problems:
        raise ConfigError(problems)
    return config


def _contradictions(config: TrainerConfig) -> list[Problem]:
    """What no single field can see."""
    init, model, optimizer = config.init, config.init.model, config.init.optimizer
    directory = init.checkpoint.directory
    problems = []

    def require(holds: bool, loc: str, value: object, message: str) -> None:
        if not holds:
            problems.append(Problem(("trainer", *loc.split(".")), message, value))

    require(
        model.hidden_size % (2 * model.num_heads) == 0,
        "init.model.num_heads",
        model.num_heads,
        f"hidden_size {model.hidden_size} must be a multiple of 2 x num_heads: rotary embeddings "
        "need heads of an even size",
    )
    require(
        model.num_heads % model.num_kv_heads == 0,
        "init.model.num_kv_heads",
        model.num_kv_heads,
        f"must divide num_heads, {model.num_heads}: query heads share key/value heads in groups",
    )
    require(
        model.vocab_size >= VOCABULARY_SIZE or not _reads_text(config.fit),
        "init.model.vocab_size",
        model.vocab_size,
        f"must be at least {VOCABULARY_SIZE}, the tokenizer's",
    )
    require(
        optimizer.warmup_steps <= init.loop.max_steps,
        "init.optimizer.warmup_steps",
        optimizer.warmup_steps,
        f"must not exceed loop.max_steps, {init.loop.max_steps}",
    )
    require(
        init.loop.fsdp == 1 or not init.is_bitwise,
        "init.loop.fsdp",
        init.loop.fsdp,
        "must be 1 for determinism.elastic: bitwise, which computes on the whole state on every "
        "device",
    )
    require(
        isinstance(directory, Uri) or directory.is_absolute(),
        "init.checkpoint.directory",
        str(directory),
        "must be an absolute path",
    )
    require(
        not isinstance(directory, Uri) or find_spec("gcsfs") is not None,
        "init.checkpoint.directory",
        str(directory),
        "needs gcsfs here: pip install '.[gcs]' in a checkout",
    )
    problems += _unmatched(config.fit.train_dataloader, "train_dataloader")
    if config.fit.validation is not None:
        problems += _unmatched(config.fit.validation.dataloader, "validation", "dataloader")
    return problems


def _reads_text(fit: FitConfig) -> bool:
    """Whether the tokenizer is ours."""
    loaders = [fit.train_dataloader, *([fit.validation.dataloader] if fit.validation else [])]
    return any(loader.tokens_field is None for loader in loaders)


def _unmatched(loader: DataloaderConfig, *where: str) -> list[Problem]:
    loc = ("trainer", "fit", *where, "paths")
    message = "matches no file here: give an existing path, a glob that matches, or stdlib"
    return [Problem(loc, message, one) for one in loader.paths if not matching_files(one)]


def _problem(error: ErrorDetails, mapping: Mapping[str, Any]) -> Problem:
    """pydantic's `error` in terms of the file's keys (pydantic puts union tags among them)."""
    loc, section = _section(error["loc"], mapping)
    kind, value, message = error["type"], error["input"], error["msg"]
    if kind == "extra_forbidden":
        return Problem(loc, "unknown key", value, tuple(section.model_fields))
    if kind == "missing":
        return Problem(loc, "required", None)
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        tag = error.get("ctx", {}).get("tag")
        return Problem((*loc, "name"), f"must be one of {', '.join(_BY_NAME)}", tag)
    return Problem(loc, message.removeprefix("Value error, "), value)


def _section(loc: Location, mapping: Any) -> tuple[Location, type[BaseModel]]:
    """`loc` without union tags, and the class of the section that its last key is in."""
    section: type[BaseModel] = PhaseConfig
    path: list[str | int] = []
    last = len(loc) - 1
    for position, part in enumerate(loc):
        inside = isinstance(mapping, Mapping) and part in mapping
        if not inside and position < last and isinstance(part, str):
            section = _BY_NAME[part]
            continue
        path.append(part)
        if position < last and inside:
            mapping = mapping[part]
            section = _section_class(section.model_fields[str(part)].annotation) or section
    return tuple(path), section


_BY_NAME: dict[str, type[BaseModel]] = {
    "adamw": AdamW,
    "lion": Lion,
    "adafactor": Adafactor,
    "sgd": Sgd,
}


def _section_class(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_section_class(one) for one in get_args(annotation))
    return next((one for one in found if one is not None), None)
