"""`supervise repair`: has a job go on whose journal is damaged or was changed."""

from __future__ import annotations

from argparse import Namespace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from supervisor.adapters.stores.journal import JournalError
from supervisor.adapters.stores.lock import DirectoryLock, LockHeldError
from supervisor.adapters.stores.storage import LocalStorage
from supervisor.cli.arguments import Commands, add_model_dir
from supervisor.cli.complaints import complain
from supervisor.cli.job_view import exit_code_of, print_line
from supervisor.core.exit_codes import ExitCode
from supervisor.protocol.location import Uri
from supervisor.repair import highest_attempt
from supervisor.repair import repair as repaired


def add_parser(commands: Commands) -> None:
    """Add the parser of the verb."""
    parser = commands.add_parser(
        "repair", help="have a job go on whose journal is damaged; nothing is deleted"
    )
    add_model_dir(parser)


def run(options: Namespace) -> int:
    """Repair the journal; returns the exit code."""
    try:
        return exit_code_of(partial(repair, options.model_dir), options.model_dir)
    except LockHeldError as error:
        return complain(ExitCode.OWNED, str(error))


def repair(place: Path | Uri) -> None:
    """Repair the journal of the job in `place`, its model_dir, and print what was done.

    Raises:
        LockHeldError: a supervisor runs there.
        JournalError, OSError: the journal cannot be repaired.
        ValueError: it is in a bucket.
    """
    if isinstance(place, Uri):
        raise ValueError(f"{place} is in a bucket: only what is in a folder can be repaired")
    if not place.is_dir():
        raise JournalError(f"{place} is no folder: give the job's model_dir")
    files = LocalStorage(place)
    lock = DirectoryLock(place)
    try:
        done = repaired(files, datetime.now(UTC), highest_attempt(files))
    finally:
        lock.release(files)
    print_line(f"repaired: {done}" if done else "nothing is damaged: nothing was done")
