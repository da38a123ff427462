"""`supervise repair`: has a job go on whose journal is damaged, was changed or is gone."""

from __future__ import annotations

import sys
from argparse import Namespace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from supervisor.adapters.stores.lease import LeaseExpiredError, LeaseHeldError, LeaseTakenError
from supervisor.adapters.stores.lock import LockHeldError
from supervisor.adapters.stores.storage import LocalStorage
from supervisor.cli.arguments import Commands, add_model_dir
from supervisor.cli.complaints import complain
from supervisor.cli.job_view import NoJobError, exit_code_of, print_line
from supervisor.core.exit_codes import ExitCode
from supervisor.exclusion import Exclusion, alone
from supervisor.files.attempts import is_phase_folder
from supervisor.files.segments import ARCHIVE, JOURNAL
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
        act = partial(repair, options.model_dir, options.exclusion)
        return exit_code_of(act, options.model_dir)
    except (LockHeldError, LeaseHeldError, LeaseTakenError) as error:
        return complain(ExitCode.OWNED, str(error))
    except LeaseExpiredError as error:
        return complain(ExitCode.CANNOT_WRITE, f"{error}; run the same command again")


def repair(place: Path | Uri, exclusion: Exclusion | None = None) -> None:
    """Repair the journal of the job in `place`, its model_dir, and print what was done.

    Raises:
        LockHeldError, LeaseHeldError: a supervisor runs there.
        LeaseTakenError, LeaseExpiredError: one may run there by now.
        JournalError, OSError: the journal cannot be repaired.
        ValueError: it is in a bucket, or there is no job.
    """
    if isinstance(place, Uri):
        raise ValueError(f"{place} is in a bucket: only what is in a folder can be repaired")
    if not place.is_dir():
        raise NoJobError(f"{place} is no folder: give the job's model_dir")
    files = LocalStorage(place)
    if not any(name in (JOURNAL, ARCHIVE) or is_phase_folder(name) for name in files.names("")):
        raise NoJobError(f"{place} holds no job: nothing of one is there")
    means = exclusion or Exclusion.of(place, in_bucket=False)
    with alone(place, means, lambda text: print(text, file=sys.stderr)) as check:
        done = repaired(files, datetime.now(UTC), highest_attempt(files), check)
    print_line(f"repaired: {done}" if done else "nothing is damaged: nothing was done")
