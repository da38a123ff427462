"""From a file and `--set` options to a checked job config; every problem is told at once."""

from __future__ import annotations

import json
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from supervisor.config.checks import conflicts, conflicts_across
from supervisor.config.overrides import apply_override
from supervisor.config.problems import (
    ConfigError,
    Location,
    Problem,
    shown,
    unknown_key,
)
from supervisor.config.schema import Phase
from supervisor.config.secret_names import is_hidden, is_secret
from supervisor.config.source import Source, read_source
from supervisor.host.state_folder import state_folder
from supervisor.protocol.location import Uri

EXIT_CODE_PRESETS: dict[str, dict[int, int]] = {
    # XPK restarts on 42 and on 127 to 255, and takes everything else for the end.
    "xpk": {1: 42, 69: 42, 74: 42, 75: 42},
}
_TOO_SHORT = 5
"""Characters: a number, `false`."""


@dataclass(frozen=True, slots=True)
class Job:
    """A checked config: its phases in order, and where each stands in the file."""

    source: Source
    phases: tuple[Phase, ...]
    locations: tuple[Location, ...]
    exit_codes: Mapping[int, int]

    @property
    def remote(self) -> Uri | None:
        """Where model_dir is in an object store; None: it is a directory."""
        return Uri.parse(self.phases[0].init.model_dir)

    @property
    def model_dir(self) -> Path:
        """The job's directory on this host, absolute: of what is in an object store, the copy."""
        if self.remote is not None:
            return state_folder(str(self.remote))
        return Path(self.phases[0].init.model_dir).expanduser().absolute()

    def problem(self, index: int, where: Location, message: str) -> Problem:
        """The problem of the phase `index` at a place of the schema."""
        location = _in_data(self.source.data, self.locations[index], where)
        return self.source.problem(location, message)

    @property
    def place(self) -> Path | Uri:
        """What people and programs call model_dir."""
        return self.remote or self.model_dir


def load_job(path: Path, overrides: Sequence[str] = ()) -> Job:
    """The job in the file at `path`, with `key=value` overrides on top.

    Raises:
        ConfigError: with everything that is wrong.
    """
    source = read_source(path)
    problems: list[Problem] = []
    for override in overrides:
        with _noting(problems):
            apply_override(source, override)
    if problems:
        raise ConfigError(problems)
    data = _mapping(source)
    problems += _unknown_at_top(source, data)
    exit_codes: Mapping[int, int] = {}
    locations: list[Location] = []
    phases: list[Phase] = []
    with _noting(problems):
        exit_codes = _exit_codes(source, data.get("exit_codes"))
    with _noting(problems):
        locations = _phase_locations(source, data.get("trainer"))
    for location in locations:
        try:
            phases.append(Phase.model_validate(_at(source.data, location)))
        except ValidationError as error:
            problems += _problems(source, location, error)
        else:
            problems += [
                source.problem(_in_data(source.data, location, where), message)
                for where, message in conflicts(phases[-1])
            ]
    if not problems:
        problems = [
            source.problem(_in_data(source.data, locations[index], where), message)
            for index, where, message in conflicts_across(phases)
        ]
    if problems:
        raise ConfigError(problems)
    source.data = _without_extensions(data)
    return Job(source, tuple(phases), tuple(locations), exit_codes)


@contextmanager
def _noting(problems: list[Problem]) -> Iterator[None]:
    """Add what is found wrong inside to `problems`, and go on."""
    try:
        yield
    except ConfigError as error:
        problems += error.problems


def _mapping(source: Source) -> dict[str, Any]:
    if isinstance(source.data, dict):
        return source.data
    message = f"is not a mapping (value {shown(source.data)}); a config starts with `trainer:`"
    raise ConfigError([source.problem((), message)])


def _unknown_at_top(source: Source, data: Mapping[str, Any]) -> Iterator[Problem]:
    known = ("trainer", "exit_codes")
    for key, value in data.items():
        if key not in known and not key.startswith(_EXTENSION):
            yield source.problem((key,), unknown_key((key,), value, known, _remedy(key, value)))


def _remedy(key: str, value: Any) -> str | None:
    """What to do about an unknown key at the top, if its name or its value tells."""
    if key in Phase.model_fields:
        return f"it belongs below `trainer:` (trainer.{key})"
    if isinstance(value, dict):
        return f"what is there for its anchors alone begins with {_EXTENSION} ({_EXTENSION}{key})"
    return None


def _phase_locations(source: Source, trainer: Any) -> list[Location]:
    if trainer is None:
        raise ConfigError([source.problem(("trainer",), "is required")])
    if isinstance(trainer, dict):
        return [("trainer",)]
    if not isinstance(trainer, list):
        raise ConfigError(
            [source.problem(("trainer",), f"is not a mapping or a list (value {shown(trainer)})")]
        )
    if not trainer:
        raise ConfigError(
            [source.problem(("trainer",), "is an empty list; give at least one phase")]
        )
    problems = [
        source.problem(
            ("trainer", index),
            f"each phase is a mapping with the one key `trainer` (value {shown(item)})",
        )
        for index, item in enumerate(trainer)
        if not (isinstance(item, dict) and list(item) == ["trainer"])
    ]
    if problems:
        raise ConfigError(problems)
    return [("trainer", index, "trainer") for index in range(len(trainer))]


def _exit_codes(source: Source, value: Any) -> Mapping[int, int]:
    if value is None:
        return {}
    if isinstance(value, str) and value in EXIT_CODE_PRESETS:
        return EXIT_CODE_PRESETS[value]
    if isinstance(value, dict) and all(
        re.fullmatch(r"[0-9]{1,3}", key) and type(code) is int and 0 <= code <= 255
        for key, code in value.items()
    ):
        return {int(key): code for key, code in value.items()}
    presets = ", ".join(EXIT_CODE_PRESETS)
    message = f"is neither a preset ({presets}) nor a map of exit codes (value {shown(value)})"
    raise ConfigError([source.problem(("exit_codes",), message)])


def _at(data: Any, location: Location) -> Any:
    for part in location:
        data = data[part]
    return data


def _without_extensions(data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if not key.startswith(_EXTENSION)}


_EXTENSION = "x-"
"""Keys at the top that are for anchors alone, as in a file for Docker Compose."""
_WORDS = {
    "model_type": "is not a mapping",
    "dict_type": "is not a mapping",
    "list_type": "is not a list",
}
"""pydantic's words where they speak of classes."""


def _problems(source: Source, base: Location, error: ValidationError) -> Iterator[Problem]:
    for item in error.errors(include_url=False):
        location = _in_data(source.data, base, item["loc"])
        value = item["input"]
        if item["type"] == "extra_forbidden":
            known = known_keys(Phase, location[len(base) : -1])
            yield source.problem(location, unknown_key(location, value, known))
        elif item["type"] == "missing":
            yield source.problem(location, "is required")
        elif item["type"] == "string_type" and location[-3:-1] == ("command", "env"):
            yield source.problem(location, _to_be_quoted(str(location[-1]), value))
        elif item["type"] == "value_error" and is_hidden(location):
            yield source.problem(location, "cannot be used")  # our own words quote the value
        else:
            message = _WORDS.get(item["type"]) or item["msg"].removeprefix("Value error, ")
            text = f"{message[0].lower()}{message[1:]} (value {shown(value, location)})"
            yield source.problem(location, text)


def _to_be_quoted(name: str, value: Any) -> str:
    """What is wrong with a variable whose value is no text; only what is too short for a secret
    is shown."""
    items = value if isinstance(value, list) else [value]
    words = [json.dumps(item) for item in items if isinstance(item, int | float)]
    is_shown = len(words) == len(items) and all(len(word) <= _TOO_SHORT for word in words)
    text = ",".join(words) if words and is_shown and not is_secret(name) else "..."
    return f"is no text, as a variable must be; quote it: {name}: '{text}'"


def _in_data(data: Any, base: Location, relative: Sequence[str | int]) -> Location:
    """A location in the schema, without the parts that the file does not have (a short form's)."""
    location = list(base)
    current = _at(data, base)
    for index, part in enumerate(relative):
        last = index == len(relative) - 1
        inside = (isinstance(current, dict) and part in current) or (
            isinstance(current, list) and isinstance(part, int) and part < len(current)
        )
        if inside:
            current = current[part]
            location.append(part)
        elif last and isinstance(current, dict) and isinstance(part, str) and part.isidentifier():
            location.append(part)
    return tuple(location)


def known_keys(model: type[BaseModel], location: Sequence[str | int]) -> list[str]:
    """The keys that the schema knows at `location` below `model`."""
    for part in location:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part)
        inner = _model_in(field.annotation) if field is not None else None
        if inner is None:
            return []
        model = inner
    return list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return annotation if issubclass(annotation, BaseModel) else None
    return next((found for arg in get_args(annotation) if (found := _model_in(arg))), None)
