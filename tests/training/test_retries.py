"""Storage that fails for a moment costs no restart and no checkpoint; what lasts is an error."""

# mypy: allow-untyped-calls
from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from supervisor.protocol.committed import MARKER
from supervisor.protocol.messages import NoticeCode
from tests.training.notices import Notices
from tests.training.test_foreign import state_of
from trainer.checkpoint import CheckpointSaver, newest_step
from trainer.checkpoint_steps import NoUsableCheckpointError, RenamedSteps
from trainer.retries import Retries, may_pass

from .harness import MakeTrainer, assert_same_bits

QUICK = Retries(pauses=(0.0, 0.0, 0.0))
PASSING = [errno.EIO, errno.EAGAIN, errno.ETIMEDOUT]
TENSORSTORE = (
    'UNKNOWN: Error opening "zarr" driver: Error writing "a/.zarray": Failed to fsync file: {} '
    "[tensorstore_spec='{{}}']"
)
"""What tensorstore 0.1.84 raised when fsync failed."""


def error_of(number: int) -> OSError:
    return OSError(number, os.strerror(number), "/some/file")


class Failing:
    """A function of the standard library that fails so many times for some files."""

    def __init__(self, function: Callable[..., Any], name: str, number: int, times: int) -> None:
        self.function = function
        self.name = name
        self.number = number
        self.times = times

    def patched(self, *arguments: Any, **options: Any) -> Any:
        path = str(arguments[0])
        if self.times and path.endswith(self.name):
            self.times -= 1
            raise OSError(self.number, os.strerror(self.number), path)
        return self.function(*arguments, **options)

    def as_method(self) -> Callable[..., Any]:
        return lambda path, *arguments, **options: self.patched(path, *arguments, **options)


# --- the rule -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", PASSING)
def test_what_passes_is_tried_again_after_growing_pauses(
    number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    slept = list[float]()
    chances = iter([0.0, 1.0, 0.5])
    retries = Retries((1.0, 4.0, 16.0), slept.append, lambda: next(chances))
    failures = iter([error_of(number)] * 3)

    def action() -> str:
        if (error := next(failures, None)) is not None:
            raise error
        return "done"

    assert retries.run("the save", action) == "done"
    assert slept == [0.5, 6.0, 16.0]
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 3
    assert told[0].startswith("the save failed (")
    assert told[0].endswith("it is tried again in 0.5 s")


def test_what_lasts_or_does_not_pass_is_raised() -> None:
    calls = list[int]()

    def action(number: int) -> None:
        calls.append(number)
        raise error_of(number)

    for number, tries in ((errno.EIO, 4), (errno.ENOSPC, 1), (errno.EACCES, 1), (errno.EROFS, 1)):
        calls.clear()
        with pytest.raises(OSError, match="Errno") as caught:
            QUICK.run("the save", partial(action, number))
        assert caught.value.errno == number
        assert len(calls) == tries


def test_an_error_passes_if_its_cause_does() -> None:
    for number in PASSING:
        error = ValueError("the reader failed")
        error.__cause__ = RuntimeError("an item failed")
        error.__cause__.__context__ = error_of(number)
        assert may_pass(error)
        assert may_pass(ValueError(TENSORSTORE.format(os.strerror(number))))
    assert not may_pass(ValueError(TENSORSTORE.format(os.strerror(errno.ENOSPC))))
    unrelated = ValueError("the shapes differ")
    unrelated.__context__, unrelated.__suppress_context__ = error_of(errno.EIO), True
    assert not may_pass(unrelated)


# --- the trainer's checkpoints --------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def opened(
    directory: Path, said: Notices, before_commit: Callable[[], None] = lambda: None
) -> CheckpointSaver:
    steps = RenamedSteps(directory)
    return CheckpointSaver(steps, 2, {}, said, before_commit=before_commit, retries=QUICK)


def failing_commits(number: int, times: int) -> Callable[[], None]:
    """What is called in the thread that commits a step, and fails so many times."""
    errors = iter([error_of(number)] * times)

    def fail() -> None:
        if (error := next(errors, None)) is not None:
            raise error

    return fail


def save(checkpoints: CheckpointSaver, step: int) -> int:
    """Save as the trainer does before its end; returns how many tries failed."""
    failures, is_due = 0, True
    while is_due:
        checkpoints.wait_for_next_try()
        checkpoints.save(state_of(step), step, {"next": step})
        checkpoints.committed(wait=True)
        is_due = checkpoints.has_failed
        failures += is_due
    checkpoints.wait_for_manifest()
    return failures


@pytest.mark.parametrize("number", PASSING)
def test_a_save_that_fails_twice_is_made_again_and_leaves_nothing(
    directory: Path, number: int
) -> None:
    said = Notices()
    checkpoints = opened(directory, said, failing_commits(number, 2))
    assert save(checkpoints, 5) == 2
    assert save(checkpoints, 7) == 0
    assert checkpoints.newest_verified() == 7
    assert not said
    assert {path.name for path in directory.iterdir()} - {"5", "7"} == {
        "supervise_ledger_by-hand.json"
    }
    checkpoints.close()


def test_a_save_that_fails_is_due_again_at_once_and_then_as_before(
    directory: Path,
) -> None:
    checkpoints = opened(directory, Notices(), failing_commits(errno.EIO, 1))
    checkpoints.save(state_of(5), 5, {"next": 5})
    assert checkpoints.committed(wait=True) is None
    assert checkpoints.due(6)
    checkpoints.save(state_of(6), 6, {"next": 6})
    assert checkpoints.committed(wait=True) == 6
    assert not checkpoints.has_failed
    checkpoints.close()


def test_a_save_that_fails_each_time_is_an_error(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints = opened(directory, Notices(), failing_commits(errno.EIO, 100))
    with pytest.raises(OSError, match="Input/output error"):
        save(checkpoints, 5)
    assert capsys.readouterr().out.count("the save of step 5 failed") == 3
    said = Notices()
    assert opened(directory, said).newest() is None
    assert not list(directory.glob("*tmp"))
    assert not said


@pytest.mark.parametrize("times", [2, 100])
def test_a_read_that_fails_for_a_moment_is_no_damage(
    directory: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """One that fails for good is: that disk does not give the file back."""
    said = Notices()
    checkpoints = opened(directory, said)
    for step in (5, 7):
        save(checkpoints, step)
    failing = Failing(os.open, "7/params/_METADATA", errno.EIO, 0)
    monkeypatch.setattr(os, "open", failing.patched)
    failing.times = times
    restored = checkpoints.restore(state_of(0))
    assert restored is not None
    assert restored.step == (7 if times == 2 else 5), said
    assert failing.times < times
    assert (NoticeCode.CHECKPOINT_DAMAGED in said.codes) == (times != 2)


def test_a_look_that_fails_for_a_moment_is_made_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = opened(directory, Notices())
    save(checkpoints, 5)
    failing = Failing(Path.lstat, f"5/{MARKER}", errno.EAGAIN, 3)
    monkeypatch.setattr(Path, "lstat", failing.as_method())
    assert checkpoints.newest() == 5
    assert failing.times == 0


def test_damage_is_not_tried_again(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoints = opened(directory, Notices())
    save(checkpoints, 5)
    shutil.rmtree(directory / "5" / "params")
    with pytest.raises(NoUsableCheckpointError):
        checkpoints.restore(state_of(0))
    assert "tried again" not in capsys.readouterr().out


# --- the kernel -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_system_calls_that_fail_for_a_moment_cost_no_restart(make_trainer: MakeTrainer) -> None:
    """strace makes each write of tensorstore fail until two saves have failed."""
    whole, struck = (make_trainer(name, max_steps=2000) for name in ("whole", "struck"))
    for trainer in (whole, struck):
        trainer.mapping["trainer"]["init"]["checkpoint"]["every"] = 200
        trainer.mapping["trainer"]["init"]["loop"]["log_every"] = 1000
        del trainer.mapping["trainer"]["fit"]["validation"]
    whole.finish()
    process, tracer, output = struck.start(), None, ""
    assert process.stdout is not None
    for line in process.stdout:
        output += line
        if tracer is None and line == "step 200  checkpoint committed\n":
            calls = "writev,pwrite64,pwritev"
            inject = ["-e", f"trace={calls}", "-e", f"inject={calls}:error=EIO"]
            to = ["-o", os.devnull, "-p", f"{process.pid}"]
            tracer = subprocess.Popen(["strace", "-f", "-qq", *inject, *to])
        if tracer is not None and output.count("it is tried again") == 2:
            tracer.send_signal(signal.SIGINT)
            tracer.wait()
    process.stdout.close()
    assert process.wait() == 0, output
    assert tracer is not None
    tracer.kill()
    tracer.wait()
    assert output.count("it is tried again") >= 2, output
    assert newest_step(struck.checkpoints) == 2000
    assert not list(struck.checkpoints.glob("*tmp"))
    assert_same_bits(struck.state(2000), whole.state(2000))
