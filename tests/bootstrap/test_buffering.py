"""When the output of a program comes: each line at once and whole, whoever starts it how."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bootstrap.programs import SUPPORTED, Twice
from tests.running import Start

TELLS = "import sys; print(sys.stdout.line_buffering, sys.stdout.write_through)"
TELLS_OF_A_CHILD = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {TELLS!r}])"
BY_LINES, AT_ONCE, IN_LUMPS = b"True False\n", b"False True\n", b"False False\n"


@pytest.mark.parametrize("python", SUPPORTED)
def test_the_bootstrap_writes_by_lines(twice: Twice, python: str) -> None:
    assert twice.bootstrapped("-c", TELLS, python=python).stdout == BY_LINES


@pytest.mark.parametrize(
    ("arguments", "env"), [(("-u",), {}), ((), {"PYTHONUNBUFFERED": "1"})], ids=["-u", "variable"]
)
def test_a_person_who_wants_no_buffer_has_none(
    twice: Twice, arguments: tuple[str, ...], env: dict[str, str]
) -> None:
    assert twice.bootstrapped(*arguments, "-c", TELLS, env=env).stdout == AT_ONCE


def test_children_of_the_program_have_no_buffer(twice: Twice) -> None:
    twice.write({"program.py": TELLS_OF_A_CHILD})
    assert twice.bootstrapped("program.py").stdout == AT_ONCE
    assert twice.bootstrapped("program.py", env={"PYTHONUNBUFFERED": ""}).stdout == IN_LUMPS


LINES = """
import signal
print("said")
signal.pause()
"""


def config(model_dir: Path, argv: list[str], **command: Any) -> dict[str, Any]:
    restart = {"max_num_restarts": 0, "standby": "off"}
    return {
        "trainer": {
            "init": {"model_dir": str(model_dir), "autorestart": restart},
            "command": {"argv": argv, **command},
        }
    }


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (["{python}", "-c", LINES], {}),
        (["{python}", "-c", LINES], {"bootstrap": False}),
        (["bash", "-c", "'{python}' -c '" + LINES + "'; exit $?"], {}),
        (["env", "A=B", "{python}", "-c", LINES], {}),
        (["{python}", "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])"], {}),
    ],
    ids=["bootstrap", "no bootstrap", "bash", "env", "a child"],
)
def test_a_line_is_seen_while_the_program_lives(
    start: Start, model_dir: Path, argv: list[str], command: dict[str, Any]
) -> None:
    argv = [word.replace("{python}", sys.executable) for word in argv]
    if "subprocess" in argv[-1]:
        argv += [sys.executable, "-c", LINES]
    buffered = ["env", "-u", "PYTHONUNBUFFERED"]
    start(config(model_dir, argv, **command), prefix=buffered).wait_for("said\n")
