"""`init.notify`: people are told, the job never waits for it, and no webhook's URL is kept."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.running import Result, Start, command_config

Supervise = Callable[..., Result]

APPENDS = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read() + '\\n')"
EVERYTHING = ["failure", "restart", "shrink", "finish", "person"]


def job(model_dir: Path, *toy: str, notify: list[dict[str, Any]]) -> dict[str, Any]:
    config = command_config(model_dir, *toy)
    config["trainer"]["init"]["notify"] = notify
    return config


def appending(file: Path, on: list[str]) -> dict[str, Any]:
    return {"command": [sys.executable, "-c", APPENDS, str(file)], "on": on}


def messages(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_command_is_told_of_the_failure_and_of_the_end(
    supervise: Supervise, model_dir: Path, tmp_path: Path
) -> None:
    file = tmp_path / "told"
    notify = [appending(file, EVERYTHING)]
    result = supervise(job(model_dir, "SIGKILL", "--once", notify=notify))
    assert result.code == 0, result.log
    told = messages(file)
    assert {kind for each in told for kind in each["on"]} >= {"failure", "restart", "finish"}
    assert told[-1]["status"] == "SUCCEEDED"
    assert told[-1]["log"].startswith(f"{model_dir}/")
    assert not result.has_event("notification-failed")


def test_a_webhook_that_never_answers_delays_nothing_and_its_url_is_nowhere(
    supervise: Supervise, model_dir: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"127.0.0.1:{silent.getsockname()[1]}"
        notify: list[dict[str, Any]] = [
            {"webhook": f"http://{place}/services/T0/zebra-one", "on": EVERYTHING},
            {"webhook": {"env": "HOOKED"}, "on": EVERYTHING},
            {"webhook": {"env": "NOT_SET_HERE"}},
        ]
        config = job(model_dir, "SIGKILL", "--once", notify=notify)
        result = supervise(config, env={"HOOKED": f"http://{place}/other/zebra-two"})
    assert result.code == 0, result.log
    assert len(result.events("attempt-started")) == 2
    (failed,) = result.events("notification-failed")
    assert (failed["key"], failed["reason"]) == (
        "the webhook of init.notify[2]",
        "the variable NOT_SET_HERE is not set",
    )
    assert "the last message did not reach the webhook of init.notify[0]" in result.err
    kept = [path for path in model_dir.rglob("*") if path.is_file()]
    assert kept
    for path in kept:
        assert b"zebra" not in path.read_bytes(), path
    assert "zebra" not in result.raw + result.err


def test_a_command_that_hangs_delays_neither_the_job_nor_its_end_and_is_killed(
    start: Start, model_dir: Path, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    script = 'echo $$ > "$1.new"; mv "$1.new" "$1"; sleep 3600'
    notify = [{"command": ["sh", "-c", script, "sh", str(pid)], "on": ["finish"]}]
    result = start(job(model_dir, "--steps", "2", notify=notify)).result()
    assert result.code == 0, result.log
    assert "the last message did not reach the command of init.notify[0]" in result.err
    assert not pid.exists() or not Path(f"/proc/{pid.read_text().strip()}").exists()


def test_a_command_that_fails_is_told_once_and_costs_no_attempt(
    supervise: Supervise, model_dir: Path
) -> None:
    notify = [{"command": ["sh", "-c", "echo no such channel >&2; exit 4"], "on": EVERYTHING}]
    result = supervise(job(model_dir, "--steps", "3", notify=notify))
    assert result.code == 0
    assert result.attempts == 1
    assert "the last message did not reach the command of init.notify[0]" in result.err
