"""Faults that strike from outside. Each is the real thing, done by ordinary system calls."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from errno import ENOSPC
from pathlib import Path

from supervisor.protocol.committed import committed_steps
from tests.chaos.job import Job, Sign, StormError

Strike = Callable[[Job], str]


def both(first: Strike, second: Strike) -> Strike:
    """Return a strike that does `first` and then `second`."""

    def strike(job: Job) -> str:
        return "; ".join(filter(None, (first(job), second(job))))

    return strike


# --- the trainer -------------------------------------------------------------------------------


def signal_to_trainer(name: str) -> Strike:
    def strike(job: Job) -> str:
        assert job.pid is not None
        os.kill(job.pid, signal.Signals[name])
        return ""

    return strike


def garbage_on_progress_pipe(job: Job) -> str:
    """Write garbage to the progress pipe, as a stray write of a library would."""
    environ = Path(f"/proc/{job.pid}/environ").read_bytes().split(b"\0")
    prefix = b"SUPERVISE_PROGRESS_FD="
    number = next(item for item in environ if item.startswith(prefix)).removeprefix(prefix)
    pipe = os.open(f"/proc/{job.pid}/fd/{int(number)}", os.O_WRONLY)
    os.write(pipe, b'\xff\xfe{"not": json\n[1, 2]\n{"v": 1, "kind": "step", "step": -3}\n')
    os.close(pipe)
    return ""


# --- the supervisor ----------------------------------------------------------------------------


def signals_to_supervisor(*names: str) -> Strike:
    def strike(job: Job) -> str:
        for name in names:
            job.signal(signal.Signals[name])
        return ""

    return strike


def pause_supervisor(seconds: float) -> Strike:
    """Return a strike that stops the supervisor for `seconds`. The stop itself is the fault, so
    this sleep is not a wait."""

    def strike(job: Job) -> str:
        job.signal(signal.SIGSTOP)
        time.sleep(seconds)
        job.signal(signal.SIGCONT)
        return ""

    return strike


def start_second(job: Job) -> str:
    code = job.run_second()
    if code != 73:
        raise StormError(f"a second supervisor ended with {code}, not 73")
    return "the second: exit code 73"


def kill_both(job: Job) -> str:
    pid = job.pid
    assert pid is not None
    job.signal(signal.SIGKILL)
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return "the trainer was gone already"
    return ""


def kill_supervisor_in_hang(job: Job) -> str:
    seen = len(job.lines)
    signal_to_trainer("SIGSTOP")(job)
    job.wait_for_event(Sign("hang-detected"), seen)
    job.signal(signal.SIGKILL)
    return ""


def kill_supervisor_at_start(job: Job) -> str:
    seen = len(job.lines)
    signal_to_trainer("SIGKILL")(job)
    job.wait_for_event(Sign("workers-started"), seen)
    job.signal(signal.SIGKILL)
    return ""


def stop_with_stopped_trainer(job: Job) -> str:
    signal_to_trainer("SIGSTOP")(job)
    job.signal(signal.SIGTERM)
    return ""


def stop_while_restoring(job: Job) -> str:
    seen = len(job.lines)
    signal_to_trainer("SIGKILL")(job)
    job.wait_for_event(Sign("stage-entered", {"stage": "RESTORING"}), seen)
    job.signal(signal.SIGTERM)
    return ""


# --- files -------------------------------------------------------------------------------------

_LEFT = 64 << 10
"""Bytes left free on a full disk: enough for the journal, too little for a checkpoint."""


def fill_disk(job: Job) -> str:
    """Fill the disk of model_dir until the trainer has failed because of that."""
    seen = len(job.lines)
    ballast = job.model_dir / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(_LEFT))
        except OSError as error:
            if error.errno != ENOSPC:
                raise
        file.truncate(file.tell() - _LEFT)
    job.wait_for_event(Sign("verdict"), seen)
    ballast.unlink()
    return ""


def lose(pattern: str) -> Strike:
    """Return a strike that deletes the files of model_dir that match `pattern`."""

    def strike(job: Job) -> str:
        for path in job.model_dir.glob(pattern):
            path.unlink(missing_ok=True)
        return ""

    return strike


def lose_attempts(job: Job) -> str:
    for path in job.model_dir.glob("*_restartable/attempts"):
        shutil.rmtree(path)
    return ""


def _kill_all(job: Job) -> None:
    job.signal(signal.SIGKILL)
    job.exit_code()
    job.wait_until_gone()


def tear_journal(job: Job) -> str:
    """Kill all, and append half a line to the journal, as a crash in the middle of a write leaves
    it."""
    _kill_all(job)
    with (job.model_dir / "journal.jsonl").open("rb+") as journal:
        line = journal.read().splitlines()[-1]
        journal.write(line[: len(line) // 2])
    return ""


def plant_uncommitted(job: Job) -> str:
    """Kill all, and plant a step above all others that lacks the files which make it a
    checkpoint."""
    _kill_all(job)
    newest, path = next(iter(committed_steps(job.checkpoints)))
    planted = job.checkpoints / str(newest + 1)
    shutil.copytree(path, planted)
    for marker in ("commit_success.txt", "_CHECKPOINT_METADATA"):
        (planted / marker).unlink(missing_ok=True)
    return f"step {newest + 1}"


def truncate_newest(job: Job) -> str:
    """Kill all, and cut the largest file of the newest checkpoint in half, as a lying disk
    would."""
    _kill_all(job)
    newest, path = next(iter(committed_steps(job.checkpoints)))
    largest = max((f for f in path.rglob("*") if f.is_file()), key=lambda f: f.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)
    job.damaged.add(identity(path))
    return f"step {newest}"


def identity(checkpoint: Path) -> tuple[int, int]:
    """Return inode and modification time: they tell this checkpoint from a later one of the same
    step."""
    status = checkpoint.stat()
    return status.st_ino, status.st_mtime_ns
