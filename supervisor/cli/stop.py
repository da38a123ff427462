"""`supervise stop`: has a running job save, and end as Ctrl-C does."""

from __future__ import annotations

import getpass
import os
import time
from argparse import Namespace
from functools import partial
from pathlib import Path

from supervisor.adapters.stores.requests import StopJob
from supervisor.cli.arguments import Commands, add_model_dir
from supervisor.cli.job_view import print_line, run_and_report, view
from supervisor.core.exit_codes import ExitCode
from supervisor.narrative.standing import standing, standing_line
from supervisor.protocol.location import Uri

_PAUSE = 0.5
"""Seconds between two looks at a job on a disk, while it stops."""
_PAUSE_IN_BUCKET = 10.0


def add_parser(commands: Commands) -> None:
    """Add the parser of the verb."""
    parser = commands.add_parser(
        "stop", help="have a running job save and end, as Ctrl-C does, from anywhere"
    )
    parser.add_argument(
        "--no-wait", action="store_true", help="do not wait for the end of the supervisor"
    )
    add_model_dir(parser)


def run(options: Namespace) -> int:
    """Ask the job to stop; returns the exit code."""
    stop = partial(stop_job, options.model_dir, waits=not options.no_wait)
    return run_and_report(stop, options.model_dir)


def stop_job(place: Path | Uri, *, waits: bool) -> None:
    """Ask the supervisor of the job in `place` to stop it, and wait for its end if it `waits`.

    Raises:
        JournalError, OSError, ImportError: see `view`; or the request cannot be written.
        ValueError: no supervisor runs.
    """
    job = view(place)
    if job.owner is None or job.identity is None:
        stands = standing_line(standing(job.history.state, job.policy))
        raise ValueError(f"no supervisor of {place} runs, so there is nothing to stop: {stands}")
    job.ask(StopJob(f"{getpass.getuser()} on {os.uname().nodename}", job.identity))
    print_line(
        f"asked the supervisor ({job.owner}) to stop: it saves, and ends with {ExitCode.STOPPED:d}"
    )
    if not waits:
        return
    while job.identity_now() == job.identity:
        time.sleep(_PAUSE if isinstance(place, Path) else _PAUSE_IN_BUCKET)
    now = view(place)
    print_line(standing_line(standing(now.history.state, now.policy)))
