"""What systemd hears of a job, on a real socket of the kind it listens to."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.running import Result, Start, command_config

Supervise = Callable[..., Result]


@dataclass
class Manager:
    """systemd's end of the socket."""

    socket: socket.socket
    address: str
    heard: list[str] = field(default_factory=list)

    def environment(self, **more: str) -> dict[str, str]:
        return {"NOTIFY_SOCKET": self.address, **more}

    def wait_for(self, text: str) -> str:
        """The next assignment that begins with `text`."""
        while True:
            for line in self.socket.recv(65536).decode().split("\n"):
                self.heard.append(line)
                if line.startswith(text):
                    return line

    def all(self) -> list[str]:
        """Everything that was heard until now."""
        self.socket.setblocking(False)
        while True:
            try:
                self.heard += self.socket.recv(65536).decode().split("\n")
            except BlockingIOError:
                return self.heard


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    address = str(tmp_path / "notify") if request.param == "path" else f"@{tmp_path}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(address.replace("@", "\0", 1))
        listening.settimeout(20.0)
        yield Manager(listening, address)


def test_ready_status_watchdog_and_stopping_in_this_order(
    start: Start, model_dir: Path, manager: Manager
) -> None:
    job = command_config(model_dir, "save-on-sigterm", "--once", success={"step": 500})
    running = start(job, env=manager.environment(WATCHDOG_USEC="600000"))
    manager.wait_for("WATCHDOG=1")
    manager.wait_for("READY=1")
    assert not any(line.startswith("STATUS=RUNNING") for line in manager.heard)
    status = manager.wait_for("STATUS=RUNNING")
    assert status.startswith("STATUS=RUNNING: phase 'phase1', attempt 1")
    running.wait_for("ready to save")
    before = time.monotonic()
    for _ in range(3):
        manager.wait_for("WATCHDOG=1")
    assert time.monotonic() - before < 3 * 0.6, "it is petted well within its period"
    assert "STOPPING=1" not in manager.heard
    running.process.terminate()
    assert running.result().code == 75
    heard = manager.all()
    stopping = heard.index("STOPPING=1")
    assert heard[stopping + 1] == "EXTEND_TIMEOUT_USEC=55000000", "25 s of grace, and some to end"
    assert heard.count("READY=1") == heard.count("STOPPING=1") == 1
    assert heard[-1].startswith("STATUS=DRAINED: phase 'phase1', attempt 1, ")
    assert heard[-1].endswith("last checkpoint: step 300")


def test_the_status_is_throttled_and_the_last_one_is_told(
    supervise: Supervise, model_dir: Path, manager: Manager
) -> None:
    job = command_config(model_dir, "--steps", "3000", "--every", "3000", success={"step": 3000})
    assert supervise(job, env=manager.environment()).code == 0
    told = [line for line in manager.all() if line.startswith("STATUS=")]
    assert len(told) < 12
    assert told[-1].startswith("STATUS=SUCCEEDED")


def test_a_job_that_waits_or_has_ended_is_up_too(
    start: Start, supervise: Supervise, model_dir: Path, manager: Manager
) -> None:
    """systemd would take the time for a failed start, and exit 0 before READY for a failure."""
    restart = {"max_num_restarts": 5, "backoff": {"first": 3000, "max": 3000}}
    crashing = command_config(model_dir, "SIGKILL", "--at", "0", restart=restart)
    running = start(crashing)
    running.wait_for_event("attempt-failed", attempt=2)
    running.wait_for_event("backoff")
    running.process.kill()
    running.result()
    running = start(crashing, env=manager.environment())
    manager.wait_for("READY=1")
    manager.wait_for("STATUS=BACKOFF")
    running.process.terminate()
    assert running.result().code == 75
    job = command_config(model_dir, success={"step": 6})
    assert supervise(job).code == 0
    manager.all().clear()
    assert supervise(job, env=manager.environment()).code == 0
    assert "READY=1" in manager.all()


def test_workers_do_not_speak_for_the_supervisor(
    supervise: Supervise, model_dir: Path, manager: Manager
) -> None:
    job = command_config(model_dir)
    script = "env | grep -c -e NOTIFY_SOCKET -e WATCHDOG; test $? = 1 && echo none of them"
    job["trainer"]["command"] = ["sh", "-c", script]
    more = {"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}
    result = supervise(job, env=manager.environment(**more))
    assert result.code == 0
    assert result.rank_log(1).splitlines() == [b"0", b"none of them"]
    assert "WATCHDOG=1" not in manager.all(), "the watchdog is another process's"


def test_a_systemd_that_does_not_listen_is_no_reason_to_stop(
    supervise: Supervise, model_dir: Path, tmp_path: Path
) -> None:
    env = {"NOTIFY_SOCKET": str(tmp_path / "nowhere"), "WATCHDOG_USEC": "junk"}
    assert supervise(command_config(model_dir), env=env).code == 0
