"""Makes the JSON Schema of trainer.yaml (draft 2020-12), for editors.

`make schema` writes it to a file beside this module. The package ships that file, and `supervise
schema` prints it. The schema has the keys, their types and their descriptions. `supervise validate`
checks what a JSON Schema cannot express: that values fit together, that a pattern compiles, that a
file exists.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import GenericAlias
from typing import Any, get_args

from pydantic import BaseModel

from supervisor.config.load import EXIT_CODE_PRESETS
from supervisor.config.schema import Phase

FILE = Path(__file__).with_name("trainer.schema.json")
_CODE = {"type": "integer", "minimum": 0, "maximum": 255}


def json_schema() -> dict[str, Any]:
    """Returns the JSON Schema of a whole trainer.yaml."""
    phase = Phase.model_json_schema(ref_template="#/$defs/{model}")
    defs = phase.pop("$defs")
    defs["Phase"] = phase
    for model in sorted(_models_below(Phase), key=lambda model: model.__name__):
        _describe(defs[model.__name__], model)
    phase["if"] = {"required": ["fit"]}
    phase["then"] = {"properties": {"init": {"required": ["model", "optimizer", "loop"]}}}
    phase["else"] = {"required": ["command"]}
    several = {
        "type": "object",
        "properties": {"trainer": {"$ref": "#/$defs/Phase"}},
        "required": ["trainer"],
        "additionalProperties": False,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "trainer.yaml",
        "description": "A job of `supervise run`.",
        "type": "object",
        "properties": {
            "trainer": {
                "description": "The one phase of the job, or a list of phases that run in order.",
                "anyOf": [
                    {"$ref": "#/$defs/Phase"},
                    {"type": "array", "items": several, "minItems": 1},
                ],
            },
            "exit_codes": {
                "description": "Exit codes of `supervise run` in place of its own: a preset, or "
                "a map from one to the other.",
                "anyOf": [
                    {"enum": [*EXIT_CODE_PRESETS]},
                    {
                        "type": "object",
                        "patternProperties": {"^[0-9]{1,3}$": _CODE},
                        "additionalProperties": False,
                    },
                ],
            },
        },
        "patternProperties": {"^x-": {"description": "For anchors alone; ignored."}},
        "required": ["trainer"],
        "additionalProperties": False,
        "$defs": dict(sorted(defs.items())),
    }


def text() -> str:
    """Returns the content of `FILE`."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


def _describe(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Adds to `schema` the descriptions of the keys, which are the docstrings below the fields of
    `model`, and removes titles and defaults that are null."""
    documented: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if issubclass(kind, BaseModel):
            documented |= _documented(kind.__module__).get(kind.__name__, {})
    schema.pop("title", None)
    for name, key in schema["properties"].items():
        key.pop("title", None)
        if name in documented:
            key["description"] = documented[name]
        if key.get("default", ...) is None:
            del key["default"]
    schema["description"] = " ".join((schema.get("description") or "").split())


@cache
def _documented(module: str) -> dict[str, dict[str, str]]:
    """Returns for each class of a module the docstrings of its attributes, by name."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return {one.name: dict(_texts(one.body)) for one in classes}


def _texts(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for here, below in pairwise(body):
        if (
            isinstance(here, ast.AnnAssign)
            and isinstance(here.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        ):
            yield here.target.id, " ".join(str(below.value.value).split())


def _models_below(annotation: Any) -> set[type[BaseModel]]:
    """Returns the models in a type and, recursively, in the fields of those models."""
    if isinstance(annotation, type) and not isinstance(annotation, GenericAlias):
        if not issubclass(annotation, BaseModel):
            return set()
        below = [_models_below(field.annotation) for field in annotation.model_fields.values()]
        return {annotation}.union(*below)
    return set().union(*map(_models_below, get_args(annotation)))


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
