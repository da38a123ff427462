"""A pattern of the config that never comes to an end in a line: the job is watched and stopped."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.running import Result, Start

SLOW = r"(?:a|aa)+ (\d+)"
"""Takes twice as long for each `a` of a line without a number after them."""

PROGRAM = """
import os, signal
os.write(1, b"a" * 60 + b"!\\n")
os.write(1, b"a 7\\n")
signal.pause()
"""


def _config(model_dir: Path, argv: list[str], **command: Any) -> dict[str, Any]:
    restart: dict[str, Any] = {"max_num_restarts": 0, "standby": "off", "grace_period": "3s"}
    return {
        "trainer": {
            "init": {"model_dir": str(model_dir), "autorestart": restart},
            "command": {"argv": argv, **command},
        }
    }


def test_a_slow_progress_pattern_does_not_keep_the_job_from_ending(
    start: Start, model_dir: Path
) -> None:
    argv = [sys.executable, "-c", PROGRAM]
    running = start(_config(model_dir, argv, progress={"pattern": SLOW}))
    running.wait_for_event("pattern-slow")
    running.signal(signal.SIGTERM)
    result = running.result()
    assert result.code == 75, result.log
    assert "takes too long in text that begins 'aaaa" in result.event("pattern-slow")["text"]


def test_a_slow_rule_is_passed_over(supervise: Callable[..., Result], model_dir: Path) -> None:
    failing = f"raise ValueError({'a' * 60 + '!'!r})"
    config = _config(model_dir, [sys.executable, "-c", failing])
    rule = {"regex": SLOW, "verdict": "RESTART"}
    config["trainer"]["init"]["autorestart"]["rules"] = [rule]
    result = supervise(config)
    assert result.code != 0
    assert result.has_event("pattern-slow")
