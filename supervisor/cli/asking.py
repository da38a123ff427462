"""What verbs that ask a running supervisor for something have in common."""

from __future__ import annotations

import getpass
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

from supervisor.adapters.stores.requests import Request
from supervisor.cli.complaints import complain
from supervisor.cli.found_jobs import only_running_job
from supervisor.cli.job_view import JobView, print_line, run_and_report, view
from supervisor.core.exit_codes import ExitCode
from supervisor.host.identity import Identity
from supervisor.narrative.standing import standing, standing_line
from supervisor.protocol.location import Uri

_PAUSE = 0.5
"""Seconds between two looks at a job on a disk."""
_PAUSE_IN_BUCKET = 10.0
_UNREAD = 15.0
"""Seconds after which a request on a disk should be read: the supervisor looks every 5 s."""


def ask_that_job(given: Path | Uri | None, ask_in: Callable[[Path | Uri], None]) -> int:
    """Call `ask_in` with the model_dir that a person gave; None: with that of the only job that
    runs here, see `only_running_job`. Returns the exit code."""

    def ask_chosen() -> None:
        ask_in(only_running_job(given))

    return run_and_report(ask_chosen, given if given is not None else Path())


def running_job(place: Path | Uri, what: str) -> JobView:
    """Returns the job in `place`; `what` could be done to one that runs, for people.

    Raises:
        JournalError, OSError, ImportError: see `view`.
        ValueError: no supervisor runs.
    """
    job = view(place)
    if job.owner is None:
        raise ValueError(
            f"no supervisor of {place} runs, so there is nothing to {what}: {line(job)}"
        )
    return job


def ask(job: JobView, kind: Callable[[str, Identity], Request]) -> Path | None:
    """Ask the supervisor of `job`; `kind` makes the request from who asks and whom. Returns the
    file of the request, which goes once it is read; None: it is in a bucket.

    From here on signals end our wait alone, see `only_wait`.

    Raises:
        OSError: the request cannot be written.
        ValueError: nobody knows which process the supervisor is.
    """
    if job.identity is None:
        raise ValueError(f"the owner of the job is {job.owner}, which cannot be asked")
    file = job.ask(kind(who_asks(), job.identity))
    only_wait()
    return file


def only_wait() -> None:
    """Have Ctrl-C and SIGTERM end our wait from here on, and not what was asked for."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end_wait)


def _end_wait(number: int, frame: FrameType | None) -> NoReturn:
    code = ExitCode.STOPPED if number == signal.SIGINT else ExitCode.DRAINED
    sys.exit(complain(code, "the wait is over; the request to the supervisor stays"))


def who_asks() -> str:
    """Returns our user and host, for people. In a container the user may have no name."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # from Python 3.13 on it is an OSError
        user = f"user {os.getuid()}"
    return f"{user} on {os.uname().nodename}"


def looks_while_it_lives(place: Path | Uri, job: JobView, file: Path | None) -> Iterator[None]:
    """Yields every now and then while the supervisor of `job` lives. If it does not read the
    request in `file`, that is printed once."""
    end = time.monotonic() + _UNREAD
    while job.identity_now() == job.identity:
        yield
        if file is not None and time.monotonic() > end:
            if file.exists():
                print_line(
                    f"the request is not read after {_UNREAD:.0f} s ({file}): the supervisor "
                    "hangs, may not remove it (the end of run.log says so), or its host is gone; "
                    "Ctrl-C ends this wait"
                )
                sys.stdout.flush()
            file = None
        time.sleep(_PAUSE if isinstance(place, Path) else _PAUSE_IN_BUCKET)


def line(job: JobView) -> str:
    """Returns the line that says how the job stands."""
    return standing_line(standing(job.history.state, job.policy))
