"""Reads YAML into plain data and remembers on which line each key stands.

The YAML 1.2 core schema: `1e-3` is a number and `off` is a string, unlike in PyYAML's default.
Duplicate keys and tags beyond the core schema are refused. Aliases work, and so do merge keys
(`<<: *defaults`), which are no part of YAML 1.2 but in many a config.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from supervisor.config.problems import ConfigError, Location, Problem, key_path, shown
from supervisor.config.secret_names import is_hidden

_MAX_BYTES = 1 << 20
_MAX_VALUES = 100_000
"""Aliases of aliases grow exponentially: a small file must not fill the memory."""
_MAX_DEPTH = 50
_MERGE = "<<"
_QUOTED = re.compile(r"\b(alias|anchor|handle|tag) .*", re.DOTALL)
_NEEDS_QUOTES = r"\1; text that begins with *, & or ! needs quotes"
"""Where PyYAML's words quote the file, which may be a secret that begins with `*`, `&` or `!`."""
_ESCAPES = r"; in double quotes a \ begins an escape, in 'single quotes' it stands for itself"
_MAX_DIGITS = 18
"""More is a slip, and the journal takes no integer that does not fit a float."""
_TAG = "tag:yaml.org,2002:"


class _CoreLoader(yaml.SafeLoader):
    """Resolves the tags of the core schema; what they construct is in `_SCALARS`."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


def _integer(text: str) -> int:
    """`010` is ten: octal is written `0o10`."""
    if len(text) > _MAX_DIGITS:
        raise ValueError("too many digits")
    return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))


_SCALARS: dict[str, tuple[re.Pattern[str], Callable[[str], Any]]] = {}
for _name, _pattern, _first, _construct in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""], lambda text: None),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF"), lambda text: text[0] in "tT"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789"), _integer),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+0123456789."),
        lambda text: float(re.sub(r"\.(?=[a-zA-Z])", "", text) if text[-1] in "fFnN" else text),
    ),
):
    _SCALARS[_TAG + _name] = (re.compile(rf"(?:{_pattern})\Z"), _construct)
    _CoreLoader.add_implicit_resolver(_TAG + _name, _SCALARS[_TAG + _name][0], _first)
_SCALARS[_TAG + "str"] = (re.compile(r"(?s:.*)"), str)


@dataclass
class YamlSource:
    """A parsed config: its data, and where each part of it comes from."""

    name: str
    data: Any
    lines: dict[Location, int] = field(default_factory=dict)
    overrides: dict[Location, str] = field(default_factory=dict)
    values: int = 0
    """How many were read, what was merged and is overridden included."""

    def origin(self, location: Location) -> str:
        """`file:line` of the key, or of the nearest key above it; or the option that set it."""
        for end in range(len(location), -1, -1):
            if location[:end] in self.overrides:
                return f"--set {self.overrides[location[:end]]}"
            if location[:end] in self.lines:
                return f"{self.name}:{self.lines[location[:end]]}"
        return self.name

    def overridden(self, location: Location, override: str) -> None:
        """Note that all below `location` now comes from the option `override`."""
        for origins in (self.lines, self.overrides):
            for key in [key for key in origins if key[: len(location)] == location]:
                del origins[key]
        self.overrides[location] = override

    def problem(self, location: Location, message: str) -> Problem:
        """The problem at `location`."""
        return Problem(self.origin(location), key_path(location), message)


def read_source(path: Path) -> YamlSource:
    """The YAML document in `path`.

    Raises:
        ConfigError: it is missing, unreadable, too large, or not one YAML document.
    """
    name = str(path)
    try:
        with path.open("rb") as file:  # whatever a person names: a link, a pipe, standard input
            data = file.read(_MAX_BYTES + 1)
        text = data.decode("utf-8")
    except FileNotFoundError:
        raise _refused(name, "no such file") from None
    except OSError as error:
        raise _refused(name, f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise _refused(name, f"is not UTF-8 text (byte {error.start})") from error
    if len(data) > _MAX_BYTES:
        raise _refused(name, f"larger than {_MAX_BYTES} bytes: is this a config?")
    return parse_source(name, text)


def parse_source(name: str, text: str) -> YamlSource:
    """The YAML document in `text`; see `read_source`."""
    root = _compose(name, text)
    if root is None:
        raise _refused(name, "is empty; a config starts with `trainer:`")
    source = YamlSource(name, None)
    source.data = _plain(root, (), source, depth=0)
    return source


def _compose(name: str, text: str) -> yaml.Node | None:
    try:
        return yaml.compose(text, Loader=_CoreLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{name}:{mark.line + 1}" if mark is not None else name
        problem = _QUOTED.sub(_NEEDS_QUOTES, error.problem or "")
        problem += _ESCAPES if "unknown escape character" in problem else ""
        raise _refused(where, f"not valid YAML: {problem}") from None  # it quotes the line
    except RecursionError as error:
        raise _refused(name, "nested too deeply") from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # Characters that YAML forbids, and escapes such as "\UFFFFFFFF", which PyYAML lets through.
        raise _refused(name, f"not valid YAML: {str(error).splitlines()[0]}") from error


def parse_value(text: str, location: Location) -> Any:
    """The value that `text` has at a place of the config: for `--set key=text`."""
    root = _compose("--set", text) if text.strip() else None
    return None if root is None else _plain(root, location, YamlSource("--set", None), depth=0)


class _CoreDumper(yaml.SafeDumper):
    """Quotes what would not be read as text."""

    yaml_implicit_resolvers = dict(_CoreLoader.yaml_implicit_resolvers)  # noqa: RUF012

    def ignore_aliases(self, data: Any) -> bool:
        """Everything is written out."""
        return True


_CoreDumper.add_implicit_resolver(_TAG + "merge", re.compile(rf"{_MERGE}\Z"), [_MERGE[0]])


def written(data: Any) -> str:
    """The text of a config that reads as `data`."""
    return yaml.dump(data, Dumper=_CoreDumper, sort_keys=False)


def _plain(node: yaml.Node, location: Location, source: YamlSource, depth: int) -> Any:
    """The data of `node`, its lines noted in `source`."""
    if depth > _MAX_DEPTH:
        raise _refused_node(source, node, location[:1], "nested too deeply")
    source.values += 1
    if source.values > _MAX_VALUES:
        raise _refused_node(source, node, location[:1], f"more than {_MAX_VALUES} values")
    source.lines.setdefault(location, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
        return dict(_items(node, location, source, depth))
    if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
        return [
            _plain(item, (*location, index), source, depth + 1)
            for index, item in enumerate(node.value)
        ]
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node, location, source)
    raise _refused_tag(source, node, location)


def _scalar(node: yaml.ScalarNode, location: Location, source: YamlSource) -> Any:
    pattern, construct = _SCALARS.get(node.tag, (None, str))
    if pattern is None:
        raise _refused_tag(source, node, location)
    text = _text(node, location, source)
    if pattern.match(text) is None:
        kind = node.tag.removeprefix(_TAG)
        message = f"is not of type {kind} (value {shown(text, location)})"
        raise _refused_node(source, node, location, message)
    try:
        return construct(text)
    except ValueError:
        message = f"is an integer of more than {_MAX_DIGITS} digits; text needs quotes"
        message += f" (value {shown(text, location)})"
        raise _refused_node(source, node, location, message) from None


def _text(node: yaml.ScalarNode, location: Location, source: YamlSource) -> str:
    text = str(node.value)
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        value = shown(text, location)
        message = f"holds a character that no file name or argument can (value {value})"
        raise _refused_node(source, node, location, message)
    return text


def _items(
    node: yaml.MappingNode, location: Location, source: YamlSource, depth: int
) -> Iterator[tuple[str, Any]]:
    seen: set[str] = set()
    merged: list[yaml.Node] = []
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise _refused_node(source, key_node, location, "a key must be text")
        key = _text(key_node, location, source)
        if key == _MERGE and key_node.style is None:
            merged.append(value_node)
            continue
        if key in seen:
            raise _refused_node(source, key_node, (*location, key), "stands here twice")
        seen.add(key)
        source.lines[(*location, key)] = key_node.start_mark.line + 1
        yield key, _plain(value_node, (*location, key), source, depth + 1)
    for value_node in merged:
        for key, value in _merged(value_node, location, source, depth + 1):
            if key not in seen:
                seen.add(key)
                yield key, value


def _merged(
    node: yaml.Node, location: Location, source: YamlSource, depth: int
) -> Iterator[tuple[str, Any]]:
    """What a merge key brings: the mappings that it names, an earlier one before a later one."""
    nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
    for each in nodes:
        if not isinstance(each, yaml.MappingNode):
            message = (
                "`<<` merges mappings: give an alias of one (<<: *defaults), or a list of them"
            )
            raise _refused_node(source, each, location, message)
        apart = YamlSource(source.name, None, values=source.values)
        apart.data = _plain(each, location, apart, depth)
        source.values = apart.values
        for where, line in apart.lines.items():  # those of what overrides it stay
            source.lines.setdefault(where, line)
        yield from apart.data.items()


def _refused(name: str, message: str) -> ConfigError:
    return ConfigError([Problem(name, "", message)])


def _refused_tag(source: YamlSource, node: yaml.Node, location: Location) -> ConfigError:
    told = "its tag" if is_hidden(location) else f"tag {node.tag}"
    message = f"{told} does not belong in a config; text that begins with ! needs quotes"
    return _refused_node(source, node, location, message)


def _refused_node(
    source: YamlSource, node: yaml.Node, location: Location, message: str
) -> ConfigError:
    origin = f"{source.name}:{node.start_mark.line + 1}"
    return ConfigError([Problem(origin, key_path(location), message)])
