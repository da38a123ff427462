"""Translates pydantic's errors into words for the person who has to correct the config."""

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
"""Messages that replace those of pydantic which name Python classes."""
_TAGS = ("union_tag_invalid", "union_tag_not_found")
_TOO_SHORT = 5
"""The most characters of a value that is too short to be a secret: a number, `false`."""


def violations(
    error: ValidationError, model: type[BaseModel], data: Any, base: Location = ()
) -> Iterator[tuple[Location, str]]:
    """Yields each wrong key of `data` and the message about it; `data` is at `base` in the file."""
    for item in error.errors(include_url=False):
        if item["type"] == "default_factory_not_called":  # the error of another key explains it
            continue
        where = data_location(data, item["loc"])
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
        return _unknown_kind_message(item, model, location)
    if kind == "string_type" and location[-3:-1] == ("command", "env"):
        return _not_text_message(str(location[-1]), value)
    if is_hidden(location) and kind == "value_error":
        return "cannot be used"  # the message of a ValueError of ours may quote the value
    message = _WORDS.get(kind) or item["msg"].removeprefix("Value error, ")
    quoted = "; YAML reads text that looks like JSON as such: put 'quotes' around it"
    remedy = quoted if kind == "string_type" and isinstance(value, dict | list) else ""
    return f"{message[0].lower()}{message[1:]} (value {shown(value, location)}){remedy}"


def _unknown_kind_message(item: ErrorDetails, model: type[BaseModel], location: Location) -> str:
    """Returns the message about a mapping whose `name` is missing or unknown."""
    known = ", ".join(str(_tag(kind)) for kind in _kinds(model, item["loc"]))
    tag = item.get("ctx", {}).get("tag")
    given = "" if tag is None else f" (value {shown(tag, location)})"
    return f"must be one of {known}{given}"


def _not_text_message(name: str, value: Any) -> str:
    """Returns the message about a variable whose value is no text.

    It shows the value only if that is too short to be a secret.
    """
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


def data_location(data: Any, relative: Sequence[str | int]) -> Location:
    """Returns the location of a key in `data`, from its location `relative` in the schema.

    The schema's location may have parts that `data` does not have: those of a short form, and the
    tag that selects one of several kinds of a mapping.
    """
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
    """Returns the keys that the schema has at `location` below `model`."""
    kinds = _kinds(model, location)
    return list(dict.fromkeys(name for kind in kinds for name in kind.model_fields))


def _kinds(model: type[BaseModel], location: Sequence[str | int]) -> list[type[BaseModel]]:
    """Returns the models that the section at `location` may have. If pydantic has put the tag of
    one into `location`, it is that one."""
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
    """Returns the only value that the key `name` of this model can have; None: there is not exactly
    one."""
    field = model.model_fields.get("name")
    names = get_args(field.annotation) if field is not None else ()
    return names[0] if len(names) == 1 else None


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and not isinstance(annotation, GenericAlias):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [found for arg in get_args(annotation) for found in _models_in(arg)]
