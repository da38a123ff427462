"""Converts the values of the decision core to JSON and back, by their type annotations alone.

A dataclass becomes an object with all of its fields. If several dataclasses are possible, the
object also has the name of its class as `kind` (a constant field `kind` provides the name itself).
So the journal follows every change of `JobState`, the events and the decisions, and reading gives
exactly the value that was written.

Reading is strict: an unknown field, or a value of another type, is an error that names its place.
Only a missing field takes its default, because older records lack it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from enum import Enum
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from supervisor.diagnosis.failure import WorkerExit
from supervisor.history.exit_runs import packed, unpacked
from supervisor.host.notice import Notice
from supervisor.protocol.loss_spikes import Measured

KIND = "kind"
_MAX_NAME = 80
_MAX_NUMBER = 1e15
"""As a time in seconds: 30 million years."""
T = TypeVar("T")


class EncodingError(ValueError):
    """A JSON value does not fit the type; the text says where and why."""

    def __init__(self, why: str, *place: str) -> None:
        """`place` is the path of field names, outermost first; `why` says what is wrong there."""
        self.why = why
        self.place = place
        super().__init__(f"{'.'.join(place) or 'it'} {why}")

    def inside(self, name: str) -> EncodingError:
        """Returns the same error with the field `name` in front of its place."""
        return EncodingError(self.why, name[:_MAX_NAME], *self.place)


class _Codec(NamedTuple):
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def encode(value: Any, kind: Any) -> Any:
    """Returns `value`, which has the type `kind`, as JSON."""
    return _codec(kind).encode(value)


def decode(body: Any, kind: Any) -> Any:
    """Returns the value of type `kind` that the JSON `body` stands for.

    Raises:
        EncodingError: it does not fit the type.
    """
    return _codec(kind).decode(body)


def patched(value: T, changes: Mapping[str, Any], kind: Any) -> T:
    """Returns the dataclass `value` with the fields in `changes`, given as JSON, replaced.

    Raises:
        EncodingError: a field does not fit its type.
    """
    hints = _hints(kind)
    decoded = {}
    for name, body in changes.items():
        if name not in hints:
            raise EncodingError("is unknown", name[:_MAX_NAME])
        try:
            decoded[name] = _codec(hints[name]).decode(body)
        except EncodingError as error:
            raise error.inside(name) from None
    return replace(value, **decoded)  # type: ignore[type-var]


def difference(one: Any, other: Any, place: str = "") -> tuple[str, Any, Any] | None:
    """Returns the first place where two JSON values differ, and both values there; None:
    nowhere."""
    if type(one) is type(other) is dict:
        for key in sorted(one.keys() | other.keys()):
            inner = f"{place}.{key}" if place else key
            if (found := difference(one.get(key), other.get(key), inner)) is not None:
                return found
        return None
    if type(one) is type(other) is list and len(one) == len(other):
        for index, pair in enumerate(zip(one, other, strict=True)):
            if (found := difference(*pair, f"{place}[{index}]")) is not None:
                return found
        return None
    return None if repr(one) == repr(other) else (place, one, other)  # by repr: nan != nan


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


@cache
def _codec(kind: Any) -> _Codec:
    if kind in _PLAIN:
        return _PLAIN[kind]
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _union(args)
    if origin is Literal:
        return _literal(args)
    if origin is tuple and args[1:] == (...,):
        inner = _sequence(_codec(args[0]))
        return _in_runs(inner) if args[0] is WorkerExit else inner
    if isinstance(origin, type) and issubclass(origin, Mapping):
        key, inner = args
        return _mapping(_codec(key), _MEASURED if inner is float else _codec(inner))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum(kind)
    if isinstance(kind, type) and is_dataclass(kind):
        return _dataclass(kind)
    raise TypeError(f"{kind} cannot be kept in the journal: give `encoding` a codec for it")


def _checked(*allowed: type, convert: Callable[[Any], Any] = lambda body: body) -> _Codec:
    """Returns the codec for a type that JSON has itself. A JSON value must have one of the types
    `allowed`."""

    def decode(body: Any) -> Any:
        if type(body) not in allowed:
            raise EncodingError(f"is {_named(body)}, not {_WORDS[allowed[0]]}")
        return convert(body)

    return _Codec(lambda value: value, decode)


def _enum(kind: type[Enum]) -> _Codec:
    def decode(body: Any) -> Enum:
        try:
            return kind(body)
        except ValueError:
            raise EncodingError(f"is {_named(body)}, no {kind.__name__}") from None

    return _Codec(lambda value: value.value, decode)


def _sequence(inner: _Codec) -> _Codec:
    def decode(body: Any) -> tuple[Any, ...]:
        if type(body) is not list:
            raise EncodingError(f"is {_named(body)}, not a list")
        return tuple([inner.decode(each) for each in body])

    return _Codec(lambda value: [inner.encode(each) for each in value], decode)


def _in_runs(exits: _Codec) -> _Codec:
    """Returns the codec for workers' ends, those that are alike in one object (`exit_runs`)."""

    def decode(body: Any) -> Any:
        def refuse(why: str) -> EncodingError:
            return EncodingError(why, "ranks")

        return exits.decode(unpacked(body, refuse) if type(body) is list else body)

    return _Codec(lambda value: packed(exits.encode(value)), decode)


def _mapping(key: _Codec, inner: _Codec) -> _Codec:
    def encode(value: Mapping[Any, Any]) -> dict[str, Any]:
        return {key.encode(name): inner.encode(each) for name, each in value.items()}

    def decode(body: Any) -> dict[Any, Any]:
        if type(body) is not dict:
            raise EncodingError(f"is {_named(body)}, not an object")
        return {key.decode(name): inner.decode(each) for name, each in body.items()}

    return _Codec(encode, decode)


def _union(args: tuple[Any, ...]) -> _Codec:
    kinds = [kind for kind in args if kind is not NoneType]
    inner = _codec(kinds[0]) if len(kinds) == 1 else _tagged(tuple(kinds))
    if len(kinds) == len(args):
        return inner
    return _Codec(
        lambda value: None if value is None else inner.encode(value),
        lambda body: None if body is None else inner.decode(body),
    )


def _tagged(kinds: tuple[type, ...]) -> _Codec:
    """Returns the codec for a union of dataclasses; `kind` says which one an object is."""
    if not all(map(is_dataclass, kinds)):
        raise TypeError(f"one of {kinds}: nothing tells in JSON which it is")
    by_name: dict[str, Any] = {tag(kind): kind for kind in kinds}

    def encode(value: Any) -> dict[str, Any]:
        kind: Any = type(value)
        return {KIND: tag(kind), **_codec(kind).encode(value)}

    def decode(body: Any) -> Any:
        if type(body) is not dict:
            raise EncodingError(f"is {_named(body)}, not an object")
        name = body.get(KIND)
        kind = by_name.get(name) if isinstance(name, str) else None
        if kind is None:
            raise EncodingError(f"is {_named(name)}, which is unknown", KIND)
        return _codec(kind).decode({key: each for key, each in body.items() if key != KIND})

    return _Codec(encode, decode)


@cache
def tag(kind: Any) -> str:
    """Returns the `kind` of a class: the value of its constant field `kind`, or its name."""
    is_constant = get_origin(_hints(kind).get(KIND)) is Literal
    return str(get_args(_hints(kind)[KIND])[0]) if is_constant else str(kind.__name__)


def _literal(allowed: tuple[Any, ...]) -> _Codec:
    def decode(body: Any) -> Any:
        if not any(type(body) is type(each) and body == each for each in allowed):
            raise EncodingError(f"is {_named(body)}, not one of {allowed}")
        return body

    return _Codec(lambda value: value, decode)


def _dataclass(kind: Any) -> _Codec:
    @cache
    def known() -> dict[str, tuple[_Codec, Field[Any]]]:  # on first use: a class may contain itself
        hints = _hints(kind)
        return {field.name: (_codec(hints[field.name]), field) for field in fields(kind)}

    def encode(value: Any) -> dict[str, Any]:
        return {name: codec.encode(getattr(value, name)) for name, (codec, _) in known().items()}

    def decode(body: Any) -> Any:
        if type(body) is not dict:
            raise EncodingError(f"is {_named(body)}, not an object")
        there = known()
        values = {}
        for name, each in body.items():
            if name not in there:
                raise EncodingError("is unknown", name[:_MAX_NAME])
            try:
                values[name] = there[name][0].decode(each)
            except EncodingError as error:
                raise error.inside(name) from None
        for name, (_, field) in there.items():
            if name not in values and field.default is MISSING and field.default_factory is MISSING:
                raise EncodingError("is missing", name)
        return kind(**values)

    return _Codec(encode, decode)


def _named(body: Any) -> str:
    """Returns a JSON value in words: the type of an object or a list, else the shortened value."""
    if isinstance(body, dict | list):
        return _WORDS[type(body)]
    return repr(body)[:_MAX_NAME]


def _number(body: float) -> float:
    """Returns a number, most often a time in seconds, unless it is so large that sums with it fail,
    or it is none."""
    if not abs(body) <= _MAX_NUMBER:
        raise EncodingError(f"is {_named(body)}, which is out of range")
    return float(body)


_WORDS = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    NoneType: "null",
    dict: "an object",
    list: "a list",
}
_MEASURED = _checked(float, int, convert=float)
"""A number that a program has measured, such as a loss: it may be NaN or Inf."""
_PLAIN: dict[Any, _Codec] = {
    str: _checked(str),
    int: _checked(int),
    float: _checked(float, int, convert=_number),
    Measured: _MEASURED,
    bool: _checked(bool),
    NoneType: _checked(NoneType),
    Notice: _checked(str, convert=partial(Notice, "")),
}
