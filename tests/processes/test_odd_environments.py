"""The supervisor in an environment in which Python itself behaves differently."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PATIENCE = 120.0
NO_MEMORY = "no thread can be started, or no memory be had"


@pytest.mark.parametrize(("end", "code"), [("print(1)", 0), ("raise SystemExit(1)", 76)])
def test_an_interactive_python_is_not_asked_for(tmp_path: Path, end: str, code: int) -> None:
    (tmp_path / "train.py").write_text(end)
    options = ["--model-dir", "run", "--max-restarts", "0"]
    done = subprocess.run(
        [sys.executable, "-m", "supervisor", "run", *options, "--", "python3", "train.py"],
        env={**os.environ, "PYTHONINSPECT": "1", "PYTHONPATH": str(Path(__file__).parents[2])},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stderr.count("PYTHONINSPECT is ignored") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("limit", [64, 72, 80, 90])
def test_too_little_memory_is_told_in_one_line(tmp_path: Path, limit: int) -> None:
    """How much each version of Python needs is not known: at one of these a thread fails."""
    program = f"{sys.executable} -m supervisor run --model-dir run -- python3 -c 'print(1)'"
    done = subprocess.run(
        ["bash", "-c", f"ulimit -v {limit * 1024}; exec {program}"],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode in (0, 74), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    told = [line for line in done.stderr.splitlines() if line.startswith("supervise: ")]
    assert len(told) == (done.returncode == 74), done.stderr
    assert all(NO_MEMORY in line or "nobody can ask" in line for line in told)
