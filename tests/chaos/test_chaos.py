"""The short form of the storm, as a person would run it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_short_storm(tmp_path: Path) -> None:
    table = tmp_path / "chaos.json"
    argv = [sys.executable, "-m", "tests.chaos", "--short", "--seed", "1", "--json", str(table)]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    print(result.stdout)
    assert result.returncode == 0, result.stdout + result.stderr
    told = json.loads(table.read_text())
    assert len(told["faults"]) == 12
    assert all(check["holds"] for check in told["checks"])
