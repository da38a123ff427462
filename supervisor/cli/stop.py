"""`supervise stop`: has a running job save, and end as Ctrl-C does."""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from pathlib import Path

from supervisor.adapters.stores.requests import StopJob
from supervisor.cli.arguments import Commands, add_model_dir
from supervisor.cli.asking import (
    ask,
    ask_that_job,
    line,
    looks_while_it_lives,
    only_wait,
    running_job,
)
from supervisor.cli.job_view import print_line, view
from supervisor.core.events import StopSource
from supervisor.core.exit_codes import ExitCode
from supervisor.protocol.location import Uri


def add_parser(commands: Commands) -> None:
    """Add the parser of the verb."""
    parser = commands.add_parser(
        "stop", help="have a running job save and end, as Ctrl-C does, from anywhere"
    )
    parser.add_argument(
        "--no-wait", action="store_true", help="do not wait for the end of the supervisor"
    )
    add_model_dir(parser, optional=True, running=True)


def run(options: Namespace) -> int:
    """Ask the job to stop; returns the exit code."""
    return ask_that_job(options.model_dir, partial(stop_job, waits=not options.no_wait))


def stop_job(place: Path | Uri, *, waits: bool) -> None:
    """Ask the supervisor of the job in `place` to stop it, and wait for its end if it `waits`.
    Where it stops already, it is not asked again: that would shorten the time to save.

    Raises:
        JournalError, OSError, ImportError, ValueError: see `running_job` and `ask`.
        OSError: the supervisor is gone, and has not ended the job.
    """
    job = running_job(place, "stop")
    state, file = job.history.state, None
    drain = state.drain if state.exit_code is None else None  # else the last run was stopped
    if drain is not None and drain.source is not StopSource.PREEMPTION:
        only_wait()
        print_line(
            f"the supervisor ({job.owner}) of {place} stops already: the program may save, and it "
            "ends"
        )
    else:
        file = ask(job, StopJob)
        print_line(
            f"asked the supervisor ({job.owner}) of {place} to stop: the program may save, and it "
            f"ends with {ExitCode.STOPPED:d}"
        )
    if waits:
        for _ in looks_while_it_lives(place, job, file):
            pass
        then = view(place)
        if then.history.state.exit_code is None:
            raise OSError(f"the supervisor is gone, and the job has not ended: {line(then)}")
        print_line(line(then))
