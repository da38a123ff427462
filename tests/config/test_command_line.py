"""A command line as a config: the same checks, and problems that name the option."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.config import placeholders
from supervisor.config.command_line import (
    CommandLine,
    default_model_dir,
    parse_count,
    parse_devices,
    source_of,
)
from supervisor.config.load import job_of
from supervisor.config.problems import ConfigError
from tests.config.files import load

GIVEN = CommandLine(("python", "train.py", "--lr", "1"), "/home/me")


def problems(given: CommandLine, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        job_of(source_of(given), overrides)
    return [str(each) for each in caught.value.problems]


def test_it_is_the_job_of_the_same_config() -> None:
    job = job_of(source_of(replace(GIVEN, model_dir="runs/x")), ["trainer.command.env.A=b"])
    same = load(
        """\
        trainer:
          init: {model_dir: runs/x, autorestart: {max_num_restarts: 3}}
          command: {argv: [python, train.py, --lr, '1'], env: {A: b}}
        """
    )
    assert job.phases == same.phases


def test_the_options_are_keys() -> None:
    devices = parse_devices("cpu:4")
    given = replace(GIVEN, max_restarts=7, devices=devices, success_step=9, model_dir="runs/x")
    phase = job_of(source_of(given)).phases[0]
    assert phase.init.autorestart.max_num_restarts == 7
    assert phase.init.devices is not None
    assert (phase.init.devices.platform, phase.init.devices.num_devices) == ("cpu", 4)
    assert phase.command is not None
    assert phase.command.success is not None
    assert phase.command.success.step == 9


@pytest.mark.parametrize(
    ("given", "overrides", "expected"),
    [
        (replace(GIVEN, success_step=0), [], "--success-step: input should be greater than"),
        (replace(GIVEN, model_dir=""), [], "--model-dir: string should have at least 1"),
        (replace(GIVEN, model_dir="$HOME/x"), [], "--model-dir: $HOME is not expanded here"),
        (
            replace(GIVEN, devices={"platform": "cpu", "count": 4}),
            ["trainer.init.workers=3"],
            "--set trainer.init.workers=3: trainer.init.workers: ",
        ),
        (
            GIVEN,
            ["trainer.init.autorestart.max_num_restarts=x"],
            "--set trainer.init.autorestart.max_num_restarts=x: trainer.init.autorestart.max_num",
        ),
        (replace(GIVEN, argv=("python", "\udcff")), [], "the command: has a word that is not UTF"),
    ],
)
def test_a_problem_names_the_option(
    given: CommandLine, overrides: list[str], expected: str
) -> None:
    (problem,) = problems(given, *overrides)
    assert problem.startswith(expected)


def test_an_option_that_nobody_gave_is_not_blamed() -> None:
    place = ("trainer", "init", "model_dir")
    chosen = source_of(replace(GIVEN, model_dir=None)).problem(place, "cannot be written")
    assert str(chosen) == "the model_dir (--model-dir chooses another): cannot be written"
    given = source_of(replace(GIVEN, model_dir="x")).problem(place, "cannot be written")
    assert str(given) == "--model-dir: cannot be written"


def test_what_set_gives_is_no_default_any_more() -> None:
    source = source_of(GIVEN)
    assert len(source.chosen) == 2
    job = job_of(source, ["trainer.init.model_dir=elsewhere"])
    assert job.model_dir == Path.cwd() / "elsewhere"
    assert source.chosen == {("trainer", "init", "autorestart", "max_num_restarts")}
    assert not source_of(replace(GIVEN, model_dir="x", max_restarts=0)).chosen


@pytest.mark.parametrize(
    "argv",
    [
        "python train.py --lr 1",
        "python3 train.py --lr 1",
        ".venv/bin/python -u ./train.py --lr 1",
        "nice -n 5 python train.py --lr 1",
        "uv run /home/me/train.py --lr 1",
    ],
)
def test_the_same_job_has_the_same_directory_however_it_is_launched(argv: str) -> None:
    place = default_model_dir(GIVEN)
    assert place.startswith("./runs/train-")
    assert len(place.rpartition("-")[2]) == 8
    assert default_model_dir(replace(GIVEN, argv=argv.split())) == place


@pytest.mark.parametrize(
    "other",
    [
        replace(GIVEN, argv=("python", "train.py", "--lr", "2")),
        replace(GIVEN, argv=("python", "train.py", "--lr 1")),
        replace(GIVEN, argv=("python", "other/train.py", "--lr", "1")),
        replace(GIVEN, argv=("python", "-m", "train", "--lr", "1")),
        replace(GIVEN, argv=("env", "SEED=2", "python", "train.py", "--lr", "1")),
        replace(GIVEN, directory="/home/you"),
    ],
)
def test_another_job_has_another_directory(other: CommandLine) -> None:
    assert default_model_dir(other) != default_model_dir(GIVEN)


def test_the_directory_stays_the_same_from_version_to_version() -> None:
    """Another one would begin the job of a running command anew, after an upgrade."""
    assert default_model_dir(GIVEN) == "./runs/train-6fa70f99"


@pytest.mark.parametrize(
    ("argv", "stem"),
    [
        (["python", "-m", "pkg.train"], "pkg.train"),
        (["./run me!.sh"], "run_me_"),
        (["python", "x/" + "n" * 99 + ".py"], "n" * 40),
        (["python", "..."], "job"),
    ],
)
def test_the_directory_is_named_after_the_program(argv: list[str], stem: str) -> None:
    assert default_model_dir(replace(GIVEN, argv=argv)).rpartition("-")[0] == f"./runs/{stem}"


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("cpu:4", {"platform": "cpu", "count": 4}),
        ("gpu", {"platform": "gpu"}),
        ("gpu:8", {"platform": "gpu", "count": 8}),
        ("tpu:4", {"platform": "tpu", "count": 4}),
        ("v5e-8", {"platform": "tpu", "type": "v5e-8"}),
    ],
)
def test_devices_in_short(text: str, devices: dict[str, Any]) -> None:
    assert parse_devices(text) == devices
    job_of(source_of(replace(GIVEN, devices=devices)))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("8", "none of cpu:4 (simulated), gpu (all), gpu:8, tpu:4, or a TPU type such as v5e-8"),
        ("cuda:8", "none of cpu:4"),
        ("gpu:0", "gives no number of devices, as gpu:4 does"),
        ("gpu:x", "gives no number of devices"),
        ("v5x-8", "is not a TPU type such as"),
        ("v5e-7", "v5e"),
        ("", "none of cpu:4"),
    ],
)
def test_other_devices_are_refused_in_words(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        parse_devices(text)


@pytest.mark.parametrize("text", ["-1", "1.5", "x", "", "1" * 10, "²"])
def test_a_number_is_a_whole_number(text: str) -> None:
    with pytest.raises(ValueError, match="is not a whole number"):
        parse_count(text)


NAMES = {name: f"{{{name}}}" for name in placeholders.KNOWN}


@given(
    st.text("{}ab_", max_size=12)
    | st.lists(st.sampled_from([*NAMES.values(), "{x}", "{", "}", "a"])).map("".join)
)
def test_a_program_gets_its_words_as_they_were_typed(text: str) -> None:
    kept = placeholders.keep_unknown(text)
    assert placeholders.expand(kept, NAMES) == text
    assert set(placeholders.names(kept)) <= set(placeholders.KNOWN)
