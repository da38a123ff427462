"""The JSON Schema that the package ships: what an editor is told is what `validate` accepts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.cli.main import main
from supervisor.config import json_schema, yaml_source
from tests.config.files import (
    COMMAND,
    DATA,
    FIT,
    PHASES,
    problems,
    with_command,
    with_init,
    with_restart,
)

ROOT = Path(__file__).resolve().parents[2]
SHAPE = "{hidden_size: 16, num_layers: 1, num_heads: 4}"
SHIPPED = json.loads(json_schema.FILE.read_text(encoding="utf-8"))
CONFIGS = [*(ROOT / "examples").rglob("*.yaml"), *(ROOT / "benchmarks").rglob("trainer*.yaml")]


def with_rule(keys: str) -> str:
    """A config with one rule, which has these keys."""
    return with_restart(f"max_num_restarts: 3\nrules: [{{{keys}}}]")


VALID = [
    COMMAND,
    FIT,
    PHASES,
    COMMAND + "exit_codes: xpk\nx-mine: [1]\n",
    COMMAND + "exit_codes: {'75': 42}\n",
    with_command("argv: [a]\nenv: {A: b}\nsuccess: {step: 3}\nprogress: {pattern: '(1)'}"),
    with_init("checkpoint: {every: 5m, snapshot: {every: 3}}\nlimits: {outputs: 10GiB}", FIT),
    with_init("checkpoint: {pattern: 'ckpt-(\\d+)', committed: marker, marker: DONE}"),
    with_restart("max_num_restarts: 3\nstandby: false\ndeadlines: {SAVING: 30s, TRAINING: 5}"),
    with_restart(
        "max_num_restarts: 3\nrules: [{exit_code: 3, stage: SAVING, verdict: POLICY, remedy: wait, "
        "examples: [lost]}]"
    ),
    with_init(
        "notify: [{webhook: 'https://a.example/b', on: [finish]}, {command: [mail, me]}, "
        "{webhook: {env: A}, format: json}]"
    ),
    with_init("metrics: {tensorboard: false}", FIT),
    FIT.replace(SHAPE, f"{{pretrained: {ROOT / 'tests' / 'training' / 'pretrained' / 'qwen3'}}}"),
    FIT.replace(SHAPE, f"{{{SHAPE[1:-1]}, pretrained: null, head_size: 6, rope_scaling: null}}"),
    COMMAND + "exit_codes: null\n",
    COMMAND + "  fit: null\n  faults: []\n  start_from: null\n",
    FIT + "  command: null\n",
    with_command(
        "argv: ['{{x}}', '{model_dir}', '{}', '{A}']\nenv: {A: '{num_devices}'}\nelastic: true"
    ).replace("    autorestart:", "    devices: {platform: gpu, count: 8}\n    autorestart:"),
    with_command("argv: [a]\nsuccess: {step: null, file: 'gs://b/{model_dir}', pattern: null}"),
    with_command("argv: [a]\npreload: null\nsave_on_sigterm: false\nbootstrap: false"),
    with_command("argv: [a]\nsave_on_sigterm: true"),
    with_restart("max_num_restarts: 1\npreemption: {until: 1800000000}"),
    with_restart("max_num_restarts: 1\npreemption: {until: '2027-01-01T00:00+01:00'}"),
    with_restart("max_num_restarts: 1\npreemption: {until: 2027-01-01T00:00:00Z}"),
    with_init("compile_cache: {key_file: k, from_bucket: false}"),
    with_init("compile_cache: {from_bucket: true}\nmodel: null\ncheckpoint: {snapshot: null}"),
    with_init("devices: {platform: tpu, type: v5litepod-16, slices: 2, count: 32}"),
    with_init("devices: {platform: tpu, type: v6e-8}\nworkers: 2"),
    with_init("devices: {platform: gpu, type: null, slices: null}"),
    with_init("limits: {outputs: 999999999999999999}"),
    with_init("hosts: {engine: ray, count: 1}"),
    with_init("hosts: {engine: ray, count: 64, spares: 2, address: '10.0.0.2:6379'}\nworkers: 1"),
    with_init("hosts: {engine: ray, count: 2, lost_after: 1500ms}"),
    with_init("devices: {platform: cpu, count: 4}\nworkers: 2", FIT)
    + "  faults: [{step: 1, hang: false, exit_code: 0}, {stage: SAVING, host_lost: host1},"
    " {step: 2, exception: ValueError}, {step: 3, exception: a.b}, {step: 4, signal: SIGSTOP}]\n",
    with_rule("certain: false, verdict: FATAL, signal: [SIGIOT, SIGKILL], exit_code: []"),
    with_rule("certain: null, remedy: null, verdict: RESTART, exit_code: 0, regex: null"),
    with_rule("transient: false, verdict: RESTART, type: ['a.*', Größe, '<locals>']"),
    with_rule("verdict: FATAL, regex: a, type: [], examples: [a, {exit_code: 1, text: null}]"),
]
"""Configs that `validate` accepts, and so does the schema."""

MISTAKES = [
    with_init("notify: [{on: [finish]}]"),
    with_init("notify: [{command: [x], webhook: 'https://a.example/b'}]"),
    with_init("notify: [{webhook: 'ftp://a.example/b'}]"),
    with_init("notify: [{webhook: {env: A, url: 'https://a.example/b'}}]"),
    with_init("notify: [{webhook: {}}]"),
    with_init("notify: [{command: [x], format: json}]"),
    with_init("notify: [{command: [x], on: [success]}]"),
    with_init("notify: [{command: [x], on: []}]"),
    with_init("metrics: {tensorboard: true}"),
    FIT.replace(SHAPE, "{num_layers: 1, num_heads: 4}"),
    FIT.replace(SHAPE, "{pretrained: null, hidden_size: 16, num_heads: 4}"),
    FIT.replace(SHAPE, f"{{{SHAPE[1:-1]}, rope_scaling: {{factor: 8}}}}"),
    FIT.replace(DATA, "{train_dataloader: {paths: stdlib, packing: rows}}"),
    "trainer: []\n",
    "trainer: runs/x\n",
    "trainer: 3\n",
    "trainer:\n",
    "trainer: [{init: {}}]\n",
    "trainer: [3]\n",
    PHASES.replace("name: first", "nmae: first"),
    PHASES.replace("    name: first\n", "    name: first\n    start_from: {load: all}\n"),
    FIT + "  start_from: {load: all}\n",
    COMMAND.replace("command", "comand"),
    COMMAND.replace("  command: [python, train.py]\n", ""),
    COMMAND.replace("[python, train.py]", "null"),
    COMMAND.replace("[python, train.py]", "python train.py"),
    COMMAND.replace("[python, train.py]", "[]"),
    COMMAND.replace("train.py", "'{what}'"),
    COMMAND + f"  fit: {DATA}\n",
    COMMAND + "  faults: [{step: 1, hang: true}]\n",
    COMMAND + "  start_from: {load: all}\n",
    COMMAND.replace("runs/x", "$HOME/x"),
    COMMAND.replace("runs/x", "ftp://b/x"),
    COMMAND.replace("runs/x", "gs:///x"),
    COMMAND + "exit_codes: slurm\n",
    COMMAND + "exit_codes: [75]\n",
    COMMAND + "exit_codes: {75: 256}\n",
    COMMAND + "exit_codes: {75: -1}\n",
    COMMAND + "exit_codes: {75: '42'}\n",
    COMMAND + "exit_codes: {71: 42}\n",
    COMMAND + "exit_codes: {xpk: 42}\n",
    COMMAND + "exit_code: xpk\n",
    with_command("argv: a b"),
    with_command("argv: [a]\nsuccess: {step: 3, file: x}"),
    with_command("argv: [a]\nsuccess: {pattern: a, file: x}"),
    with_command("argv: [a]\nsuccess: {step: 0}"),
    with_command("argv: [a]\nsuccess: {file: $OUT/x}"),
    with_command("argv: [a]\nsuccess: {file: '{dir}/x'}"),
    with_command("argv: [a]\nprogress: {pattern: a}"),
    with_command("argv: [a]\nenv: {A=B: c}"),
    with_command("argv: [a]\nenv: {A: '{what}'}"),
    with_command("argv: [a]\nenv_secrets: {1A: projects/p/secrets/s/versions/1}"),
    with_command("argv: [a]\nenv_file: gs://b/e"),
    with_command("argv: [a]\npreload: [numpy]\nbootstrap: false"),
    with_command("argv: [a]\nsave_on_sigterm: true\nbootstrap: false"),
    with_restart("max_num_restarts: 1\npreemption: {until: 1800000000000}"),
    with_restart("max_num_restarts: 1\npreemption: {until: '2027-01-01T00:00'}"),
    with_restart("max_num_restarts: 1\npreemption: {until: tomorrow}"),
    with_init("compile_cache: {key_file: k, from_bucket: true}"),
    with_init("compile_cache: {key_file: 's3://b/k'}"),
    with_init("checkpoint: {directory: '{attempt}/x'}"),
    with_init("checkpoint: {directory: 'az://b/x'}"),
    with_init("checkpoint: {every: 0s}"),
    with_init("checkpoint: {pattern: 'ckpt'}"),
    with_init("checkpoint: {committed: closed}"),
    with_init("checkpoint: {pattern: '(a)', committed: often}"),
    with_init("checkpoint: {pattern: '(a)', marker: x}"),
    with_init("checkpoint: {pattern: '(a)', committed: marker, marker: a/b}"),
    with_init("checkpoint: {snapshot: {every: 3}}"),
    with_init("checkpoint: {pattern: '(a)', verify: true}"),
    with_init("checkpoint: {verify: often}"),
    with_init("checkpoint: {verify: true}", FIT),
    with_init("limits: {outputs: 1152921504606846977}"),
    with_init("seed: 3"),
    with_init("seed: 4294967296", FIT),
    with_init("workers: 2"),
    with_init("devices: {platform: abacus}"),
    with_init("devices: {platform: gpu, count: 0}"),
    with_init("devices: {platform: gpu, type: v5e-8}"),
    with_init("devices: {platform: gpu, slices: 2}"),
    with_init("devices: {platform: tpu, type: v9-8}"),
    with_init("devices: {platform: tpu, type: v4-7}"),
    with_init("hosts: {count: 2}"),
    with_init("hosts: {engine: ray}"),
    with_init("hosts: {engine: slurm, count: 2}"),
    with_init("hosts: {engine: ray, count: 0}"),
    with_init("hosts: {engine: ray, count: 2, spares: -1}"),
    with_init("hosts: {engine: ray, count: 2, address: ''}"),
    with_init("hosts: {engine: ray, count: 2, lost_after: 0.5}"),
    with_init("hosts: {engine: ray, count: 2, lost_after: 0s}"),
    with_restart("max_num_restarts: -3"),
    with_restart("max_num_restarts: 1234567890123456789"),
    with_restart("max_num_restarts: 0xffffffffffffffff"),
    with_restart("max_num_restarts: 3\ngrace_period: 604801"),
    with_restart("max_num_restarts: 3\ndeadlines: {TRAINING: soon}"),
    with_restart("max_num_restarts: 3\ndeadlines: {TRAINING: 0s}"),
    with_restart("max_num_restarts: 3\ndeadlines: {LUNCH: 5m}"),
    with_restart("max_num_restarts: 3\nladder: [4, 2]"),
    with_restart("max_num_restarts: 3\nmin_num_slices: 1"),
    with_restart("max_num_restarts: 3\nstandby: ready"),
    with_rule("verdict: FATAL"),
    with_rule("verdict: FATAL, type: [], regex: ''"),
    with_rule("type: a b, verdict: FATAL"),
    with_rule("exit_code: 256, verdict: FATAL"),
    with_rule("exit_code: 3, signal: SIGKILL, verdict: FATAL"),
    with_rule("signal: SIGFOO, verdict: FATAL"),
    with_rule("signal: [SIGKILL, SIGSTOP], verdict: FATAL"),
    with_rule("exit_code: 3, verdict: FALSE"),
    with_rule("exit_code: 3, verdict: RESTART, certain: true"),
    with_rule("exit_code: 3, verdict: RESTART, certain: false"),
    with_rule("exit_code: 3, verdict: FATAL, transient: true"),
    with_rule("exit_code: 3, verdict: RESTART, remedy: wait"),
    with_rule("exit_code: 3, verdict: FATAL, remedy: wait"),
    with_rule("exit_code: 3, verdict: POLICY, remedy: pray"),
    with_rule("exit_code: 3, verdict: FATAL, examples: ['']"),
    with_rule("exit_code: 3, verdict: FATAL, examples: [{decides: true}]"),
    with_rule("exit_code: 3, verdict: FATAL, examples: [{exit_code: 3, signal: SIGKILL}]"),
    with_rule("exit_code: 3, verdict: FATAL, examples: [{signal: SIGCHLD}]"),
    FIT + "  faults: [{hang: true}]\n",
    FIT + "  faults: [{step: 1, stage: SAVING, hang: true}]\n",
    FIT + "  faults: [{step: 1}]\n",
    FIT + "  faults: [{step: 1, hang: false}]\n",
    FIT + "  faults: [{step: 1, hang: true, exit_code: 0}]\n",
    FIT + "  faults: [{step: 1, signal: KILL}]\n",
    FIT + "  faults: [{step: 1, exception: print}]\n",
    FIT + "  faults: [{step: 1, device_lost: '1'}]\n",
    FIT.replace("loop:", "lop:"),
    FIT.replace("loop: {max_steps: 9, global_batch_size: 8}", "loop: null"),
    FIT.replace("sgd", "sgdd"),
    FIT.replace("train_dataloader", "dataloader"),
    FIT.replace("max_steps: 9", "max_steps: 0"),
]
"""Configs that `validate` refuses, and so does the schema."""


@pytest.fixture(scope="module")
def in_schema() -> Any:
    """What the schema has against a config."""
    jsonschema = pytest.importorskip("jsonschema", reason="pip install jsonschema")
    jsonschema.Draft202012Validator.check_schema(SHIPPED)
    validator = jsonschema.Draft202012Validator(SHIPPED)

    def found(text: str) -> list[str]:
        with pytest.MonkeyPatch.context() as patch:  # an editor reads long integers
            patch.setattr(yaml_source, "_MAX_DIGITS", 40)
            patch.setattr(yaml_source, "LARGEST_INTEGER", 10**40)
            data = yaml_source.parse_source("c", text).data
        return [error.message for error in validator.iter_errors(data)]

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
def test_each_example_is_valid_and_names_it(path: Path, in_schema: Any) -> None:
    text = path.read_text(encoding="utf-8")
    assert in_schema(text) == []
    assert problems(text) == []
    comment = text.splitlines()[0]
    assert comment.startswith("# yaml-language-server: $schema=")
    named = path.parent / comment.partition("$schema=")[2]
    assert named.resolve() == json_schema.FILE


@pytest.mark.parametrize("text", VALID)
def test_the_schema_accepts_what_validate_accepts(text: str, in_schema: Any) -> None:
    assert problems(text) == []
    assert in_schema(text) == []


@pytest.mark.parametrize("text", MISTAKES)
def test_the_schema_refuses_what_validate_refuses(text: str, in_schema: Any) -> None:
    assert problems(text)
    assert in_schema(text)


def test_a_wrong_trainer_has_one_error(in_schema: Any) -> None:
    """Not one of every alternative."""
    assert in_schema("trainer: x\n") == ["'x' is not of type 'object', 'array'"]
