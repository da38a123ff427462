"""`supervise restart`: a job saves, and goes on in a fresh attempt that is not charged."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.forked import forked
from tests.running import Start, command_config


def test_a_running_job_goes_on_in_a_fresh_attempt(start: Start, model_dir: Path) -> None:
    config = command_config(
        model_dir, "save-on-sigterm", "--once", "--steps", "302", success={"step": 302}
    )
    running = start(config)
    running.wait_for("ready to save")
    asked = forked("restart", cwd=model_dir.parent)  # the only job that runs there
    assert (asked.returncode, asked.stderr) == (0, "")
    told, now = asked.stdout.splitlines()
    assert told.startswith("asked the supervisor (pid ")
    assert told.endswith(
        ") to restart: attempt 1 saves, and a fresh one starts; nothing is charged"
    )
    assert ": phase 'phase1', attempt 2" in now
    result = running.result()
    assert result.code == 0
    assert result.event("restart-requested")["detail"].count(" on ") == 1
    assert result.summary["attempts"][0]["status"] == "MADE_WAY"
    assert result.summary["highest_committed_step"] == 302
    assert not list((model_dir / "requests").iterdir())


def test_a_fresh_attempt_that_fails_at_once_has_run(start: Start, model_dir: Path) -> None:
    config = command_config(
        model_dir, restart={"max_num_restarts": 9, "backoff": {"first": 100, "max": 100}}
    )
    config["trainer"]["command"]["argv"] = ["sh", "-c", "kill -9 $$"]
    running = start(config)
    running.wait_for_event("attempt-started", attempt=2)
    running.wait_for_event("attempt-ended", attempt=2)
    asked = forked("restart", model_dir)
    assert (asked.returncode, asked.stderr) == (0, "")
    told, now = asked.stdout.splitlines()
    assert told.endswith(" to restart: it waits no longer; nothing is charged")
    assert "attempt 3" in now
    running.signal(signal.SIGINT)
    assert running.result().code == 79


def test_where_nothing_runs_nothing_is_restarted(start: Start, model_dir: Path) -> None:
    assert start(command_config(model_dir, success={"step": 6})).result().code == 0
    asked = forked("restart", model_dir)
    assert asked.returncode == 64
    assert "there is nothing to restart: SUCCEEDED" in asked.stderr
    assert not (model_dir / "requests").exists()
