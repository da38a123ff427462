"""What verbs that ask a running supervisor for something have in common."""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from supervisor.adapters.stores.requests import Request
from supervisor.cli.job_view import JobView, view
from supervisor.host.identity import Identity
from supervisor.narrative.standing import standing, standing_line
from supervisor.protocol.location import Uri

_PAUSE = 0.5
"""Seconds between two looks at a job on a disk."""
_PAUSE_IN_BUCKET = 10.0


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


def ask(job: JobView, kind: Callable[[str, Identity], Request]) -> None:
    """Ask the supervisor of `job`; `kind` makes the request from who asks and whom.

    Raises:
        OSError: the request cannot be written.
    """
    assert job.identity is not None
    job.ask(kind(who_asks(), job.identity))


def who_asks() -> str:
    """Returns our user and host, for people. In a container the user may have no name."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # from Python 3.13 on it is an OSError
        user = f"user {os.getuid()}"
    return f"{user} on {os.uname().nodename}"


def looks_while_it_lives(place: Path | Uri, job: JobView) -> Iterator[None]:
    """Yields every now and then while the supervisor of `job` lives."""
    while job.identity_now() == job.identity:
        yield
        time.sleep(_PAUSE if isinstance(place, Path) else _PAUSE_IN_BUCKET)


def line(job: JobView) -> str:
    """Returns the line that says how the job stands."""
    return standing_line(standing(job.history.state, job.policy))
