"""A guard that gets no CPU time for some seconds: nothing is lost by it, and nothing misjudged."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.processes.test_guard import guard_of
from tests.processes.test_wrappers import ready, shell_config, toy
from tests.running import Running, Start, command_config, lives

_SECONDS = 4.0
"""More than a guard gets to answer where all is to be killed anyhow."""


@contextmanager
def frozen_guard(running: Running) -> Iterator[None]:
    """Freezes the guard in the block, and for some seconds after it."""
    guard = guard_of(running)
    guard.suspend()
    try:
        yield
        running.listen(_SECONDS)
    finally:
        guard.resume()


def worker_of(running: Running) -> int:
    """The pid of the one worker."""
    (pid,) = running.wait_for_event("workers-started")["pids"]
    return int(pid)


@pytest.mark.parametrize("shell", [False, True], ids=["alone", "below a shell"])
@pytest.mark.parametrize("is_saving", [False, True], ids=["before", "during"])
def test_a_save_is_not_cut_short(
    start: Start, model_dir: Path, *, is_saving: bool, shell: bool
) -> None:
    seconds = str(_SECONDS + 1) if is_saving else "0"
    words = ("save-on-sigterm", "--at", "3", "--save-seconds", seconds)
    config = command_config(model_dir, *words)
    if shell:
        config = shell_config(model_dir, f"{toy(model_dir, *words)}; true")
    running = ready(start, config)
    if is_saving:
        running.signal(signal.SIGTERM)
        running.wait_for("saving")
    with frozen_guard(running):
        if not is_saving:
            running.signal(signal.SIGTERM)
    result = running.result()
    assert result.code == 75, result.log
    assert result.summary["highest_committed_step"] == 300, result.log
    assert result.has_event("attempt-stopped", saved=True, step=300, lost_steps=0)
    assert not result.has_event("workers-killed")
    assert not result.has_event("guard-lost")


def test_the_end_of_a_worker_is_judged_by_what_it_was(start: Start, model_dir: Path) -> None:
    running = start(command_config(model_dir, "wait", "--once", success={"step": 6}))
    running.wait_for("waiting")
    with frozen_guard(running):
        os.kill(worker_of(running), signal.SIGBUS)
    result = running.result()
    assert result.code == 0, result.log
    failure = result.summary["attempts"][0]["failure"]
    assert failure["exit"] == "killed by SIGBUS"
    assert result.attempts == 2
    assert not result.has_event("guard-lost")


def test_a_command_that_goes_on_in_the_background_is_no_success(
    start: Start, model_dir: Path
) -> None:
    goes = model_dir / "goes"
    script = f"sleep 3600 & echo begun; until [ -e {goes} ]; do sleep 0.05; done"
    running = ready(start, shell_config(model_dir, script), "begun")
    with frozen_guard(running):
        goes.touch()
    result = running.result()
    assert result.code == 70, result.log
    assert result.has_event("verdict", code="background")
    assert not result.has_event("guard-lost")


def test_an_attempt_starts_late(start: Start, model_dir: Path) -> None:
    restart = {"backoff": {"first": 2.0}}
    config = command_config(model_dir, "crash", "--once", restart=restart, success={"step": 6})
    running = start(config)
    running.wait_for_event("attempt-started", attempt=2)
    with frozen_guard(running):
        pass
    result = running.result()
    assert result.code == 0, result.log
    assert result.attempts == 2
    assert not result.has_event("guard-lost")


def test_a_hang_is_judged_as_one_where_the_guard_never_answers(
    start: Start, model_dir: Path
) -> None:
    restart = {"deadlines": {"TRAINING": 1.0}, "grace_period": 0.5}
    config = command_config(model_dir, "hang", "--once", restart=restart, success={"step": 6})
    running = start(config)
    running.wait_for("completed step: 3")
    guard = guard_of(running)
    guard.suspend()
    result = running.result()
    assert result.code == 0, result.log
    assert not lives(guard.pid)
    assert result.event("guard-lost")["reason"] == "unheard", "and not killed by somebody else"
    assert result.summary["attempts"][0]["failure"]["rule"] == "hang"
