"""Applies `--set KEY=VALUE`: a key from the command line, which overrides the config file."""

from __future__ import annotations

import re
from typing import Any

from supervisor.config.problems import ConfigError, Location, Problem, key_path
from supervisor.config.secret_names import REDACTED, is_hidden
from supervisor.config.yaml_source import YamlSource, parse_value

_WORD = re.compile(r"[\w-]+")
_KEY = re.compile(r"[\w.\[\]-]*")
_MAX_PARTS = 100
"""The most parts of a key."""
_SHOWN = 20
"""How many characters of a key with too many parts are shown."""
_STEP = re.compile(r"([A-Za-z_][\w-]*)|\[(\d+)\]")


def apply_override(source: YamlSource, override: str) -> None:
    """Sets one key in the data: `trainer.x` in every phase, `trainer[1].x` in the phase 1.

    Raises:
        ConfigError: `override` is not KEY=VALUE, or the config cannot have such a key.
    """
    key, equals, text = override.partition("=")
    if key.count(".") + key.count("[") >= _MAX_PARTS:
        message = f"has more than {_MAX_PARTS} parts: no key is so deep"
        raise ConfigError([Problem(f"--set {key[:_SHOWN]}...", "", message)])
    path = _parse_path(key)
    if not equals or path is None or path[0] != "trainer" or len(path) < 2:
        message = "is not of the form trainer.init.seed=3 or trainer[1].init.seed=3"
        raise ConfigError([Problem(f"--set {_redacted_invalid_option(override)}", "", message)])
    told = _redacted_option(path, text)
    try:
        for location in _expanded(source, path):
            # The text is parsed once for each place, so that phases do not share a mutable value.
            _assign(source.data, location, parse_value(text, path))
            source.overridden(location, told)
    except _NoPlaceError as error:
        raise ConfigError([Problem(f"--set {told}", key_path(path), str(error))]) from None
    except ConfigError as error:
        found = [
            Problem(f"--set {told}", key_path(path), _with_quotes(path, problem.message))
            for problem in error.problems
        ]
        raise ConfigError(found) from None


def _with_quotes(path: Location, message: str) -> str:
    """Returns the message, with how to write text that is no YAML."""
    if "not valid YAML" not in message:
        return message
    return f"{message}; text needs quotes of its own: --set \"{key_path(path)}='...'\""


def _redacted_option(path: Location, text: str) -> str:
    """Returns the option as messages show it: without its value if that may be or hold a
    secret."""
    if is_hidden((*path, *_WORD.findall(text))):
        return f"{key_path(path)}={REDACTED}"
    return f"{key_path(path)}={text}"


def _redacted_invalid_option(override: str) -> str:
    """Returns an option that is not KEY=VALUE as messages show it: without secrets."""
    if not is_hidden(_WORD.findall(override)):
        return override
    path = _parse_path(_KEY.match(override)[0])  # type: ignore[index]  # it matches anything
    return f"{key_path(path or ())}={REDACTED}"


class _NoPlaceError(Exception):
    """The config has no such place."""


def _assign(data: Any, location: Location, value: Any) -> None:
    """Sets `location` in `data` to `value`, and creates sections on the way that are missing or
    empty."""
    target = data
    for part in location[:-1]:
        if isinstance(target, dict) and isinstance(part, str) and target.get(part) is None:
            target[part] = {}
        target = target[_checked(target, part)]
    target[_checked(target, location[-1])] = value


def _checked(target: Any, part: str | int) -> Any:
    """Returns `part`. _NoPlaceError: it cannot be set in `target`."""
    if isinstance(part, str) and not isinstance(target, dict):
        raise _NoPlaceError(f"{part!r} cannot be set: the value above it is not a mapping")
    if isinstance(part, int) and not (isinstance(target, list) and part < len(target)):
        raise _NoPlaceError(f"there is no item [{part}]: the value is not a list, or is shorter")
    return part


def _parse_path(key: str) -> Location | None:
    parts: list[str | int] = []
    for piece in key.replace("[", ".[").split("."):
        match = _STEP.fullmatch(piece)
        if match is None:
            return None
        parts.append(match[1] if match[1] else int(match[2]))
    return tuple(parts)


def _expanded(source: YamlSource, path: Location) -> list[Location]:
    phases = source.data.get("trainer") if isinstance(source.data, dict) else None
    if not isinstance(phases, list):
        return [path]
    if isinstance(path[1], int):
        if path[1] >= len(phases):
            message = f"there is no phase {path[1]}; there are {len(phases)}, counted from 0"
            raise _NoPlaceError(message)
        return [("trainer", path[1], "trainer", *path[2:])]
    return [("trainer", index, "trainer", *path[1:]) for index in range(len(phases))]
