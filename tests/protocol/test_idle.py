"""A process that gets ready ahead of time steps back, with its session, and comes back whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, os, threading
from pathlib import Path
from supervisor.protocol import idle

def now():
    group = Path("/proc/self/autogroup")
    return {
        "policies": sorted({os.sched_getscheduler(int(t)) for t in os.listdir("/proc/self/task")}),
        "group": group.read_text().split()[-1] if group.exists() else None,
    }

before = now()
idle.become()
during = now()
born = threading.Event()
threading.Thread(target=born.wait, daemon=True).start()
idle.end()
print(json.dumps([before, during, now()]))
"""


def run(**options: Any) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
        text=True,
        **options,
    )
    states: list[dict[str, Any]] = json.loads(done.stdout)
    return states


def test_it_steps_back_with_its_session_and_all_of_it_comes_back() -> None:
    before, during, after = run(start_new_session=True)
    assert after == before == {**before, "policies": [os.SCHED_OTHER]}
    if os.geteuid() == 0:
        assert during["policies"] == [os.SCHED_IDLE]
    if before["group"] is None:
        pytest.skip("this kernel gives sessions no shares")
    assert (before["group"], during["group"]) == ("0", "19")


def test_it_leaves_a_session_of_others_alone() -> None:
    before, during, after = run()
    assert before["group"] == during["group"] == after["group"]
