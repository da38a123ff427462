"""What `supervise stop`, `restart` and `save` say where the supervisor is killed or hangs, or the
person does not wait."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.forked import Forked, start_forked
from tests.processes.test_save_command import LISTENS, listens
from tests.processes.test_stopping import waiting
from tests.running import Running, Start, command_config, eventually

NEVER_SAVES = LISTENS.replace("should_save():", "should_save() and n < 0:")


def deaf(start: Start, model_dir: Path) -> Running:
    """A job that waits for a signal, and whose supervisor is stopped: it reads no request."""
    running = waiting(start, model_dir, "save-on-sigterm", "ready to save")
    running.signal(signal.SIGSTOP)
    return running


def never_saves(start: Start, model_dir: Path) -> Running:
    """A job whose program listens, and never saves."""
    config = command_config(model_dir)
    argv = [sys.executable, "-c", NEVER_SAVES, str(model_dir / "checkpoints")]
    config["trainer"]["command"]["argv"] = argv
    running = start(config)
    running.wait_for("it trains")
    assert eventually(lambda: listens(model_dir))
    return running


def asked(verb: str, model_dir: Path) -> tuple[Forked, str]:
    """The verb, which waits, and the line that it has printed."""
    asking = start_forked(verb, str(model_dir), env=os.environ)
    return asking, next_line(asking)


def next_line(asking: Forked) -> str:
    assert asking.stdout is not None
    return asking.stdout.readline().decode()


@pytest.mark.parametrize(
    ("verb", "make", "told"),
    [
        ("stop", deaf, "the supervisor is gone, and the job has not ended: RUNNING"),
        ("restart", deaf, "the supervisor is gone, and no fresh attempt has run: "),
        ("save", never_saves, "the supervisor ended before the checkpoint was committed: RUNNING"),
    ],
)
def test_where_the_supervisor_is_killed_nothing_has_been_done(
    start: Start,
    model_dir: Path,
    verb: str,
    make: Callable[[Start, Path], Running],
    told: str,
) -> None:
    running = make(start, model_dir)
    asking, said = asked(verb, model_dir)
    assert said.startswith("asked the supervisor")
    running.signal(signal.SIGKILL)
    _, err = asking.communicate()
    assert asking.wait() == 74
    assert told in err.decode()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 79), (signal.SIGTERM, 75)])
def test_who_waits_no_longer_has_asked_all_the_same(
    start: Start, model_dir: Path, number: int, code: int
) -> None:
    running = deaf(start, model_dir)
    asking, _ = asked("stop", model_dir)
    asking.send_signal(number)
    _, err = asking.communicate()
    assert asking.wait() == code
    assert err.decode() == "supervise: the wait is over; the request to the supervisor stays\n"
    running.signal(signal.SIGCONT)
    assert running.result().code == 79


@pytest.mark.slow
def test_a_request_that_is_not_read_is_named(start: Start, model_dir: Path) -> None:
    running = deaf(start, model_dir)
    asking, _ = asked("stop", model_dir)
    said = next_line(asking)
    (request,) = (model_dir / "requests").iterdir()
    assert said.startswith(f"the request is not read after 15 s ({request}): ")
    running.signal(signal.SIGCONT)
    asking.communicate()
    assert (asking.wait(), running.result().code) == (0, 79)
