"""Reads YAML into plain data, with the line of each key.

The schema is the YAML 1.2 core schema: `1e-3` is a number and `off` is text, unlike PyYAML's
default. Duplicate keys and other tags are refused. Aliases work. Merge keys (`<<: *defaults`) work
too: YAML 1.2 does not have them, but many configs do.
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
"""The most values in a file. Aliases of aliases grow exponentially, and a small file must not fill
the memory."""
_MAX_DEPTH = 50
_MERGE = "<<"
_QUOTED = re.compile(r"\b(alias|anchor|handle|tag) .*", re.DOTALL)
_NEEDS_QUOTES = r"\1; text that begins with *, & or ! needs quotes"
"""Replaces the part of PyYAML's message (`_QUOTED`) that quotes the file: it may be a secret that
begins with `*`, `&` or `!`."""
_ESCAPES = r"; in double quotes a \ begins an escape, in 'single quotes' it stands for itself"
_MAX_DIGITS = 18
"""The most digits of an integer. A longer one is a mistake, and the journal takes only integers
that fit a float."""
LARGEST_INTEGER = 10**_MAX_DIGITS - 1
_TAG = "tag:yaml.org,2002:"


class _CoreLoader(yaml.SafeLoader):
    """Resolves the tags of the core schema. `_SCALARS` has the functions that construct values."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


def _integer(text: str) -> int:
    """Returns the integer `text`: `010` is ten, `0o10` is eight. ValueError: too many digits."""
    if len(text) <= _MAX_DIGITS:
        value = int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
        if value <= LARGEST_INTEGER:  # 0xffffffffffffffff is larger
            return value
    raise ValueError("too many digits")


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
    """A parsed config: its data, and the origin of each part."""

    name: str
    """The path of the file, `--set` or `the command line`, for messages."""
    data: Any
    lines: dict[Location, int] = field(default_factory=dict)
    """The line of each key."""
    overrides: dict[Location, str] = field(default_factory=dict)
    """The `--set` option that set a key, by key."""
    options: dict[Location, str] = field(default_factory=dict)
    """The option of the command line that gives a key, by key, where there is no file."""
    chosen: set[Location] = field(default_factory=set)
    """The keys whose values nobody gave, where there is no file."""
    values: int = 0
    """How many values were read, including merged and overridden ones."""

    def origin(self, location: Location) -> str:
        """Returns `file:line` of the key, or of the nearest key above it, or the option that gives
        it."""
        for end in range(len(location), -1, -1):
            if location[:end] in self.overrides:
                return f"--set {self.overrides[location[:end]]}"
            if location[:end] in self.options:
                return self.options[location[:end]]
            if location[:end] in self.lines:
                return f"{self.name}:{self.lines[location[:end]]}"
        return self.name

    def overridden(self, location: Location, override: str) -> None:
        """Records that everything below `location` now comes from the option `override`."""
        for origins in (self.lines, self.overrides, self.options):
            for key in [key for key in origins if key[: len(location)] == location]:
                del origins[key]
        self.chosen = {key for key in self.chosen if key[: len(location)] != location}
        self.overrides[location] = override

    def problem(self, location: Location, message: str) -> Problem:
        """Returns the problem with the text `message` at `location`. An option of the command line
        stands for its key."""
        origin = self.origin(location)
        is_option = origin in self.options.values()
        return Problem(origin, "" if is_option else key_path(location), message)


def read_source(path: Path) -> YamlSource:
    """Reads the YAML document in `path`.

    Raises:
        ConfigError: the file is missing, unreadable, too large, or not one YAML document.
    """
    name = str(path)
    try:
        with path.open("rb") as file:  # a person names it, so it may be a link, a pipe or stdin
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
    """Parses the YAML document `text`; raises the ConfigError of `read_source`."""
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
        # `from None`: the error of PyYAML quotes the line, which may be a secret.
        raise _refused(where, f"not valid YAML: {problem}") from None
    except RecursionError as error:
        raise _refused(name, "nested too deeply") from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # Forbidden characters, and escapes such as "\UFFFFFFFF", which PyYAML does not refuse.
        raise _refused(name, f"not valid YAML: {str(error).splitlines()[0]}") from error


def parse_value(text: str, location: Location) -> Any:
    """Returns the value of `text` as YAML, for `--set key=text`; `location` is the key.

    Raises:
        ConfigError: `text` is not valid YAML.
    """
    root = _compose("--set", text) if text.strip() else None
    return None if root is None else _plain(root, location, YamlSource("--set", None), depth=0)


class _CoreDumper(yaml.SafeDumper):
    """Quotes texts that `_CoreLoader` would not read as text."""

    yaml_implicit_resolvers = dict(_CoreLoader.yaml_implicit_resolvers)  # noqa: RUF012

    def ignore_aliases(self, data: Any) -> bool:
        """Returns True: a repeated value is written out in full."""
        return True


_CoreDumper.add_implicit_resolver(_TAG + "merge", re.compile(rf"{_MERGE}\Z"), [_MERGE[0]])


def to_yaml(data: Any) -> str:
    """Returns `data` as YAML; `parse_source` reads the same data from it."""
    return yaml.dump(data, Dumper=_CoreDumper, sort_keys=False)


def _plain(node: yaml.Node, location: Location, source: YamlSource, depth: int) -> Any:
    """Returns the data of `node`, and adds its lines to `source`."""
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
            raise _refused_node(source, key_node, (*location, key), "is here twice")
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
    """Yields the items of the mappings that a merge key names, in order. If a key comes twice,
    the caller uses the first one."""
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
        for where, line in apart.lines.items():  # keys that override the merged ones keep theirs
            source.lines.setdefault(where, line)
        yield from apart.data.items()


def _refused(name: str, message: str) -> ConfigError:
    return ConfigError([Problem(name, "", message)])


def _refused_tag(source: YamlSource, node: yaml.Node, location: Location) -> ConfigError:
    told = "a tag" if is_hidden(location) else f"the tag {node.tag}"
    message = f"a config cannot have {told}; text that begins with ! needs quotes"
    return _refused_node(source, node, location, message)


def _refused_node(
    source: YamlSource, node: yaml.Node, location: Location, message: str
) -> ConfigError:
    origin = f"{source.name}:{node.start_mark.line + 1}"
    return ConfigError([Problem(origin, key_path(location), message)])
