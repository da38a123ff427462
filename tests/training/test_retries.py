"""Storage that fails for a moment costs no restart and no checkpoint; what lasts is an error."""

# mypy: allow-untyped-calls
from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from supervisor.protocol.committed import MARKER
from supervisor.protocol.messages import NoticeCode
from tests.running import PATIENCE
from tests.training.notices import Notices
from tests.training.test_foreign import state_of
from trainer.checkpoint import CheckpointSaver, newest_step
from trainer.checkpoint_steps import NoUsableCheckpointError, RenamedSteps
from trainer.marked_steps import MarkedSteps
from trainer.retries import Retries, may_pass

from .harness import MakeTrainer, Trainer, assert_same_bits

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
        checkpoints.committed(wait=True, saves_next=True)
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
    assert said.codes == [NoticeCode.SAVE_FAILED] * 2
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
    directory: Path,
) -> None:
    said = Notices()
    checkpoints = opened(directory, said, failing_commits(errno.EIO, 100))
    with pytest.raises(OSError, match="Input/output error"):
        save(checkpoints, 5)
    assert said.codes == [NoticeCode.SAVE_FAILED] * 3
    said = Notices()
    assert opened(directory, said).newest() is None
    assert not list(directory.glob("*tmp"))
    assert not said


def on_a_mount(directory: Path, said: Notices) -> CheckpointSaver:
    """What saves by the rules for a mounted bucket; its first save fails."""
    fail = failing_commits(errno.EIO, 1)
    return CheckpointSaver(MarkedSteps(directory), 2, {}, said, before_commit=fail, retries=QUICK)


def test_on_a_mount_the_next_step_is_saved_in_place_of_one_that_failed(directory: Path) -> None:
    said = Notices()
    checkpoints = on_a_mount(directory, said)
    checkpoints.save(state_of(5), 5, {"next": 5})
    assert checkpoints.committed(wait=True) is None
    assert checkpoints.due(6)
    checkpoints.save(state_of(6), 6, {"next": 6})
    assert checkpoints.committed(wait=True) == 6
    assert said.codes == [NoticeCode.SAVE_FAILED]
    assert {path.name for path in directory.iterdir()} == {"6", "supervise_ledger_by-hand.json"}
    checkpoints.close()


def test_on_a_mount_the_same_step_is_not_saved_again(directory: Path) -> None:
    """Parts of the save that failed may still arrive there."""
    checkpoints = on_a_mount(directory, Notices())
    with pytest.raises(OSError, match="Input/output error"):
        save(checkpoints, 5)


def test_on_a_mount_of_several_the_one_that_failed_ends_with_its_own_error(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "127.0.0.1:1")
    with pytest.raises(OSError, match=r"^\[Errno 5\] Input/output error") as caught:
        save(on_a_mount(directory, Notices()), 5)
    assert type(caught.value) is OSError, "it has not only heard of it"


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


def test_where_others_wait_for_it_the_commit_alone_is_tried_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another save would have to be begun by all of them."""
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "127.0.0.1:1")
    said = Notices()
    checkpoints = opened(directory, said, failing_commits(errno.EIO, 2))
    assert save(checkpoints, 5) == 0
    assert capsys.readouterr().out.count("the commit of step 5 failed") == 2
    assert checkpoints.newest() == 5
    assert not said
    checkpoints.close()


@pytest.mark.parametrize(
    ("saves_next", "when"), [(True, "in 0.0 s"), (False, "at the next step that is due")]
)
def test_it_is_told_when_a_save_of_several_processes_is_tried_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch, *, saves_next: bool, when: str
) -> None:
    """At the end there is no next step: the same one is saved again."""
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "127.0.0.1:1")
    said = Notices()
    checkpoints = opened(directory, said, failing_commits(errno.EIO, 4))
    checkpoints.save(state_of(5), 5, {"next": 5})
    assert checkpoints.committed(wait=True, saves_next=saves_next) is None
    assert [text.rpartition(": it is tried again ")[2] for text in said] == [when]


def report_of_rename(monkeypatch: pytest.MonkeyPatch, target: Path, number: int) -> list[Path]:
    """Have the first rename to `target` take effect, but report an error; returns where it is told
    that this happened."""
    rename, told = os.rename, list[Path]()

    def renamed(source: Any, to: Any, **options: Any) -> None:
        rename(source, to, **options)
        if not told and Path(to) == target:
            told.append(target)
            raise error_of(number)

    monkeypatch.setattr(os, "rename", renamed)
    return told


@pytest.mark.parametrize("what", ["5", "5.orbax-checkpoint-tmp/params"])
def test_a_commit_that_took_effect_is_done_though_an_error_is_reported(
    directory: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A rename on a soft NFS mount may time out and be done nevertheless."""
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "127.0.0.1:1")
    said = Notices()
    checkpoints = opened(directory, said)
    told = report_of_rename(monkeypatch, directory / what, errno.ETIMEDOUT)
    assert save(checkpoints, 5) == 0
    assert told
    assert checkpoints.newest_verified() == 5
    assert not said
    checkpoints.close()


def test_a_step_that_is_there_is_no_commit_of_ones_own_if_the_error_does_not_pass(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another owner may have removed what this one has written, and have saved that step."""
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "127.0.0.1:1")
    checkpoints = opened(directory, Notices())
    report_of_rename(monkeypatch, directory / "5", errno.ENOENT)
    with pytest.raises(FileNotFoundError):
        save(checkpoints, 5)


# --- several processes ----------------------------------------------------------------------------

UNRELIABLE = """
import builtins, errno, os

left = {"write": 2, "open": 2}

def failing(kind, function, is_it):
    def call(path, *arguments, **options):
        if left[kind] and is_it(str(path)):
            left[kind] -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return function(path, *arguments, **options)
    return call

builtins.open = failing("write", open, lambda path: path.endswith("MARKER"))
os.open = failing("open", os.open, lambda path: path.endswith("5/params/_METADATA"))
"""
"""A `sitecustomize`: the marker of a step cannot be written at first, and step 5 not be read."""


WRITES_FAIL = """
import os

if os.environ.get("JAX_PROCESS_ID") == "FAILING":
    import tensorstore

    opened, steps = tensorstore.open, {"STEPS"}

    def failing(spec, *arguments, **options):
        if any(f"/{step}.orbax-checkpoint-tmp/params" in str(spec) for step in steps):
            raise ValueError("Error writing: Failed to fsync file: ERROR [x]")
        return opened(spec, *arguments, **options)

    tensorstore.open = failing
"""
"""A `sitecustomize`: one process cannot write its part of some steps."""


def writes_fail(folder: Path, process: int, steps: Sequence[int], number: int) -> str:
    """Write a `sitecustomize` by which `process` cannot write its part of `steps`; returns what
    PYTHONPATH is then."""
    text = WRITES_FAIL.replace("FAILING", str(process)).replace("ERROR", os.strerror(number))
    text = text.replace('"STEPS"', ", ".join(map(str, steps)))
    (folder / "sitecustomize.py").write_text(text)
    return str(folder)


def start_two(trainer: Trainer, python_path: str | None = None) -> list[subprocess.Popen[str]]:
    """Start two processes that train together."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    running = []
    for rank in range(2):
        trainer.extra = {
            "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
            "JAX_NUM_PROCESSES": "2",
            "JAX_PROCESS_ID": str(rank),
            "SUPERVISE_FAILURE_FILE": str(trainer.folder / f"failure{rank}.json"),
        }
        if python_path is not None:
            trainer.extra["PYTHONPATH"] = python_path
        running.append(trainer.start())
    return running


@pytest.mark.parametrize("failing", [0, 1])
def test_of_two_processes_both_give_a_save_up_that_one_cannot_write(
    make_trainer: MakeTrainer, tmp_path: Path, failing: int
) -> None:
    """The save at the end is tried again at the same step."""
    trainer = make_trainer(max_steps=11)
    running = start_two(trainer, writes_fail(tmp_path, failing, [5], errno.EIO))
    printed = [process.communicate(timeout=PATIENCE)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0], "\n".join(printed)
    told = [line for line in printed[0].splitlines() if "the save of step 5 failed" in line]
    assert len(told) == 1, printed[0]
    assert f"(process {failing}: " in told[0]
    assert told[0].endswith("it is tried again at the next step that is due")
    assert "the save of step 5" not in printed[1], "one line tells it"
    assert {path.name for path in trainer.checkpoints.iterdir() if path.is_dir()} == {"10", "11"}


@pytest.mark.slow
@pytest.mark.parametrize("failing", [0, 1])
def test_of_two_processes_the_one_that_cannot_write_ends_with_its_own_error(
    make_trainer: MakeTrainer, tmp_path: Path, failing: int
) -> None:
    """The other one, which has only heard of it, says nothing of storage."""
    trainer = make_trainer(max_steps=21)
    python_path = writes_fail(tmp_path, failing, [5, 10, 15, 20], errno.EIO)
    running = start_two(trainer, python_path)
    printed, _ = running[failing].communicate(timeout=PATIENCE)
    running[1 - failing].kill()
    running[1 - failing].communicate(timeout=PATIENCE)
    assert running[failing].returncode == 1, printed
    own, heard = (trainer.folder / f"failure{rank}.json" for rank in (failing, 1 - failing))
    assert [each["type"] for each in json.loads(own.read_text())["exceptions"]] == [
        "builtins.ValueError"
    ]
    assert not heard.exists() or "Input/output error" not in heard.read_text()


@pytest.mark.slow
def test_of_two_processes_each_outlives_storage_that_fails_for_a_moment(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(UNRELIABLE.replace("MARKER", MARKER))

    def run(trainer: Trainer, *, fails: bool) -> list[str]:
        running = start_two(trainer, str(tmp_path) if fails else None)
        printed = [process.communicate(timeout=PATIENCE)[0] for process in running]
        assert [process.returncode for process in running] == [0, 0], "\n".join(printed)
        return printed

    whole, struck = make_trainer("whole"), make_trainer("struck")
    for trainer in (whole, struck):
        trainer.mapping["trainer"]["init"]["loop"]["max_steps"] = 5
        run(trainer, fails=trainer is struck)
        trainer.mapping["trainer"]["init"]["loop"]["max_steps"] = 9
        printed = run(trainer, fails=trainer is struck)
    assert printed[0].count("the commit of ") == 2
    assert printed[0].count("the read of step 5 failed") > 0, "it alone reads all files itself"
    assert all("restored step 5" in each for each in printed)
    assert_same_bits(struck.state(9), whole.state(9))


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
