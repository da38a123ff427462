"""`supervise restart`: has a running job save, and go on in a fresh attempt, uncharged."""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from pathlib import Path

from supervisor.adapters.stores.requests import RestartJob
from supervisor.cli.arguments import Commands, add_model_dir
from supervisor.cli.asking import ask, ask_that_job, line, looks_while_it_lives, running_job
from supervisor.cli.job_view import print_line, view
from supervisor.core.doing import BackingOff, Launching, Running, Waiting
from supervisor.core.state import JobState
from supervisor.protocol.location import Uri


def add_parser(commands: Commands) -> None:
    """Add the parser of the verb."""
    parser = commands.add_parser(
        "restart",
        help="have a running job save and go on in a fresh attempt, which is not charged",
        description="The running attempt saves as for `supervise stop`, and the next one starts at "
        "once. If the job waits for its next attempt, or for devices, that wait is over. The "
        "supervisor keeps its config: for a changed one, stop the job and run it again.",
    )
    parser.add_argument(
        "--no-wait", action="store_true", help="do not wait for the fresh attempt to run"
    )
    add_model_dir(parser, optional=True, running=True)


def run(options: Namespace) -> int:
    """Ask for a fresh attempt; returns the exit code."""
    return ask_that_job(options.model_dir, partial(restart_job, waits=not options.no_wait))


def restart_job(place: Path | Uri, *, waits: bool) -> None:
    """Ask the supervisor of the job in `place` for a fresh attempt; `waits`: until that runs.

    Raises:
        JournalError, OSError, ImportError: see `running_job` and `ask`.
        OSError: the supervisor is gone, and no fresh attempt has run.
        ValueError: no supervisor runs, or an attempt starts or ends already.
    """
    job = running_job(place, "restart")
    attempt, doing = job.history.state.attempt, job.history.state.doing
    if not isinstance(doing, Running | BackingOff | Waiting) or job.history.state.drain:
        raise ValueError(f"an attempt starts or ends already: {line(job)}")
    file = ask(job, RestartJob)
    is_up = isinstance(doing, Running)
    then = f"attempt {attempt} saves, and a fresh one starts" if is_up else "it waits no longer"
    print_line(f"asked the supervisor ({job.owner}) to restart: {then}; nothing is charged")
    if not waits:
        return
    for _ in looks_while_it_lives(place, job, file):
        if _has_run(view(place).history.state, attempt):
            break
    now = view(place)
    if not _has_run(now.history.state, attempt):
        raise OSError(f"the supervisor is gone, and no fresh attempt has run: {line(now)}")
    print_line(line(now))


def _has_run(state: JobState, before: int) -> bool:
    """Whether an attempt after `before` runs, or has ended already: that may take no time."""
    return state.attempt > before and not isinstance(state.doing, Launching)
