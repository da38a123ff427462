"""Makes the JSON Schema of trainer.yaml (draft 2020-12), for editors.

`make schema` writes it to a file beside this module. The package ships that file, and `supervise
schema` prints it. The schema has the keys, with the types, bounds, forms and descriptions of their
values, and clauses: which keys need or exclude one another. It accepts all that `supervise
validate` accepts, except for numbers that are written as text.

`supervise validate` checks what a JSON Schema cannot express:
* numbers that are compared with other numbers: backoff.max and backoff.first, the ladder and the
  number of devices, a batch and the devices that share it;
* names that refer to others, and lists with something twice or without effect: rules, phases;
* whether a regular expression compiles, a TPU slice of a size exists, or a file is there;
* a text that is a number: a duration of more than a week, a size of more than 1 EiB;
* what an editor's YAML reader does not show: 3.0 in place of 3, NaN, a key that comes twice.
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

from supervisor.config.load import EXIT_CODE_PRESETS, OWN_EXIT_CODES
from supervisor.config.schema import TRAINER_SECTIONS, Phase
from supervisor.config.schema_clauses import (
    Clause,
    absent,
    at_least_one,
    exactly_one,
    given,
    has,
    if_there,
    when,
)
from supervisor.config.yaml_source import LARGEST_INTEGER
from supervisor.protocol.fault_injection import SIMULATED

FILE = Path(__file__).with_name("trainer.schema.json")


def json_schema() -> dict[str, Any]:
    """Returns the JSON Schema of a whole trainer.yaml."""
    phase = Phase.model_json_schema(ref_template="#/$defs/{model}")
    defs = phase.pop("$defs")
    defs["Phase"] = phase
    for model in sorted(_models_below(Phase), key=lambda model: model.__name__):
        _describe(defs[model.__name__], model)
    phase["allOf"] = _phase_clauses()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "trainer.yaml",
        "description": "A job of `supervise run`.",
        "type": "object",
        "properties": {"trainer": _trainer(), "exit_codes": _exit_codes()},
        "patternProperties": {"^x-": {"description": "For anchors alone; ignored."}},
        "required": ["trainer"],
        "additionalProperties": False,
        "$defs": _completed(dict(sorted(defs.items()))),
    }


def _trainer() -> Clause:
    """Returns the schema of `trainer`. An editor that has a choice (`anyOf`) reports the errors of
    the wrong alternative; `if` tells it which one is meant."""
    several = {
        "type": "object",
        "properties": {"trainer": {"$ref": "#/$defs/Phase"}},
        "required": ["trainer"],
        "additionalProperties": False,
        "errorMessage": "Each phase is a mapping with the one key `trainer`.",
    }
    without_earlier = when(
        given("start_from"),
        given("start_from.directory", "The first phase has no earlier phase to start from."),
    )
    first = {"properties": {"trainer": without_earlier}}
    return {
        "description": "The one phase of the job, or a list of phases that run in order.",
        "type": ["object", "array"],
        "errorMessage": "`trainer` is a mapping (one phase), or a list of phases.",
        "if": {"type": "array"},
        "then": {
            "minItems": 1,
            "items": several,
            "allOf": [{"prefixItems": [first]}],
        },
        "else": {
            "if": {"type": ["object", "null"]},
            "then": {"allOf": [{"$ref": "#/$defs/Phase"}, without_earlier]},
        },
    }


def _exit_codes() -> Clause:
    """Returns the schema of `exit_codes`."""
    code = {"type": "integer", "minimum": 0, "maximum": 255}
    return {
        "description": "Exit codes of `supervise run` in place of its own: a preset, or a map from "
        "one to the other.",
        "type": ["string", "object", "null"],
        "if": {"type": "string"},
        "then": {"enum": [*EXIT_CODE_PRESETS]},
        "else": {
            # Not `properties`: yaml-language-server does not find a key there that is a number.
            "patternProperties": {f"^(?:{'|'.join(OWN_EXIT_CODES)})$": code},
            "additionalProperties": False,
            "errorMessage": "`supervise run` does not end with this code.",
        },
    }


def _phase_clauses() -> list[Clause]:
    """Returns what `conflicts` says about the keys of a phase, as far as a schema can say it."""
    sections = [
        absent(f"init.{key}", "It is only for our trainer (fit).") for key in TRAINER_SECTIONS
    ]
    with_devices = at_least_one(
        "init.devices.count",
        "init.devices.type",
        message="It needs devices with a count or a type.",
    )
    imports = "A standby can be ready only with fit, one worker, and no TPU: use imports or off."
    not_ready = if_there(
        "init.autorestart.standby", {"enum": ["imports", "off", False, None]}, imports
    )
    simulated = "This drill needs simulated devices: init.devices {platform: cpu, count: N}."
    return [
        exactly_one("fit", "command"),
        when(
            given("fit"),
            absent("init.checkpoint.verify", "Our trainer (fit) verifies its checkpoints anyway."),
            *(given(f"init.{key}", f"`fit` needs init.{key}.") for key in ("model", "loop")),
            when(
                given("fit.train_dataloader"),
                given("init.optimizer", "Training needs init.optimizer."),
                given("init.loop.max_steps", "Training needs init.loop.max_steps."),
            ),
        ),
        when(
            given("command"),
            *sections,
            absent("start_from", "It is only for our trainer (fit)."),
            absent("faults", "Drills need our trainer (fit)."),
            absent("init.checkpoint.snapshot", "Snapshots need our trainer (fit)."),
            not_ready,
        ),
        when(has("init.workers", {"type": "integer", "minimum": 2}), with_devices, not_ready),
        when(has("init.devices.platform", {"const": "tpu"}), not_ready),
        when(given("init.autorestart.ladder"), with_devices),
        when(given("init.autorestart.min_num_slices"), given("init.devices.slices")),
        when(
            has("faults", {"contains": {"anyOf": [given(kind) for kind in SIMULATED]}}),
            given("init.devices.count", simulated),
            has("init.devices.platform", {"const": "cpu"}, simulated),
        ),
    ]


def _completed(schema: Any) -> Any:
    """Returns `schema` with what pydantic leaves out: the upper bound that the YAML reader sets for
    integers, and that a mapping has no keys but those of its patterns."""
    if isinstance(schema, list):
        return [_completed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    completed = {key: _completed(part) for key, part in schema.items()}
    if schema.get("type") == "integer" and "exclusiveMaximum" not in schema:
        completed["maximum"] = min(schema.get("maximum", LARGEST_INTEGER), LARGEST_INTEGER)
    if "patternProperties" in schema:
        completed.setdefault("additionalProperties", False)
    return completed


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
