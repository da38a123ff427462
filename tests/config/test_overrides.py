"""`--set`: one key from the command line, in every phase or in one; mistakes name the option."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.config.problems import ConfigError
from tests.config.files import COMMAND, DATA, FIT, PHASES, TRAINING, load, problems, with_init

RESTARTS = "autorestart.max_num_restarts"
FIVE = "{max_num_restarts: 5}"
PATHS = "fit.train_dataloader.paths"


@pytest.mark.parametrize(
    ("config", "options", "values"),
    [
        (FIT, ["trainer.init.autorestart.max_num_restarts=7"], [7]),
        (FIT, ["trainer.init.autorestart={max_num_restarts: 8}"], [8]),
        (FIT, [f"trainer.init.{RESTARTS}=7", f"trainer.init.{RESTARTS}=9"], [9]),
        (PHASES, [f"trainer.init.{RESTARTS}=7"], [7, 7]),
        (PHASES, [f"trainer[1].init.{RESTARTS}=7"], [1, 7]),
        (PHASES, [f"trainer[0].init.{RESTARTS}=7", f"trainer.init.{RESTARTS}=0"], [0, 0]),
        (
            PHASES,
            ["trainer[1]={" + f"init: {{{TRAINING}, autorestart: {FIVE}}}, fit: {DATA}" + "}"],
            [1, 5],
        ),
    ],
)
def test_it_is_above_the_file(config: str, options: list[str], values: list[int]) -> None:
    phases = load(config, *options).phases
    assert [phase.init.autorestart.max_num_restarts for phase in phases] == values


@pytest.mark.parametrize(
    ("config", "option", "path", "value"),
    [
        (FIT, "trainer.init.optimizer.clip_norm=1e-3", "init.optimizer.clip_norm", 0.001),
        (FIT, f"trainer.fit={DATA.replace('stdlib', 'off')}", PATHS, ("off",)),
        (FIT, "trainer.fit.validation=", "fit.validation", None),
        (FIT, "trainer.fit.train_dataloader.paths=[a, b]", PATHS, ("a", "b")),
        (FIT, "trainer.fit.train_dataloader.paths=a=b", PATHS, ("a=b",)),
        (FIT, "trainer.init.checkpoint.every=5m", "init.checkpoint.every", "5m"),
        (FIT.replace(DATA, ""), "trainer.fit.train_dataloader.paths=x", PATHS, ("x",)),
        (FIT + "  faults: [{step: 1, hang: true}]", "trainer.faults[0].step=5", "faults.0.step", 5),
        (FIT, "trainer.faults=[{step: 4, hang: true}]", "faults.0.step", 4),
        (COMMAND, "trainer.command[1]=other.py", "command.argv.1", "other.py"),
    ],
)
def test_any_key_can_be_set(config: str, option: str, path: str, value: Any) -> None:
    found: Any = load(config, option).phases[0]
    for part in path.split("."):
        found = found[int(part)] if part.isdecimal() else getattr(found, part)
    assert found == value


@pytest.mark.parametrize(
    ("config", "option", "expected"),
    [
        (FIT, "seed=1", "--set seed=1: is not of the form trainer.init.seed=3 or tr"),
        (FIT, "trainer.init.seed", "--set trainer.init.seed: is not of the form"),
        (FIT, "trainer=3", "--set trainer=3: is not of the form"),
        (FIT, "exit_codes=xpk", "--set exit_codes=xpk: is not of the form"),
        (FIT, "trainer..x=3", "--set trainer..x=3: is not of the form"),
        (FIT, "trainer[x].seed=3", "--set trainer[x].seed=3: is not of the form"),
        (FIT, "=", "--set =: is not of the form"),
        (
            PHASES,
            "trainer[2].init.seed=3",
            "--set trainer[2].init.seed=3: trainer[2].init.seed: there is no phase 2; there are 2",
        ),
        (
            FIT,
            "trainer[0].init.seed=3",
            "trainer[0].init.seed: there is no item [0]: the value is not a list",
        ),
        (
            FIT,
            "trainer.faults[0].step=3",
            "trainer.faults[0].step: there is no item [0]: the value is not a list",
        ),
        (
            COMMAND,
            r"trainer.command={progress: {pattern: [Ss]tep (\d+)}",
            "text needs quotes of its own: --set \"trainer.command='...'\"",
        ),
        (
            "trainer: {init: {model_dir: d, autorestart: {max_num_restarts: 1}}, command: "
            "{argv: [a]}}",
            r'trainer.command.progress.pattern={"step": (\d+)}',
            "YAML reads text that looks like JSON as such: put 'quotes' around it",
        ),
        (
            COMMAND,
            "trainer.command[2]=x",
            "trainer.command[2]: there is no item [2]: the value is not a list",
        ),
        (
            COMMAND,
            "trainer.command.argv=[x]",
            "'argv' cannot be set: the value above it is not a mapping",
        ),
        (
            FIT,
            "trainer.init.model_dir.x=3",
            "'x' cannot be set: the value above it is not a mapping",
        ),
        (
            "just text",
            "trainer.init.seed=3",
            "'trainer' cannot be set: the value above it is not a mapping",
        ),
        ("trainer: [3]", "trainer.init.seed=3", "'trainer' cannot be set: the value above it"),
        (FIT, "trainer.init.seed=[1", "--set trainer.init.seed=[1: trainer.init.seed: not valid"),
        (FIT, "trainer.init.seed=!!set {a}", "--set trainer.init.seed=!!set {a}: trainer.init.se"),
        # What the schema refuses also names the option, not the line that it replaced.
        (
            FIT,
            "trainer.init.autorestart.max_num_restarts=-1",
            "--set trainer.init.autorestart.max_num_restarts=-1: "
            "trainer.init.autorestart.max_num_restarts: input should be greater",
        ),
        (FIT, "trainer.init.sead=3", "--set trainer.init.sead=3: trainer.init.sead: unknown key"),
        (
            FIT,
            "trainer.init.autorestart={max_num_restarts: -1}",
            "--set trainer.init.autorestart={max_num_restarts: -1}: "
            "trainer.init.autorestart.max_num_restarts: input should",
        ),
        (
            with_init("checkpoint: {every: 3}"),
            "trainer.init.checkpoint={every: 0}",
            "--set trainer.init.checkpoint={every: 0}: trainer.init.checkpoint.every: is neither",
        ),
        (
            PHASES,
            "trainer[1].name=first",
            "--set trainer[1].name=first: trainer[1].trainer.name: 'first' is the name of two",
        ),
    ],
)
def test_mistakes_name_the_option(config: str, option: str, expected: str) -> None:
    (found,) = problems(config, option)
    assert expected in found
    assert found.startswith(f"--set {option}: ")


def test_the_option_given_last_is_blamed() -> None:
    (found,) = problems(
        FIT,
        "trainer.init.autorestart.max_num_restarts=-1",
        "trainer.init.autorestart={max_num_restarts: -2}",
    )
    assert found.startswith("--set trainer.init.autorestart={max_num_restarts: -2}: ")
    (found,) = problems(
        FIT,
        "trainer.init.autorestart={max_num_restarts: 1}",
        "trainer.init.autorestart.max_num_restarts=-1",
    )
    assert found.startswith("--set trainer.init.autorestart.max_num_restarts=-1: ")


def test_every_bad_option_is_told_at_once() -> None:
    assert len(problems(FIT, "a=1", "trainer.init.seed=1", "trainer.faults[3]=1")) == 2


def test_the_file_keeps_its_lines_beside_an_option() -> None:
    (found,) = problems(FIT.replace("3", "-3"), "trainer.init.seed=1")
    assert found.startswith("c.yaml:5: ")


def test_phases_do_not_share_a_value() -> None:
    first, second = load(PHASES, "trainer.init.autorestart.deadlines={SAVING: 5}").phases
    ours, theirs = first.init.autorestart.deadlines, second.init.autorestart.deadlines
    assert ours == theirs
    assert ours is not theirs


@given(
    st.sampled_from([FIT, COMMAND, PHASES, "trainer:", "3"]),
    st.text()
    | st.builds(
        "trainer{}={}".format,
        st.lists(
            st.sampled_from([".init", ".seed", ".autorestart", "[0]", "[1]", ".faults", ".command"])
        ).map("".join),
        st.text(),
    ),
)
def test_any_option_is_taken_or_refused(config: str, option: str) -> None:
    with suppress(ConfigError):
        assert load(config, option).phases


def test_a_key_with_thousands_of_parts_is_one_mistake() -> None:
    (found,) = problems(FIT, "trainer" + ".a" * 5000 + "=1")
    assert found == "--set trainer.a.a.a.a.a.a....: has more than 100 parts: no key is so deep"
