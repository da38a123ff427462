"""Reads YAML into plain data and remembers on which line each key stands.

The YAML 1.2 core schema: `1e-3` is a number and `off` is a string, unlike in PyYAML's default.
Duplicate keys are refused; aliases work, merge keys (`<<`) are not part of YAML 1.2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from supervisor.config.problems import ConfigError, Location, Problem, key_path

_MAX_BYTES = 1 << 20


class _CoreLoader(yaml.SafeLoader):
    """Constructs only null, booleans, numbers, strings, lists and mappings."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+0123456789."),
    ),
):
    _CoreLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), _first
    )


@dataclass
class Source:
    """A parsed config: its data, and where each part of it comes from."""

    name: str
    data: Any
    lines: dict[Location, int] = field(default_factory=dict)
    overrides: dict[Location, str] = field(default_factory=dict)

    def origin(self, location: Location) -> str:
        """`file:line` of the key, or of the nearest key above it; or the option that set it."""
        for end in range(len(location), -1, -1):
            if location[:end] in self.overrides:
                return f"--set {self.overrides[location[:end]]}"
            if location[:end] in self.lines:
                return f"{self.name}:{self.lines[location[:end]]}"
        return self.name

    def problem(self, location: Location, message: str) -> Problem:
        """The problem at `location`."""
        return Problem(self.origin(location), key_path(location), message)


def read_source(path: Path) -> Source:
    """The YAML document in `path`.

    Raises:
        ConfigError: it is missing, unreadable, too large, or not one YAML document.
    """
    name = str(path)
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise _refused(name, f"larger than {_MAX_BYTES} bytes: is this a config?")
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise _refused(name, "no such file") from None
    except OSError as error:
        raise _refused(name, f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise _refused(name, f"is not UTF-8 text (byte {error.start})") from error
    return parse_source(name, text)


def parse_source(name: str, text: str) -> Source:
    """The YAML document in `text`; see `read_source`."""
    loader = _CoreLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            raise _refused(name, "is empty; a config starts with `trainer:`")
        source = Source(name, None)
        source.data = _plain(loader, root, (), source, depth=0)
        return source
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{name}:{mark.line + 1}" if mark is not None else name
        raise ConfigError([Problem(where, "", f"not valid YAML: {error.problem}")]) from error
    except yaml.YAMLError as error:
        raise _refused(name, f"not valid YAML: {str(error).splitlines()[0]}") from error
    finally:
        loader.dispose()


def parse_scalar(text: str) -> Any:
    """The value that `text` has in a config: for `--set key=text`."""
    return parse_source("--set", text).data if text.strip() else None


def _plain(
    loader: _CoreLoader, node: yaml.Node, location: Location, source: Source, depth: int
) -> Any:
    if depth > 50:
        raise _refused(f"{source.name}:{node.start_mark.line + 1}", "nested too deeply")
    source.lines.setdefault(location, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        return dict(_items(loader, node, location, source, depth))
    if isinstance(node, yaml.SequenceNode):
        return [
            _plain(loader, item, (*location, index), source, depth + 1)
            for index, item in enumerate(node.value)
        ]
    return loader.construct_object(node)


def _items(
    loader: _CoreLoader, node: yaml.MappingNode, location: Location, source: Source, depth: int
) -> Iterator[tuple[str, Any]]:
    seen: set[str] = set()
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
        if not isinstance(key, str):
            raise ConfigError(
                [Problem(f"{source.name}:{line}", key_path(location), "a key must be text")]
            )
        if key in seen:
            here = key_path((*location, key))
            raise ConfigError([Problem(f"{source.name}:{line}", here, "stands here twice")])
        seen.add(key)
        source.lines[(*location, key)] = line
        yield key, _plain(loader, value_node, (*location, key), source, depth + 1)


def _refused(name: str, message: str) -> ConfigError:
    return ConfigError([Problem(name, "", message)])
