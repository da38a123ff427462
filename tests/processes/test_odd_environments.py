"""The supervisor in an environment in which Python itself behaves differently."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PATIENCE = 120.0
NO_MEMORY = "no thread can be started, or no memory be had"


def run_in(folder: Path, argv: list[str], **env: str) -> subprocess.CompletedProcess[str]:
    """What a command that is typed in `folder` ends with."""
    return subprocess.run(
        argv,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.parametrize(("end", "code"), [("print(1)", 0), ("raise SystemExit(1)", 76)])
def test_an_interactive_python_is_not_asked_for(tmp_path: Path, end: str, code: int) -> None:
    (tmp_path / "train.py").write_text(end)
    options = ["--model-dir", "run", "--max-restarts", "0"]
    done = run_in(
        tmp_path,
        [sys.executable, "-m", "supervisor", "run", *options, "--", "python3", "train.py"],
        PYTHONINSPECT="1",
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stderr.count("PYTHONINSPECT is ignored") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("limit", [64, 72, 80, 90])
def test_too_little_memory_is_told_in_one_line(tmp_path: Path, limit: int) -> None:
    """How much each version of Python needs is not known: at one of these a thread fails."""
    program = f"{sys.executable} -m supervisor run --model-dir run -- python3 -c 'print(1)'"
    done = run_in(tmp_path, ["bash", "-c", f"ulimit -v {limit * 1024}; exec {program}"])
    assert done.returncode in (0, 74), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    told = [line for line in done.stderr.splitlines() if line.startswith("supervise: ")]
    assert len(told) == (done.returncode == 74), done.stderr
    assert all(NO_MEMORY in line or "nobody can ask" in line for line in told)


@pytest.mark.parametrize("limit", [8, 12, 16, 17])
def test_too_few_descriptors_are_told_in_one_line(tmp_path: Path, limit: int) -> None:
    """How many each version of Python needs is not known: at one of these the main loop fails."""
    options = "--model-dir run --max-restarts 0"
    program = f"{sys.executable} -m supervisor run {options} -- python3 -c 'print(1)'"
    done = run_in(tmp_path, ["bash", "-c", f"ulimit -n {limit}; exec {program}"])
    assert done.returncode != 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    if limit == 8 or done.returncode != 0:
        assert "oo many open files" in done.stdout + done.stderr
