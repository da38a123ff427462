"""A secret is taken out of a text before the text is cut: half a secret is not known as one."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.processes.test_wrappers import ready, shell_config, toy
from tests.running import Result, Start

Supervise = Callable[..., Result]

SECRET = "Zq7-correct-horse-battery-staple-9x"
SHOWN = 12
"""Characters of the secret before the place where the text is cut."""


def python(program: str) -> str:
    return shlex.join([sys.executable, "-c", program])


def fails(limit: int) -> str:
    """A program whose exception, on one line, has the secret where so many characters end."""
    filler = limit - SHOWN - len("ValueError: ")
    return python(
        f"import os\ndef main(): raise ValueError({filler} * 'x' + os.environ['DB_PASSWORD'])\n"
        "main()"
    )


def goes_on(limit: int) -> str:
    """A command that leaves a process whose command line has the secret there."""
    process = "sh -c 'sleep 3600; true'"
    filler = limit - SHOWN - len(process) + len("''") - len("  ")
    return f'{process} {filler * "x"} "$DB_PASSWORD" &'


def says(limit: int) -> str:
    """A command that prints a line that has it there."""
    return f"echo {(limit - SHOWN) * 'x'}$DB_PASSWORD"


def written(model_dir: Path) -> str:
    """All that the supervisor has written, less what is the worker's own words."""
    files = [path for path in model_dir.rglob("*") if "attempts" not in path.parts]
    return "".join(path.read_text() for path in files if path.is_file())


@pytest.mark.parametrize(
    ("script", "command", "told"),
    [
        (goes_on(120), {}, "(sh -c sleep 3600; true xxx"),
        (fails(300), {}, "root cause: ValueError: xxx"),
        (f"{fails(300)} 2>&1 | cat", {}, "the output ends in a traceback: ValueError: xxx"),
        (says(120), {"progress": {"pattern": r"step: (\d+)"}}, "the last line is 'xxx"),
    ],
    ids=["survivor", "root cause", "doubt", "unmatched"],
)
def test_no_part_of_it_is_written(
    supervise: Supervise, model_dir: Path, script: str, command: dict[str, Any], told: str
) -> None:
    config = shell_config(model_dir, script, {"max_num_restarts": 0}, **command)
    result = supervise(config, env={"DB_PASSWORD": SECRET})
    assert told in result.log
    assert SECRET[: SHOWN // 2] not in written(model_dir)
    assert "[redacted" in result.log


def test_no_part_of_it_is_told_of_an_announcement(
    start: Start, model_dir: Path, tmp_path: Path
) -> None:
    notice = tmp_path / "notice"
    config = shell_config(
        model_dir, toy(model_dir, "save-on-sigterm"), {"preemption": {"file": str(notice)}}
    )
    running = ready(start, config, env={"DB_PASSWORD": SECRET})
    (tmp_path / "new").write_text((300 - SHOWN) * "x" + SECRET)
    (tmp_path / "new").rename(notice)
    result = running.result()
    assert "is there: xxx" in result.log
    assert SECRET[: SHOWN // 2] not in written(model_dir)
