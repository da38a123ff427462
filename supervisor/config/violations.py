"""pydantic's errors in the words of the person who has to mend the config."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from types import GenericAlias
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from supervisor.config.problems import Location, shown, unknown_key
from supervisor.config.secret_names import is_hidden, is_secret

_WORDS = {
    "model_type": "is not a mapping",
    "model_attributes_type": "is not a mapping",
    "dict_type": "is not a mapping",
    "list_type": "is not a list",
}
"""pydantic's words where they speak of classes."""
_TAGS = ("union_tag_invalid", "union_tag_not_found")
_TOO_SHORT = 5
"""Characters: a number, `false`."""


def violations(
    error: ValidationError, model: type[BaseModel], data: Any, base: Location = ()
) -> Iterator[tuple[Location, str]]:
    """Yield each key of `data` (at `base` in the file) that is wrong, and what is wrong with it."""
    for item in error.errors(include_url=False):
        if item["type"] == "default_factory_not_called":  # another key is wrong, and told
            continue
        where = in_data(data, item["loc"])
        if item["type"] in _TAGS:
            where = (*where, "name")
        yield where, _message(item, model, (*base, *where))


def _message(item: ErrorDetails, model: type[BaseModel], location: Location) -> str:
    kind, value = item["type"], item["input"]
    if kind == "extra_forbidden":
        return unknown_key(location, value, known_keys(model, item["loc"][:-1]))
    if kind == "missing":
        return "is required"
    if kind in _TAGS:
        return _untagged(item, model, location)
    if kind == "string_type" and location[-3:-1] == ("command", "env"):
        return _to_be_quoted(str(location[-1]), value)
    if is_hidden(location) and kind == "value_error":
        return "cannot be used"  # our own words quote the value
    message = _WORDS.get(kind) or item["msg"].removeprefix("Value error, ")
    return f"{message[0].lower()}{message[1:]} (value {shown(value, location)})"


def _untagged(item: ErrorDetails, model: type[BaseModel], location: Location) -> str:
    """A mapping of which no `name` says what it is."""
    known = ", ".join(str(_tag(kind)) for kind in _kinds(model, item["loc"]))
    tag = item.get("ctx", {}).get("tag")
    given = "" if tag is None else f" (value {shown(tag, location)})"
    return f"must be one of {known}{given}"


def _to_be_quoted(name: str, value: Any) -> str:
    """What is wrong with a variable whose value is no text; only what is too short for a secret
    is shown."""
    if value is None:
        return f"has no value, and a variable must be text; an empty one is {name}: ''"
    items = value if isinstance(value, list) else [value]
    words = [json.dumps(item) for item in items if isinstance(item, int | float)]
    is_shown = len(words) == len(items) and all(len(word) <= _TOO_SHORT for word in words)
    if isinstance(value, dict | list) and not (words and len(words) == len(items)):
        kind = "mapping" if isinstance(value, dict) else "list"
        return f"is a {kind}, and a variable must be text: write it as the program reads it"
    text = ",".join(words) if words and is_shown and not is_secret(name) else "..."
    return f"is no text, as a variable must be; quote it: {name}: '{text}'"


def in_data(data: Any, relative: Sequence[str | int]) -> Location:
    """A location of the schema without the parts that `data` does not have: those of a short form,
    and the tag by which a mapping is of one of several kinds."""
    location: list[str | int] = []
    current = data
    for index, part in enumerate(relative):
        last = index == len(relative) - 1
        inside = (isinstance(current, Mapping) and part in current) or (
            isinstance(current, list) and isinstance(part, int) and part < len(current)
        )
        if inside:
            current = current[part]
            location.append(part)
        elif (
            last and isinstance(current, Mapping) and isinstance(part, str) and part.isidentifier()
        ):
            location.append(part)
    return tuple(location)


def known_keys(model: type[BaseModel], location: Sequence[str | int]) -> list[str]:
    """The keys that the schema knows at `location` below `model`."""
    kinds = _kinds(model, location)
    return list(dict.fromkeys(name for kind in kinds for name in kind.model_fields))


def _kinds(model: type[BaseModel], location: Sequence[str | int]) -> list[type[BaseModel]]:
    """Of which kinds the section at `location` may be; pydantic puts the tag of one into it."""
    kinds = [model]
    for part in location:
        tagged = [kind for kind in kinds if _tag(kind) == part]
        if tagged:
            kinds = tagged
        elif isinstance(part, str):
            fields = [kind.model_fields[part] for kind in kinds if part in kind.model_fields]
            kinds = [kind for field in fields for kind in _models_in(field.annotation)]
    return kinds


def _tag(model: type[BaseModel]) -> Any:
    """The one name that a section of this kind has, if it has one."""
    field = model.model_fields.get("name")
    names = get_args(field.annotation) if field is not None else ()
    return names[0] if len(names) == 1 else None


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and not isinstance(annotation, GenericAlias):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [found for arg in get_args(annotation) for found in _models_in(arg)]
