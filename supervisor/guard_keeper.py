"""Tells the guard process of this supervisor what to contain, and kills what an earlier supervisor
left behind."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from supervisor.adapters.processes.guard_client import GuardClient
from supervisor.adapters.processes.leftovers import (
    UntrustedRecordError,
    environment_names_run,
    kill_leftovers,
    possible_leftovers,
    processes_naming_job,
    read_record,
)
from supervisor.adapters.stores.journal import DamagedJournalError
from supervisor.files.segments import JOURNAL
from supervisor.host import cgroups
from supervisor.host.identity import Identity
from supervisor.host.notice import Notice
from supervisor.host.process_record import (
    NAME,
    ProcessRecord,
    Recorded,
    RecordOrigin,
    cgroup_name,
    folder,
    is_job,
)
from supervisor.model_dir_ownership import ModelDirError
from supervisor.ports import Storage
from supervisor.protocol import reading, removal
from supervisor.protocol.messages import printable


def sweep_leftovers(model_dir: Path, job: str) -> list[Notice]:
    """Kill the processes that an earlier supervisor of this model_dir left behind; returns what a
    person should know.

    `job` is the job's id from the journal; empty if there was no journal.

    Raises:
        DamagedJournalError: `job` is not an id that we made.
        UnkillableError: a process does not die.
    """
    if job and not is_job(job):
        raise DamagedJournalError(
            f"{JOURNAL} names the job {printable(job)!r}, which is not a job id of supervise (12 "
            "characters of 0-9 and a-f)",
            "restore the file from a copy, or move it away to begin a new job",
        )
    told: list[Notice] = []
    try:
        found = read_record(model_dir)
    except (UntrustedRecordError, OSError) as error:
        text = f"nothing that an earlier supervisor left behind can be killed: {error}"
        told.append(Notice("leftovers-unknown", text, reason=str(error)))
        told += _set_aside_foreign_record(model_dir / NAME)
        found = None
    if found is not None and (killed := kill_leftovers(found)):
        pids = ", ".join(str(pid) for pid in killed)
        text = f"killed what an earlier supervisor left behind: pid {pids}"
        told.append(Notice("leftovers-killed", text, pids=list(killed)))
    if found is not None and (left := possible_leftovers(found)):
        pids = ", ".join(str(pid) for pid in left)
        text = (
            f"not killed: pid {pids}; only its session number is on record, and another process "
            "may have that number by now; kill it yourself if it is a trainer"
        )
        told.append(Notice("leftovers-left", text, pids=list(left), reason="session"))
    if job and (said := processes_naming_job(job, model_dir)):
        pids = ", ".join(str(pid) for pid in said)
        text = (
            f"not killed: pid {pids}; only its environment says that it belongs to this job, and "
            "a copy of model_dir has the same job; kill it yourself if it is a trainer of this "
            "model_dir"
        )
        told.append(Notice("leftovers-left", text, pids=list(said), reason="environment"))
    return told


def _set_aside_foreign_record(path: Path) -> list[Notice]:
    """If `path` is not a process record of ours, rename it so that it is not overwritten; returns
    what a person should know."""
    try:
        is_foreign = is_foreign_record(path)
    except OSError:  # there is no such file, or it cannot be read now
        return []
    if not is_foreign:
        return []
    moved = removal.rename_foreign(path)
    text = f"{path} was not ours, or damaged: renamed to {moved.name}"
    return [Notice("file-set-aside", text, place=str(path))]


def is_foreign_record(path: Path) -> bool:
    """Whether `path` is not a process record of ours, or a damaged one.

    Raises:
        OSError: there is no such file, or it cannot be read now.
    """
    try:
        Recorded.from_bytes(reading.read(path))
    except (reading.UnreadableError, ValueError, PermissionError):
        return True
    return False


def record_and_contain(
    guard: GuardClient, storage: Storage, model_dir: Path, job: str, instance: str
) -> None:
    """From now on, put each started process on record, and in a cgroup if we can make one here.

    Raises:
        ModelDirError: model_dir cannot be written.
    """
    cgroup = cgroups.made(cgroup_name(job, instance))
    try:
        origin = RecordOrigin(job, instance, Identity.of_this_process(), folder(model_dir), cgroup)
        record = ProcessRecord(
            model_dir / NAME,
            origin,
            partial(storage.replace, NAME),
            partial(environment_names_run, origin.run),
        )
    except OSError as error:
        raise ModelDirError(f"{NAME} cannot be written: {error.strerror}") from error
    guard.contain(record, cgroup)
