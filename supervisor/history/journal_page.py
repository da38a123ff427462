"""Writes docs/reference/journal.md: the form of the journal, and the schema of all values in it.

python -m supervisor.history.journal_page > docs/reference/journal.md

The schema is made of the code's classes: names, docstrings, types and defaults.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from supervisor.core.decisions import Decision
from supervisor.core.events import VOLATILE, Event
from supervisor.core.policy import RestartPolicy
from supervisor.core.state import JobState
from supervisor.history.encoding import KIND, encode, tag
from supervisor.history.journal_text import FIELDS, HEAD, STATES, VALUES, VOLATILE_PARTS
from supervisor.history.past import Past
from supervisor.history.upcasters import SINCE

_JSON = {str: "text", int: "whole number", float: "number", bool: "true or false", NoneType: "null"}


def page() -> str:
    """Returns the page as Markdown."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield HEAD
    yield "## Events\n"
    for kind in get_args(Event):
        yield from _section(kind, since=True)
    yield "## Decisions\n"
    for kind in get_args(Decision):
        yield from _section(kind, since=True)
    yield STATES
    for kind in (JobState, Past):
        yield from _section(kind)
    yield VALUES
    shown = {*get_args(Event), *get_args(Decision), JobState, Past}
    for kind in _reached(Event, Decision, JobState, Past, RestartPolicy):
        if kind not in shown:
            yield from _section(kind)


def _reached(*types: Any, found: dict[Any, None] | None = None) -> list[Any]:
    """Returns the dataclasses and enumerations that values of these types contain, by name."""
    found = {} if found is None else found
    for kind in types:
        if not (isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, Enum))):
            _reached(*get_args(kind), found=found)
        elif kind not in found:
            found[kind] = None
            _reached(*(_parts(kind) if is_dataclass(kind) else ()), found=found)
    return sorted(found, key=lambda kind: str(kind.__name__))


def _parts(kind: type) -> Iterator[Any]:
    """Yields the types of the fields that a record can have."""
    for name, hint in _hints(kind).items():
        if kind is not JobState or name not in VOLATILE_PARTS:
            yield hint


def _section(kind: type, *, since: bool = False) -> Iterator[str]:
    yield f"### {kind.__name__}\n"
    yield f"{_meaning(kind)}\n"
    if since:
        volatile = " In the journal only where something is decided." if kind in VOLATILE else ""
        yield f"Since format {SINCE.get(kind.__name__, 1)}.{volatile}\n"
    rows = _values(kind) if issubclass(kind, Enum) else _fields(kind)
    yield from rows
    yield ""


def _values(kind: type[Enum]) -> Iterator[str]:
    told = _told(kind)
    yield "| value | meaning |"
    yield "|---|---|"
    for each in kind:
        yield f"| `{each.value}` | {told.get(each.name, each.name)} |"


def _fields(kind: Any) -> Iterator[str]:
    told = _told(kind)
    if not fields(kind):
        return
    yield "| field | type | where it is missing | meaning |"
    yield "|---|---|---|---|"
    for field in fields(kind):
        shown = _shown(_hints(kind)[field.name])
        meaning = told.get(field.name) or FIELDS.get(field.name, "")
        if kind is JobState and field.name in VOLATILE_PARTS:
            shown = "object"
        if field.name == KIND:
            shown, meaning = f"`{tag(kind)}`", "Names the class."
        yield f"| `{field.name}` | {shown} | {_default(kind, field)} | {meaning} |"


def _default(kind: Any, field: Field[Any]) -> str:
    """Returns the value of the field in a record that lacks it, as JSON or in words."""
    if field.default is not MISSING:
        value = field.default
    elif field.default_factory is not MISSING:
        value = field.default_factory()
    else:
        return "damaged"
    if is_dataclass(value):
        return "its own defaults"
    return f"`{json.dumps(encode(value, _hints(kind)[field.name]))}`"


def _shown(kind: Any) -> str:
    """Returns a type in words, for people."""
    origin, args = get_origin(kind), get_args(kind)
    if kind in _JSON:
        return _JSON[kind]
    if isinstance(kind, type) and issubclass(kind, str) and not issubclass(kind, Enum):
        return _JSON[str]
    if origin in (Union, UnionType):
        return ("one of " if len(args) > 3 else "") + " or ".join(map(_shown, args))
    if origin is Literal:
        return " or ".join(f"`{each}`" for each in args)
    if origin is tuple:
        return f"list, each {_shown(args[0])}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"object, by {_shown(args[0])}: {_shown(args[1])}"
    return f"[{kind.__name__}](#{kind.__name__.lower()})"


def _meaning(kind: type) -> str:
    """Returns the docstring of a class, as one line."""
    return " ".join((inspect.getdoc(kind) or "").split())


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


@cache
def _told(kind: type) -> dict[str, str]:
    """Returns the docstrings of the class's fields or values, by name."""
    found, name = {}, None
    for node in _definition(kind).body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=defined)):
                name = defined
            case ast.Assign(targets=[ast.Name(id=defined)]):
                name = defined
            case ast.Expr(value=ast.Constant(value=str(text))) if name is not None:
                found[name], name = " ".join(text.split()), None
            case _:
                name = None
    return found


def _definition(kind: type) -> ast.ClassDef:
    module = _module(kind.__module__)
    return next(
        node
        for node in module.body
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__
    )


@cache
def _module(name: str) -> ast.Module:
    return ast.parse(inspect.getsource(sys.modules[name]))


if __name__ == "__main__":
    print(page(), end="")
