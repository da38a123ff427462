"""The short form of the storm, as a person would run it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

_PATIENCE = 1800.0
"""Seconds: each wait of a storm ends by itself, so a machine that is only slow never reaches it."""


@pytest.mark.slow
def test_a_short_storm(tmp_path: Path) -> None:
    """Beside a loaded machine the import of JAX takes as long as a whole deadline else would."""
    table = tmp_path / "chaos.json"
    argv = [sys.executable, "-m", "tests.chaos", "--short", "--seed", "1", "--patience", "3"]
    argv += ["--json", str(table)]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=_PATIENCE)
    print(result.stdout)
    assert result.returncode == 0, result.stdout + result.stderr
    told = json.loads(table.read_text())
    assert len(told["faults"]) == 12
    assert all(check["holds"] for check in told["checks"])
