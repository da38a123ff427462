"""Files that strangers leave in a model_dir, and strikes against the processes that watch the
trainer.

What is planted here belongs to no job. `Job.foreign` records what it was. At the end `changed`
reports what has become of it: it may have been moved out of the way, but never changed or removed.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from supervisor.protocol.committed import METADATA, committed_steps
from tests.chaos.job import Job, StormError

Strike = Callable[[Job], str]

_STEP_NAMES = itertools.count(900_000)
"""Names that look like steps; the trainer never reaches these steps."""
_NESTED = b"[" * 200_000


# --- files of others ---------------------------------------------------------------------------


def plant_folders(job: Job) -> str:
    """Plant folders whose names are digits, such as data sorted by year."""
    folder = _new_step(job)
    (folder / "notes.txt").write_text("not yours\n")
    (folder / "latest").symlink_to(_outside(job))
    _plant(job, folder)
    _plant(job, _new_step(job))
    return folder.name


def plant_copy(job: Job) -> str:
    """Plant a step that somebody is still copying: its metadata is cut off, its data incomplete."""
    folder = _new_step(job)
    _, newest = next(iter(committed_steps(job.checkpoints)))
    whole = (newest / METADATA).read_bytes()
    (folder / METADATA).write_bytes(whole[: len(whole) // 2])
    (folder / "params").mkdir()
    (folder / "params" / "d").write_bytes(b"half of it")
    _plant(job, folder)
    return folder.name


def plant_in_the_way(job: Job) -> str:
    """Plant a folder with the name of one of the next saves."""
    newest, _ = next(iter(committed_steps(job.checkpoints)))
    folder = job.checkpoints / str(newest + 30)
    folder.mkdir()
    (folder / "notes.txt").write_text("in the way\n")
    _plant(job, folder)
    return f"step {folder.name}"


def plant_fifo_step(job: Job) -> str:
    """Plant a step whose metadata is a FIFO without a writer: a process that opens it waits for
    ever."""
    folder = _new_step(job)
    os.mkfifo(folder / METADATA)
    _plant(job, folder)
    return folder.name


def plant_endless_step(job: Job) -> str:
    """Plant a step whose metadata has no end."""
    folder = _new_step(job)
    (folder / METADATA).symlink_to("/dev/zero")
    _plant(job, folder)
    return folder.name


def plant_request(job: Job) -> str:
    """Plant a request that is nested so deeply that a parser runs out of stack."""
    requests = job.model_dir / "requests"
    requests.mkdir(exist_ok=True)
    (requests / "deep.clear-quarantine.json").write_bytes(_NESTED)
    return ""


def plant_owner(job: Job) -> str:
    """Plant an owner file that makes a parser run out of stack."""
    (job.model_dir / ".supervisor.json").write_bytes(_NESTED)
    return ""


def fifo_as_failure(job: Job) -> str:
    """Plant a FIFO in place of the trainer's failure record."""
    os.mkfifo(_failure_record(job))
    return ""


def endless_failure(job: Job) -> str:
    """Plant a failure record that has no end."""
    _failure_record(job).symlink_to("/dev/zero")
    return ""


def link_attempt_outside(job: Job) -> str:
    """Plant an attempt folder that is a link to somebody's folder, which has a file named like a
    log."""
    attempts = next(iter(job.model_dir.glob("*_restartable/attempts")))
    link = attempts / "0000"
    if not link.is_symlink():
        link.symlink_to(_outside(job))
    return ""


def _new_step(job: Job) -> Path:
    folder = job.checkpoints / str(next(_STEP_NAMES))
    folder.mkdir()
    return folder


def _failure_record(job: Job) -> Path:
    return max(job.model_dir.glob("*_restartable/attempts/[0-9]*")) / "rank0.failure.json"


def _outside(job: Job) -> Path:
    """Return somebody's folder on the same machine, which the job has nothing to do with."""
    folder = job.folder / "somebody"
    if not folder.exists():
        folder.mkdir()
        (folder / "rank0.log").write_text("the log of somebody\n" * 100)
        (folder / "thesis.txt").write_text("the only copy\n")
        _plant(job, folder)
    return folder


def _plant(job: Job, folder: Path) -> None:
    job.foreign.append((_identity(folder), fingerprint(folder)))


def changed(job: Job) -> Iterator[str]:
    """Yield what has happened to each foreign folder; nothing if all are as they were planted."""
    found = {_identity(path): path for path in _folders(job.folder)}
    for identity, before in job.foreign:
        if identity not in found:
            yield f"gone: {sorted(before)}"
        elif (after := fingerprint(found[identity])) != before:
            yield f"{found[identity]} was {before}, is {after}"


def fingerprint(folder: Path) -> dict[str, tuple[int, str]]:
    """Return type and permissions, and the content, of everything in `folder` by name; links are
    not followed."""
    told = {".": (folder.stat().st_mode, "")}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        content = ""
        if stat.S_ISLNK(mode):
            content = str(path.readlink())
        elif stat.S_ISREG(mode):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        told[str(path.relative_to(folder))] = (mode, content)
    return told


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def _folders(root: Path) -> Iterator[Path]:
    for folder, names, _ in os.walk(root):
        for name in names:
            if not (path := Path(folder, name)).is_symlink():
                yield path


# --- those who watch over the trainer ----------------------------------------------------------


def kill_guard(job: Job) -> str:
    """Send SIGKILL to the guard."""
    _killed(_guards(job)[:1])
    return ""


def kill_supervisor_and_guard(job: Job) -> str:
    """Kill both at once, so that neither sees the other's end."""
    supervisor = job.supervisor
    _killed([supervisor, *_guards(job)[:1]])
    return ""


def kill_all_watchers(job: Job) -> str:
    """Kill the supervisor and every process of the guard."""
    supervisor = job.supervisor
    _killed([supervisor, *_guards(job)])
    return ""


def freeze_host(seconds: float) -> Strike:
    """Return a strike that stops every process of the job for `seconds`, as on a machine that is
    paused."""

    def strike(job: Job) -> str:
        supervisor = job.supervisor
        everything = [supervisor, *supervisor.children(recursive=True)]
        for process in everything:
            process.suspend()
        time.sleep(seconds)
        for process in reversed(everything):
            process.resume()
        return f"{len(everything)} processes"

    return strike


def _killed(processes: list[psutil.Process]) -> None:
    for process in processes:
        process.send_signal(signal.SIGSTOP)  # so none of them sees another one's end
    for process in reversed(processes):  # a stopped child of a dead parent gets SIGCONT
        process.kill()


def _guards(job: Job) -> list[psutil.Process]:
    """Return the guard first, then the watcher that it started."""
    found = [
        process
        for process in job.supervisor.children(recursive=True)
        if any("supervisor.host.guard" in part for part in process.cmdline())
    ]
    if not found:
        raise StormError("there is no guard")
    return sorted(found, key=lambda process: process.ppid() != job.supervisor.pid)
