"""The JSON Schema that the package ships: what an editor is told is what `validate` accepts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.cli.main import main
from supervisor.config import json_schema
from supervisor.config.yaml_source import parse_source
from tests.config.files import COMMAND, FIT, PHASES, with_command, with_init, with_restart

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = json.loads(json_schema.FILE.read_text(encoding="utf-8"))
CONFIGS = [*(ROOT / "examples").rglob("*.yaml"), *(ROOT / "benchmarks").rglob("trainer*.yaml")]
SHORT_FORMS = [
    COMMAND,
    FIT,
    PHASES,
    COMMAND + "exit_codes: xpk\nx-mine: [1]\n",
    COMMAND + "exit_codes: {'75': 42}\n",
    with_command("argv: [a]\nenv: {A: b}\nsuccess: {step: 3}\nprogress: {pattern: '(1)'}"),
    with_init("checkpoint: {every: 5m, snapshot: {every: 3}}\nlimits: {outputs: 10GiB}", FIT),
    with_restart("max_num_restarts: 3\nstandby: false\ndeadlines: {SAVING: 30s, TRAINING: 5}"),
    with_restart(
        "max_num_restarts: 3\nrules: [{exit_code: 3, stage: SAVING, verdict: POLICY, remedy: wait, "
        "examples: [lost]}]"
    ),
]


@pytest.fixture(scope="module")
def problems() -> Any:
    """What the schema has against a config."""
    jsonschema = pytest.importorskip("jsonschema", reason="pip install jsonschema")
    jsonschema.Draft202012Validator.check_schema(SHIPPED)
    validator = jsonschema.Draft202012Validator(SHIPPED)

    def found(text: str) -> list[str]:
        return [error.message for error in validator.iter_errors(parse_source("c", text).data)]

    return found


def test_the_file_is_that_of_the_code() -> None:
    assert json_schema.FILE.read_text(encoding="utf-8") == json_schema.text(), "run `make schema`"


def test_the_verb_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == SHIPPED


def _keys(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, section in schema["$defs"].items():
        for key, known in section.get("properties", {}).items():
            yield f"{name}.{key}", known


@pytest.mark.parametrize(("place", "key"), [*_keys(SHIPPED)])
def test_each_key_has_a_description(place: str, key: dict[str, Any]) -> None:
    assert key["description"].endswith((".", "...", ")")), place
    assert "None:" not in key["description"], "a config has no None"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_each_example_is_valid_and_names_it(path: Path, problems: Any) -> None:
    text = path.read_text(encoding="utf-8")
    assert problems(text) == []
    comment = text.splitlines()[0]
    assert comment.startswith("# yaml-language-server: $schema=")
    named = path.parent / comment.partition("$schema=")[2]
    assert named.resolve() == json_schema.FILE


@pytest.mark.parametrize("text", SHORT_FORMS)
def test_what_the_tests_configure_is_valid(text: str, problems: Any) -> None:
    assert problems(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "trainer: []",
        COMMAND.replace("command", "comand"),
        COMMAND.replace("3", "-3"),
        with_init("devices: {platform: abacus}"),
        with_restart("max_num_restarts: 3\ndeadlines: {TRAINING: soon}"),
        FIT.replace("loop:", "lop:"),
        FIT.replace("sgd", "sgdd"),
        FIT.replace("train_dataloader", "dataloader"),
        COMMAND + "exit_codes: slurm\n",
    ],
)
def test_a_mistake_is_seen(text: str, problems: Any) -> None:
    assert problems(text)
