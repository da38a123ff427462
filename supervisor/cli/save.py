"""`supervise save`: has a running job save a checkpoint now, and train on."""

from __future__ import annotations

import shlex
import time
from argparse import Namespace
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from supervisor.adapters.stores.requests import SaveJob
from supervisor.cli.arguments import Commands, add_model_dir
from supervisor.cli.asking import ask, ask_that_job, line, looks_while_it_lives, running_job
from supervisor.cli.job_view import JobView, print_line, view
from supervisor.core.doing import Running
from supervisor.protocol.location import Uri

_PATIENCE = 600.0
"""Seconds to wait for the commit: a step may take minutes, and so may a large checkpoint."""
_LOWER = 15.0
"""Seconds to wait for another commit after one of a lower step than was reported."""


def add_parser(commands: Commands) -> None:
    """Add the parser of the verb."""
    parser = commands.add_parser(
        "save",
        help="have a running job save a checkpoint now, and train on",
        description="The program saves at its next step boundary, and nothing else changes. It has "
        "to listen: our trainer does, and a program that calls `supervise_worker.should_save()`.",
    )
    parser.add_argument(
        "--no-wait", action="store_true", help="do not wait until the checkpoint is committed"
    )
    add_model_dir(parser, optional=True, running=True)


def run(options: Namespace) -> int:
    """Ask for a checkpoint; returns the exit code."""
    return ask_that_job(options.model_dir, partial(save_job, waits=not options.no_wait))


def save_job(place: Path | Uri, *, waits: bool) -> None:
    """Ask the program of the job in `place` for a checkpoint; `waits`: until that is committed.

    Raises:
        JournalError, OSError, ImportError: see `running_job` and `ask`.
        OSError: the attempt ended before it saved, or its supervisor.
        TimeoutError: nothing was committed for long.
        ValueError: no attempt runs, or its program cannot be asked.
    """
    job = running_job(place, "save")
    state = job.history.state
    if not isinstance(state.doing, Running) or state.drain:
        raise ValueError(f"no attempt trains now, so there is nothing to save: {line(job)}")
    if job.live is None:
        raise ValueError(
            f"{place} has no status.json of this moment, so it is not known whether the program "
            "listens, and nothing was asked: try again in a moment, or see the end of run.log"
        )
    if not job.live.saves_on_request:
        raise ValueError(_cannot_be_asked(place))
    file = ask(job, SaveJob)
    print_line(
        f"asked the supervisor ({job.owner}) for a checkpoint; attempt {state.attempt} goes on"
    )
    if waits:
        print_line(_commit(place, job, file))


def _commit(place: Path | Uri, job: JobView, file: Path | None) -> str:
    """Waits for the checkpoint that `file` requests; returns a line about it."""
    assert job.live is not None
    before, attempt, reported = (
        job.history.state.newest,
        job.history.state.attempt,
        job.live.live.step,
    )
    awaited = _Awaited(before, max((n for n in (reported, before) if n is not None), default=0))
    end = time.monotonic() + _PATIENCE
    for _ in looks_while_it_lives(place, job, file):
        state = view(place).history.state
        if awaited.is_over(state.newest, time.monotonic()):
            return awaited.told(state.newest)
        if state.attempt != attempt or state.exit_code is not None:
            break
        if time.monotonic() > end:
            raise TimeoutError(
                f"no checkpoint was committed within {_PATIENCE / 60:.0f} min; the job goes on: "
                f"{line(view(place))}"
            )
    last = view(place)
    if awaited.is_over(last.history.state.newest, time.monotonic()):
        return awaited.told(last.history.state.newest)
    who = "attempt" if job.identity_now() == job.identity else "supervisor"
    raise OSError(f"the {who} ended before the checkpoint was committed: {line(last)}")


@dataclass(slots=True)
class _Awaited:
    """The commit that is waited for.

    One of a step below `least` may be a save that began before the request, so another commit is
    waited for. It may also be the one that was asked for: a program may number its checkpoints by
    epochs and report steps. So that wait is short.
    """

    before: int | None
    """The newest committed step at the request; None: there was none."""
    least: int
    """The step that the program had completed then, as it reported."""
    lower: int | None = None
    """The first step below `least` that was committed after the request."""
    since: float = 0.0

    def is_over(self, newest: int | None, now: float) -> bool:
        """Whether `newest`, the newest committed step, is the one that was asked for."""
        if newest is None or newest == self.before:
            return False
        if self.lower is None:
            self.lower, self.since = newest, now
        return newest >= self.least or newest != self.lower or now - self.since > _LOWER

    def told(self, step: int | None) -> str:
        """Returns a line about the commit of `step`."""
        text = f"checkpoint of step {step} is committed"
        if step is not None and step < self.least:
            text += (
                f"; the program had reported step {self.least} before: it numbers its checkpoints "
                "in another way, or this save began before it was asked"
            )
        return text


def _cannot_be_asked(place: Path | Uri) -> str:
    again = f"supervise restart {shlex.quote(str(place))}"
    return (
        "the program of this job has not said that it listens to such requests, so nothing was "
        "asked. Our trainer listens once it trains (then try again), and so does a program that "
        "calls supervise_worker.should_save(). One that saves on SIGTERM is made to save by "
        f"`{again}`, which then goes on in a fresh attempt"
    )
