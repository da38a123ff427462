"""Clauses of the JSON Schema: which keys can be given together, and which need one another.

A validator of a model refuses such a config. The clause beside it lets an editor refuse it too.
`errorMessage` replaces the editor's own sentence (yaml-language-server, VS Code); other tools
ignore it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict, GetJsonSchemaHandler
from pydantic_core import CoreSchema

Clause = dict[str, Any]

NOT_GIVEN: Clause = {"enum": [None, False, "", []]}
"""The values that mean the same as a missing key."""


@dataclass(frozen=True, eq=False)
class Keywords:
    """Adds keywords to the JSON Schema of a type: what its validator refuses."""

    form: Clause

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> Clause:
        """Returns the JSON Schema with these keywords."""
        known = handler(schema)
        return {"allOf": [known, self.form]} if known.keys() & self.form else known | self.form


@dataclass(frozen=True, eq=False)
class AlternativeForm:
    """Adds another form to the JSON Schema of a type, which a validator accepts too."""

    form: Clause

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> Clause:
        """Returns the JSON Schema that accepts both forms."""
        return {"anyOf": [self.form, handler(schema)]}


def with_clauses(*clauses: Clause, **keywords: Any) -> ConfigDict:
    """Returns the configuration of a model whose JSON Schema has these clauses, and `keywords` in
    place of its own."""
    return ConfigDict(json_schema_extra={"allOf": list(clauses), **keywords})


def has(path: str, value: Clause, message: str | None = None) -> Clause:
    """Returns the clause that the key at `path` (a.b.c) is there and its value is like `value`."""
    for key in reversed(path.split(".")):
        value = {"required": [key], "properties": {key: value}}
        value |= {} if message is None else {"errorMessage": message}
    return value


def given(path: str, message: str | None = None) -> Clause:
    """Returns the clause that the key at `path` is given."""
    return has(path, {"not": NOT_GIVEN}, message)


def if_there(path: str, value: Clause, message: str | None = None) -> Clause:
    """Returns the clause that the value at `path` is like `value`, if the key is there."""
    value = value if message is None else {**value, "errorMessage": message}
    for key in reversed(path.split(".")):
        value = {"properties": {key: value}}
    return value


def absent(path: str, message: str) -> Clause:
    """Returns the clause that the key at `path` is not given."""
    return if_there(path, NOT_GIVEN, message)


def when(condition: Clause, *then: Clause) -> Clause:
    """Returns the clause that all of `then` hold if the condition does."""
    return {"if": condition, "then": then[0] if len(then) == 1 else {"allOf": list(then)}}


def at_least_one(*keys: str, message: str | None = None) -> Clause:
    """Returns the clause that one of the keys is given, or several are."""
    message = message or f"Give at least one of {', '.join(keys)}."
    return {"anyOf": [given(key, message) for key in keys]}


def at_most_one(*keys: str, message: str | None = None) -> Clause:
    """Returns the clause that none of the keys is given, or only one. It is not `oneOf`, for which
    an editor has no message of ours, and no key to mark."""
    message = message or f"Give at most one of {', '.join(keys)}."
    return {
        "allOf": [
            when(given(key), *(absent(other, message) for other in keys[index + 1 :]))
            for index, key in enumerate(keys[:-1])
        ]
    }


def exactly_one(*keys: str) -> Clause:
    """Returns the clause that one of the keys is given and no other."""
    message = f"Give exactly one of {', '.join(keys)}."
    return {"allOf": [at_least_one(*keys, message=message), at_most_one(*keys, message=message)]}
