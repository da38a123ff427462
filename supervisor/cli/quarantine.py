"""`supervise quarantine`: lists and clears the devices and hosts that a job does not use."""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from pathlib import Path

from supervisor.adapters.stores.requests import ClearQuarantine
from supervisor.cli.arguments import Commands, Parser, add_model_dir
from supervisor.cli.job_view import print_line, quarantined, run_and_report, view
from supervisor.protocol.location import Uri


def add_parser(commands: Commands) -> None:
    """Add the parser of the verb."""
    parser = commands.add_parser(
        "quarantine", help="list or clear the devices and hosts that a job does not use"
    )
    parser.instead = (
        "say what to do: `supervise quarantine list {word}` prints which devices and hosts the job "
        "does not use, `supervise quarantine clear {word}` lets it use them again"
    )
    actions = parser.add_subparsers(dest="action", required=True, parser_class=Parser)
    add_model_dir(actions.add_parser("list", help="print which, why and for how long"))
    clear = actions.add_parser("clear", help="let the job use them again")
    add_model_dir(clear)
    clear.add_argument(
        "units",
        nargs="*",
        metavar="UNIT",
        help="the id of a device or host; without any, all are cleared",
    )


def run(options: Namespace) -> int:
    """List the units in quarantine, or ask to clear them; returns the exit code."""
    if options.action == "list":
        action = partial(show_quarantine, options.model_dir)
    else:
        action = partial(clear_quarantine, options.model_dir, tuple(options.units))
    return run_and_report(action, options.model_dir)


def show_quarantine(place: Path | Uri) -> None:
    """Print the units in quarantine: which, why, and until when.

    Raises:
        JournalError, OSError, ImportError: see `view`.
    """
    job = view(place)
    state = job.history.state
    lines = list(quarantined(state, job.policy.phases[state.phase]))
    for line in lines or ["nothing is in quarantine"]:
        print_line(line)


def clear_quarantine(place: Path | Uri, units: tuple[str, ...]) -> None:
    """Ask the supervisor to take `units` out of quarantine; no units: all of them.

    Raises:
        JournalError, OSError, ImportError: see `view`; or the request cannot be written.
        ValueError: a unit is not in quarantine.
    """
    job = view(place)
    known = job.history.state.quarantine.units
    for each in units:
        if each not in known:
            there = ", ".join(sorted(known)) or "nothing"
            raise ValueError(f"{each!r} is not in quarantine; in quarantine: {there}")
    job.ask(ClearQuarantine(units))
    owner = job.owner
    who = f"the supervisor ({owner})" if owner else "the next supervisor"
    when = "within a minute" if owner else "when it starts"
    print(f"asked to clear {', '.join(units) or 'all'}: {who} will do it {when}")
