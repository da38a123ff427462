"""`supervise save`: a job that listens saves and trains on; any other is told what to do."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from tests.forked import forked
from tests.running import Start, command_config, eventually

LISTENS = """
import os, sys, time
from pathlib import Path
import supervise_worker

saves = Path(sys.argv[1])
for n in range(1, 100_000):
    time.sleep(0.01)
    supervise_worker.step(n)
    if supervise_worker.should_save():
        (saves / str(n)).mkdir(parents=True)
        (saves / str(n) / "commit_success.txt").touch()
        supervise_worker.saved(n)
        if len(list(saves.iterdir())) == 2:
            break
    if n == 3:
        os.write(1, b"it trains\\n")
"""


def listens(model_dir: Path) -> bool:
    return bool(json.loads((model_dir / "status.json").read_bytes())["saves_on_request"])


def told_step(model_dir: Path) -> int | None:
    step: int | None = json.loads((model_dir / "status.json").read_bytes())["live"]["step"]
    return step


def test_a_job_that_listens_saves_once_for_each_request_and_trains_on(
    start: Start, model_dir: Path
) -> None:
    config = command_config(model_dir)
    config["trainer"]["command"]["argv"] = [
        sys.executable,
        "-c",
        LISTENS,
        str(model_dir / "checkpoints"),
    ]
    running = start(config)
    running.wait_for("it trains")
    assert eventually(lambda: listens(model_dir))
    for _ in range(2):
        asked = forked("save", model_dir)
        assert (asked.returncode, asked.stderr) == (0, "")
        told, committed = asked.stdout.splitlines()
        assert told.startswith("asked the supervisor (pid ")
        assert told.endswith(") for a checkpoint; attempt 1 goes on")
        assert committed.endswith(" is committed")
    result = running.result()
    assert (result.code, result.attempts) == (0, 1)
    assert [told["detail"].count(" on ") for told in result.events("save-requested")] == [1, 1]
    assert len(result.events("checkpoint-committed")) == 2
    assert not list((model_dir / "requests").iterdir())


def test_a_program_that_does_not_listen_is_not_asked(start: Start, model_dir: Path) -> None:
    running = start(command_config(model_dir, "save-on-sigterm", success={"step": 302}))
    running.wait_for("ready to save")
    assert eventually(lambda: (model_dir / "status.json").exists())
    asked = forked("save", model_dir)
    assert (asked.returncode, asked.stdout) == (64, "")
    assert "has not said that it listens to such requests, so nothing was asked" in asked.stderr
    assert f"`supervise restart {model_dir}`" in asked.stderr
    assert not (model_dir / "requests").exists()
    running.signal(signal.SIGTERM)
    running.result()


def test_where_nothing_runs_nothing_is_saved(start: Start, model_dir: Path) -> None:
    assert start(command_config(model_dir, success={"step": 6})).result().code == 0
    asked = forked("save", model_dir)
    assert asked.returncode == 64
    assert "there is nothing to save: SUCCEEDED" in asked.stderr


def test_a_program_may_number_its_checkpoints_in_another_way(start: Start, model_dir: Path) -> None:
    config = command_config(model_dir)
    by_epochs = LISTENS.replace("str(n)", "str(n // 100 + 1)")
    argv = [sys.executable, "-c", by_epochs, str(model_dir / "checkpoints")]
    config["trainer"]["command"]["argv"] = argv
    running = start(config)
    running.wait_for("it trains")
    assert eventually(lambda: (told_step(model_dir) or 0) > 100)
    asked = forked("save", model_dir)
    assert (asked.returncode, asked.stderr) == (0, "")
    assert "checkpoint of step " in asked.stdout
    assert ": it numbers its checkpoints in another way, or this save began" in asked.stdout
    running.signal(signal.SIGTERM)
    running.result()
