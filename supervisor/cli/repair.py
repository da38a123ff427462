"""`supervise repair`: makes a job usable again whose journal is damaged, was changed or is gone.

For a job in a bucket, it repairs a copy of the journal in a folder, while it holds the job's lease.
It then owns the job, and writes the repaired journal under an epoch of its own, as any new owner
does. A host that had the job sets its own copy aside at the next start.
"""

from __future__ import annotations

import signal
import sys
import uuid
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import NoReturn

from supervisor.adapters.stores.bucket import bucket
from supervisor.adapters.stores.fetch import epoch_after, read_growing
from supervisor.adapters.stores.lease import (
    Lease,
    LeaseExpiredError,
    LeaseHeldError,
    LeaseTakenError,
    LeaseTimes,
)
from supervisor.adapters.stores.lease_places import LeaseObject
from supervisor.adapters.stores.lock import LockHeldError
from supervisor.adapters.stores.storage import LocalStorage
from supervisor.cli.arguments import Commands, add_model_dir
from supervisor.cli.complaints import complain
from supervisor.cli.job_view import NoJobError, print_line, run_and_report
from supervisor.core.exit_codes import ExitCode
from supervisor.files.attempts import ATTEMPTS_FOLDER, attempt_of, is_phase_folder
from supervisor.files.segments import ARCHIVE, DAMAGED, JOURNAL, SUFFIX, TORN, Segment
from supervisor.history.archive import is_segment
from supervisor.host.outlet import say_on_stderr
from supervisor.model_dir_ownership import Exclusion, keep_supervisors_out
from supervisor.owners_on_record import JournaledOwners
from supervisor.ports import MAX_OBJECT, Objects, Storage
from supervisor.protocol.location import Uri
from supervisor.repair import highest_attempt
from supervisor.repair import repair as repair_journal

_LEASE_BOUND = 10.0
"""Time limit in seconds for a request about the lease."""
_AGAIN = "it may have written some files, but no data is lost; run the same command again"


def add_parser(commands: Commands) -> None:
    """Add the parser of the verb."""
    parser = commands.add_parser(
        "repair", help="make a job with a damaged journal usable again; nothing is deleted"
    )
    add_model_dir(parser)


def run(options: Namespace) -> int:
    """Repair the journal; returns the exit code."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _exit_on_signal)
    try:
        act = partial(repair_job, options.model_dir, options.exclusion)
        return run_and_report(act, options.model_dir)
    except (LockHeldError, LeaseHeldError, LeaseTakenError) as error:
        return complain(ExitCode.OWNED, str(error))
    except LeaseExpiredError as error:
        return complain(ExitCode.CANNOT_WRITE, f"{error}: {_AGAIN}")
    except KeyboardInterrupt:
        return complain(ExitCode.STOPPED, f"interrupted during the repair: {_AGAIN}")


def _exit_on_signal(number: int, frame: FrameType | None) -> NoReturn:
    """Handle a signal: exit. The lock or the lease is given up on the way out."""
    sys.exit(complain(ExitCode.DRAINED, f"told to stop during the repair: {_AGAIN}"))


def repair_job(place: Path | Uri, exclusion: Exclusion | None = None) -> None:
    """Repair the journal of the job in `place`, its model_dir, and print what was done.

    Raises:
        LockHeldError, LeaseHeldError: a supervisor runs there.
        LeaseTakenError, LeaseExpiredError: one may run there by now.
        JournalError, OSError: the journal cannot be repaired.
        ValueError: there is no job.
        ImportError: the bucket's library is not installed.
    """
    done = _in_bucket(place) if isinstance(place, Uri) else _in_folder(place, exclusion)
    print_line(f"repaired: {done}" if done else "nothing is damaged: nothing was done")


def _in_folder(place: Path, exclusion: Exclusion | None) -> str | None:
    """Repair a job in a folder; returns what was done, or None if nothing was damaged."""
    if not place.is_dir():
        raise NoJobError(f"{place} is no folder: give the job's model_dir")
    files = LocalStorage(place)
    if not any(name in (JOURNAL, ARCHIVE) or is_phase_folder(name) for name in files.names("")):
        raise NoJobError(f"{place} holds no job: it has no journal and no folder of a phase")
    means = exclusion or Exclusion.needed_by(place, in_bucket=False)
    record = JournaledOwners(place, None, had_lease=means.lease is not None)
    with keep_supervisors_out(place, means, say_on_stderr, record) as check:
        return repair_journal(files, datetime.now(UTC), highest_attempt(files), check)


def _in_bucket(place: Uri) -> str | None:
    """Repair a job in a bucket; returns what was done, or None if nothing was damaged."""
    objects = bucket(place)
    if not {ARCHIVE, f"{JOURNAL}{SUFFIX}"} & objects.list("").folders:
        raise NoJobError(f"{place} holds no job: there is no journal in it")
    with _leased(place, objects) as lease, TemporaryDirectory() as name:
        folder = Path(name)
        there = _copied(objects, folder)
        files = LocalStorage(folder)
        done = repair_journal(files, datetime.now(UTC), highest_attempt(files), lease.check)
        if done is not None:
            lease.check()
            _write(objects, files, there, max(lease.epoch, epoch_after(objects)))
        return done


@contextmanager
def _leased(place: Uri, objects: Objects) -> Iterator[Lease]:
    """Hold the lease of the job in `place`."""
    lease = Lease(
        LeaseObject(bucket(place, _LEASE_BOUND)),
        LeaseTimes(),
        uuid.uuid4().hex,
        on_renewed=lambda seconds: None,
        on_lost=lambda error: None,
        say=say_on_stderr,
        record=JournaledOwners(Path(), objects, had_lease=True),
    )
    lease.acquire()
    try:
        yield lease
    finally:
        lease.release()


def _copied(objects: Objects, folder: Path) -> frozenset[str]:
    """Copy to `folder` what a repair reads: the journal, its segments, and empty folders for the
    attempts. Returns the names of the segments."""
    journal = read_growing(objects, JOURNAL, say_on_stderr)
    if journal is not None:
        (folder / JOURNAL).write_bytes(journal)
    segments = frozenset(name for name in objects.list(ARCHIVE).objects if is_segment(name))
    (folder / ARCHIVE).mkdir()
    for name in segments:
        (folder / ARCHIVE / name).write_bytes(objects.read(f"{ARCHIVE}/{name}").data)
    for phase in filter(is_phase_folder, objects.list("").folders):
        (folder / phase).mkdir()
        for name in objects.list(f"{phase}/{ATTEMPTS_FOLDER}").folders:
            if attempt_of(name) is not None:
                (folder / phase / ATTEMPTS_FOLDER / name).mkdir(parents=True)
    return segments


def _write(objects: Objects, files: Storage, there: frozenset[str], epoch: int) -> None:
    """Write to the bucket the files that the repair left in `files`, but not segments that are
    `there` already. The journal comes last, because it names the others."""
    kept = [name for name in files.names("") if name.startswith((DAMAGED, TORN))]
    segments = [f"{ARCHIVE}/{name}" for name in files.names(ARCHIVE) if name not in there]
    for name in (*kept, *segments):
        objects.write(name, files.read(name, MAX_OBJECT))
    journal = files.read(JOURNAL, MAX_OBJECT)
    name = Segment(epoch, 0, len(journal)).name
    objects.write(f"{JOURNAL}{SUFFIX}/{name}", journal, expected="")
