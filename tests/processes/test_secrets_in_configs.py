"""No complaint about a config shows a secret: whatever is wrong with it, and wherever it stands."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.cli.main import main

SECRET = "hunTer2Zq8x"
DIGITS = "8472910366"
NAMES = ["DB_PASSWORD", "hf_token", "api_key", "OPENAI_KEY_1", "aws-secret", "password", "AUTH"]
VALUES = [
    "§", "[§]", "[[§]]", "{§: 1}", "{a: §}", "{§: {§: §}}", "[a, {§: §}]", '"§"', "*§", "!§ x",
    "!§", "&§", "&§ x", r'"\q §"', "'§", "{§", "[§", "§: §", "§: [§", '{"§": 1, "§": 2}',
    "!!set {§}", '{"x §": {b: 1, b: 2}}', '"{§} {model_dir}"', "'{§}'", "$§", '"\\0§"', '"§\\0"',
    "!!int §", "!!float §", "!!python/name:§ x", "- §", "§ #", "%§", "@§", "`§", "? §", "<<: §",
    "{<<: §}", "{<<: [§]}", "¤", "[¤]",
]  # fmt: skip
"""As YAML: § stands for the secret, ¤ for one of digits alone."""
KEY = "PLANTED"
ARGV = [sys.executable, "-c", "pass"]


def config() -> dict[str, Any]:
    """A config that holds all kinds of sections."""
    restart = {"max_num_restarts": 0, "backoff": {"first": 1}, "deadlines": {"TRAINING": 60}}
    init = {"model_dir": "run", "checkpoint": {"keep": 2}, "autorestart": restart}
    return {
        "trainer": {"init": init, "command": {"argv": ARGV, "env": {"A": "1"}, "success": {}}},
        "exit_codes": {"70": 42},
        "x-mine": {"a": {"b": 1}},
    }


def mappings(data: Any) -> Iterator[dict[str, Any]]:
    """All mappings in a config, the outermost first."""
    if isinstance(data, dict):
        yield data
        for value in data.values():
            yield from mappings(value)


def planted(value: str) -> str:
    return value.replace("§", SECRET).replace("¤", DIGITS)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before, hook = signal.getsignal(signal.SIGTERM), sys.excepthook
    yield
    signal.signal(signal.SIGTERM, before)
    sys.excepthook = hook


class Collected:
    """What is printed by Python, and what is written to the standard streams themselves."""

    def __init__(self, raw: BinaryIO) -> None:
        self.printed, self._raw = io.StringIO(), raw

    def getvalue(self) -> str:
        """All of it so far."""
        self._raw.seek(0)
        return self.printed.getvalue() + self._raw.read().decode()


@contextlib.contextmanager
def collected() -> Iterator[Collected]:
    """Collect all output of this process."""
    with tempfile.TemporaryFile() as raw:
        saved = [os.dup(number) for number in (1, 2)]
        for number in (1, 2):
            os.dup2(raw.fileno(), number)
        out = Collected(raw)
        try:
            with contextlib.redirect_stdout(out.printed), contextlib.redirect_stderr(out.printed):
                yield out
        finally:
            for number, copy in zip((1, 2), saved, strict=True):
                os.dup2(copy, number)
                os.close(copy)


def told(text: str, *options: str, env_file: str = "") -> str:
    """All that our commands say of a config; `run` too, where it is refused."""
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        collected() as out,
    ):
        Path("c.yaml").write_text(text)
        Path("e.env").write_text(env_file)
        Path("e.env").chmod(0o600)
        Path("log").touch()
        if main(["validate", "c.yaml", *options]) == 0:
            assert "# phase phase1: " in out.getvalue()
        else:
            assert "supervise: " in out.getvalue()
            assert main(["run", "c.yaml", *options]) == 78
        main(["provision", "--dry-run", "c.yaml", *options])
        main(["classify", "--config", "c.yaml", "log"])
        assert "Traceback" not in out.getvalue()
        main(["rules", "--json", "--config", "c.yaml"])  # its examples have tracebacks
        return out.getvalue()


@settings(max_examples=40)
@given(
    where=st.integers(0, len(list(mappings(config()))) - 1),
    name=st.sampled_from(NAMES),
    value=st.sampled_from(VALUES),
    above=st.sampled_from(["", "", "[PLANT]", "{a: {b: PLANT}}", "[{c: PLANT}]"]),
)
def test_a_secret_in_the_file_is_in_no_output(
    where: int, name: str, value: str, above: str
) -> None:
    data = config()
    list(mappings(data))[where][KEY] = 0
    text = (above or "PLANT").replace("PLANT", planted(value))
    everything = told(yaml.safe_dump(data).replace(f"{KEY}: 0", f"{name}: {text}"))
    assert SECRET not in everything
    assert DIGITS not in everything


@settings(max_examples=40)
@given(
    option=st.sampled_from(
        [
            "trainer.command.env.N=V",
            "trainer.init.N=V",
            "trainer.command={argv: [a], N: V}",
            "trainer.command.env=[N=V]",
            "trainer.command.env=N=V",
            "trainer.N.x=V",
            "N=V",
            "trainer.command.env.N V",
            "trainer[9].N=V",
            "trainer.command.env.A.N=V",
        ]
    ),
    name=st.sampled_from(NAMES),
    value=st.sampled_from(VALUES),
)
def test_a_secret_in_an_option_is_in_no_output(option: str, name: str, value: str) -> None:
    given = option.replace("N", name, 1).replace("V", planted(value))
    everything = told(yaml.safe_dump(config()), "--set", given)
    assert SECRET not in everything
    assert DIGITS not in everything


@pytest.mark.parametrize(
    "lines",
    [
        "DB_PASSWORD=§",
        "§",
        "DB_PASSWORD §",
        "DB_PASSWORD='§",
        "DB_PASSWORD=§\nDB_PASSWORD=§",
        "DB_PASSWORD=§\0",
        "SUPERVISE_X=§",
        "DB_PASSWORD=-----BEGIN\nS/§+§\n-----END",
        "db.password=§",
    ],
)
def test_a_secret_in_an_env_file_is_in_no_output(lines: str) -> None:
    data = config()
    data["trainer"]["command"]["env_file"] = "e.env"
    assert SECRET not in told(yaml.safe_dump(data), env_file=planted(lines))


@pytest.mark.parametrize(
    "command",
    [
        "python x.py --api-key §",
        "DB_PASSWORD=§ python x.py",
        "bash -c 'train --token § | tee log'",
        "--password=§",
    ],
)
def test_a_secret_in_a_command_that_is_text_is_in_no_output(command: str) -> None:
    data = config()
    for wrong in (planted(command), {"argv": planted(command)}, {"argv": [[planted(command)]]}):
        data["trainer"]["command"] = wrong
        assert SECRET not in told(yaml.safe_dump(data))


def test_a_secret_in_our_trainers_sections_is_in_no_output() -> None:
    data = config()
    data["trainer"]["fit"] = {"hf_token": [SECRET], "train_dataloader": {"api_key": SECRET}}
    data["trainer"]["init"]["model"] = {"password": {SECRET: SECRET}}
    del data["trainer"]["command"]
    everything = told(yaml.safe_dump(data))
    assert "hf_token: unknown key (value [redacted])" in everything
    assert SECRET not in everything


def test_a_secret_among_the_arguments_is_in_no_output(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["validate", os.devnull, f"trainer.command.env.DB_PASSWORD={SECRET}"])
    assert SECRET not in capsys.readouterr().err
