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
PHRASE = "Zq7 correct horse battery staple 9x"
"""A secret of several words: to leave out the word that would be cut does not save it."""
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
        (f"{fails(300)} 2>&1 | cat", {}, ": ValueError: xxx"),
        (says(120), {"progress": {"pattern": r"step: (\d+)"}}, "The last line is 'xxx"),
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


NOTICE = f"""
import os
from supervisor.protocol.reporter import Reporter
Reporter.connect().notice({"x " * 140!r} + os.environ["DB_PASSWORD"] + " is long")
os._exit(3)
"""
"""What a worker says is cut: here after 20 characters of the secret."""


@pytest.mark.parametrize("secret", [SECRET, PHRASE], ids=["word", "words"])
def test_no_part_of_it_is_told_by_a_worker(
    supervise: Supervise, model_dir: Path, secret: str
) -> None:
    config = shell_config(model_dir, python(NOTICE), {"max_num_restarts": 0})
    result = supervise(config, env={"DB_PASSWORD": secret})
    assert "x x x x" in result.log
    assert secret[: SHOWN // 2] not in written(model_dir)


DEVICE_1_IS_BROKEN = """
import os, sys
if "trainer.probe" in sys.orig_argv:
    import jax
    put = jax.device_put
    def device_put(value, device=None, **options):
        if any(one.id == 1 for one in device.device_set):
            raise RuntimeError("broken: " + "x" * int(os.environ["FILLER"]) + " " + SECRET)
        return put(value, device, **options)
    SECRET = os.environ["DB_PASSWORD"]
    jax.device_put = device_put
"""


@pytest.mark.parametrize(
    ("filler", "told", "secret"),
    [(4, "xxxx [redacted]", SECRET), (265, "xxxx", PHRASE)],
)
def test_no_part_of_it_is_told_of_a_broken_device(
    supervise: Supervise, model_dir: Path, tmp_path: Path, filler: int, told: str, secret: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(DEVICE_1_IS_BROKEN)
    root = str(Path(__file__).parents[2])
    says = "jax.errors.JaxRuntimeError: INTERNAL: uncorrectable ECC error"
    script = f'[ "$COUNT" = 1 ] || {{ echo "{says}"; exit 1; }}'
    config = shell_config(model_dir, script, {"max_num_restarts": 1, "min_num_devices": 1})
    config["trainer"]["command"]["env"] = {"COUNT": "{num_devices}"}
    config["trainer"]["init"]["devices"] = {"platform": "cpu", "count": 2}
    env = {"DB_PASSWORD": secret, "PYTHONPATH": f"{tmp_path}:{root}", "FILLER": str(filler)}
    result = supervise(config, env=env)
    assert result.code == 0, result.log
    assert told in result.log
    assert secret[: SHOWN // 2] not in written(model_dir)


def test_no_part_of_a_secret_longer_than_any_line_is_told(
    supervise: Supervise, model_dir: Path
) -> None:
    secret = "".join(f"{number:04x}" for number in range(1000, 2500))
    program = "import os\ndef main(): raise ValueError(os.environ['DB_PASSWORD'])\nmain()"
    config = shell_config(model_dir, f"{python(program)} 2>&1; exit 3", {"max_num_restarts": 0})
    result = supervise(config, env={"DB_PASSWORD": secret})
    assert "root cause: ValueError: [redacted" in result.log
    assert secret[:8] not in written(model_dir)
