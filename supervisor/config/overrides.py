"""`--set KEY=VALUE`: one key of the config, from the command line, above what the file says."""

from __future__ import annotations

import re

from supervisor.config.problems import ConfigError, Location, Problem, key_path
from supervisor.config.source import Source, parse_scalar

_STEP = re.compile(r"([A-Za-z_][\w-]*)|\[(\d+)\]")


def apply_override(source: Source, override: str) -> None:
    """Set one key in the data; `trainer.x` in every phase, `trainer[1].x` in that one."""
    key, equals, text = override.partition("=")
    path = _parse_path(key)
    if not equals or path is None or path[0] != "trainer" or len(path) < 2:
        message = "is not KEY=VALUE with a KEY such as trainer.init.seed or trainer[1].init.seed"
        raise ConfigError([Problem(f"--set {override}", "", message)])
    value = parse_scalar(text)
    for location in _expanded(source, path):
        target = source.data
        for part in location[:-1]:
            if isinstance(target, dict):
                target = target.setdefault(part, {})
            elif isinstance(target, list) and isinstance(part, int) and part < len(target):
                target = target[part]
            if not isinstance(target, dict | list):
                raise ConfigError([Problem(f"--set {override}", key, "does not lead to a mapping")])
        if not isinstance(target, dict):
            raise ConfigError([Problem(f"--set {override}", key, "does not lead to a mapping")])
        target[location[-1]] = value
        source.overrides[location] = override


def _parse_path(key: str) -> Location | None:
    parts: list[str | int] = []
    for piece in key.replace("[", ".[").split("."):
        match = _STEP.fullmatch(piece)
        if match is None:
            return None
        parts.append(match[1] if match[1] else int(match[2]))
    return tuple(parts)


def _expanded(source: Source, path: Location) -> list[Location]:
    phases = source.data.get("trainer") if isinstance(source.data, dict) else None
    if not isinstance(phases, list):
        return [path]
    if isinstance(path[1], int):
        if path[1] >= len(phases):
            message = f"there is no phase {path[1]}; there are {len(phases)}, counted from 0"
            raise ConfigError([Problem(f"--set {key_path(path)}", "", message)])
        return [("trainer", path[1], "trainer", *path[2:])]
    return [("trainer", index, "trainer", *path[1:]) for index in range(len(phases))]
