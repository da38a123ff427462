"""What cannot be killed: the supervisor hears signals meanwhile, and does not wait without end."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running import Running, Start, command_config, eventually

FREEZER = Path("/sys/fs/cgroup/freezer")
"""Of cgroup v1: what is in a frozen one of these sleeps in the kernel, and no SIGKILL ends it."""
TRAINER = """
import os, pathlib, signal, sys, time
if os.environ["SUPERVISE_ATTEMPT"] != "1":
    sys.exit(0)
place = pathlib.Path(sys.argv[1])
if (child := os.fork()) == 0:
    os.setsid()
    signal.pause()
(place / "cgroup.procs").write_text(str(child))
(place / "freezer.state").write_text("FROZEN")
while (place / "freezer.state").read_text() != "FROZEN\\n":
    time.sleep(0.01)
os.write(1, b"%d is frozen\\n" % child)
sys.exit(9)
"""


@pytest.fixture
def frozen() -> Iterator[Path]:
    """A cgroup to be frozen in."""
    place = FREEZER / f"supervise-test-{os.getpid()}"
    try:
        place.mkdir()
    except OSError:
        pytest.skip("NOT TESTED: there is no freezer of cgroup v1 to be had")
    yield place
    thaw(place)
    assert eventually(lambda: not (place / "cgroup.procs").read_text())
    place.rmdir()


def thaw(place: Path) -> None:
    (place / "freezer.state").write_text("THAWED")


@pytest.fixture
def undying(frozen: Path, start: Start, model_dir: Path) -> Iterator[Running]:
    """A job whose first attempt leaves a process that cannot be killed."""
    config = command_config(model_dir)
    config["trainer"]["command"]["argv"] = [sys.executable, "-S", "-c", TRAINER, str(frozen)]
    yield start(config)
    thaw(frozen)


def pid_of_the_frozen(running: Running) -> int:
    found = re.findall(r"^(\d+) is frozen$", running.wait_for(" is frozen\n"), re.MULTILINE)
    return int(found[-1])


def test_sigterm_ends_the_wait_for_what_cannot_be_killed(undying: Running) -> None:
    """The rest of a minute was waited out, and before that every signal was ignored."""
    pid = pid_of_the_frozen(undying)
    undying.wait_for_event("rank-ended", rank=0, code=9)
    undying.signal(signal.SIGTERM)
    undying.wait_for_event("stop-requested", code="SIGTERM")
    result = undying.result(30.0)
    assert result.code == 74
    why = result.event("supervisor-failed")["reason"]
    assert re.match(rf"pid {pid} \(python\S*, of root, frozen or waiting", why), why
    assert f"supervise: pid {pid} " in result.err
    assert "Traceback" not in result.err
    assert not result.has_event("attempt-started", attempt=2)


def test_one_sigterm_is_enough(frozen: Path, start: Start, model_dir: Path) -> None:
    """A service manager sends no second one: a minute was waited out."""
    config = command_config(model_dir)
    config["trainer"]["command"]["argv"] = ["sleep", "1000"]
    config["trainer"]["init"].setdefault("autorestart", {})["grace_period"] = "1s"
    running = start(config)
    (pid,) = running.wait_for_event("workers-started")["pids"]
    (frozen / "cgroup.procs").write_text(str(pid))
    (frozen / "freezer.state").write_text("FROZEN")
    assert eventually(lambda: (frozen / "freezer.state").read_text() == "FROZEN\n")
    running.signal(signal.SIGTERM)
    try:
        result = running.result(40.0)
    finally:
        thaw(frozen)
    assert result.code == 74
    assert f"supervise: pid {pid} " in result.err


def test_what_dies_late_is_waited_for(undying: Running, frozen: Path) -> None:
    pid_of_the_frozen(undying)
    undying.wait_for_event("rank-ended", rank=0, code=9)
    thaw(frozen)
    assert undying.result().code == 0
