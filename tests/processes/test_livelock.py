"""A job that fails the same way after each new checkpoint: warned of, and bounded if asked for."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from tests.forked import forked
from tests.running import Start, command_config

TOTAL = 5
FAILS_AFTER_EACH_SAVE = (
    "crash",
    "--at",
    "5",
    "--every",
    "5",
    "--strike-each",
    "--once",
    "--steps",
    "9999",
)


def status(model_dir: Path) -> str:
    return forked("status", model_dir).stdout


def test_a_livelock_is_warned_of_and_ends_with_the_bound_that_nothing_refills(
    start: Start, model_dir: Path
) -> None:
    restart = {"max_num_restarts": 1, "max_total_restarts": TOTAL}
    config = command_config(model_dir, *FAILS_AFTER_EACH_SAVE, restart=restart)
    running = start(config)
    warning = running.wait_for_event("livelock", times=3)
    assert "autorestart.max_total_restarts ends such a job, which has had 3 " in warning["text"]
    running.wait_for_event("workers-started", attempt=4)
    running.signal(signal.SIGKILL)
    running.result()
    result = start(config).result()
    assert result.code == 76, result.log
    why = f"all {TOTAL} restarts of max_total_restarts are spent"
    assert why in result.event("job-ended")["reason"]
    lost = len([one for one in result.summary["attempts"] if one["status"] == "LOST"])
    assert result.attempts == 1 + TOTAL + lost, "the count is kept, whoever counts"
    assert not result.has_event("livelock"), "it is told once"
    assert result.summary["restarts_in_all"] == TOTAL
    livelock = result.summary["livelock"]
    assert livelock["times"] == 3
    assert 0.0 <= livelock["goodput"] < 1.0
    told = status(model_dir)
    assert f"{TOTAL} of {TOTAL} in all" in told
    assert "times, each time after a new checkpoint" in told


def test_a_bound_below_the_restarts_in_a_row_is_refused(start: Start, model_dir: Path) -> None:
    config = command_config(model_dir, restart={"max_num_restarts": 3, "max_total_restarts": 2})
    result = start(json.dumps(config)).result()
    assert result.code == 78
    assert "max_total_restarts: is less than max_num_restarts (3)" in result.err
    assert not model_dir.exists()
