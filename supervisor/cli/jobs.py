"""`supervise jobs`: lists the jobs below a folder, each with where it stands."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

from supervisor.adapters.stores.journal import JournalError
from supervisor.cli.arguments import Commands
from supervisor.cli.complaints import complain
from supervisor.cli.found_jobs import jobs_below
from supervisor.cli.job_view import JobView, NoJobError, print_line, view
from supervisor.cli.live_text import progress_text
from supervisor.cli.status import as_json
from supervisor.core.exit_codes import ExitCode
from supervisor.narrative.standing import standing_line

_DEFAULT = "runs"


def add_parser(commands: Commands) -> None:
    """Add the parser of the verb."""
    parser = commands.add_parser("jobs", help="list the jobs below a folder, and where each stands")
    parser.add_argument("--json", action="store_true", help="print a JSON list, for programs")
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path(_DEFAULT),
        metavar="DIR",
        help=f"the folder to search (default: {_DEFAULT}, where jobs without a config are)",
    )


def run(options: Namespace) -> int:
    """List the jobs; returns the exit code."""
    folder: Path = options.folder
    try:
        is_folder = folder.is_dir()
    except OSError as error:
        return complain(ExitCode.USAGE, f"{folder}: {error.strerror}: name the folder to search")
    if not is_folder:
        return complain(ExitCode.USAGE, f"{folder} is no folder: name the one to search")
    found, code = list[dict[str, Any]](), 0
    for place in sorted(jobs_below(folder)):
        try:
            job = view(place)
        except NoJobError:
            continue
        except (JournalError, OSError) as error:
            code = complain(ExitCode.CANNOT_WRITE, f"{place}: {error}")
            continue
        found.append(as_json(job, place))
        if not options.json:
            print_line(f"{place}: {_stands(job)}; supervisor: {job.owner or 'none runs here'}")
    if options.json:
        print(json.dumps(found, indent=2))
    elif not found and not code:
        print_line(f"no job is below {folder}")
    return code


def _stands(job: JobView) -> str:
    if job.live is None or not (live := progress_text(job.live)):
        return standing_line(job.standing)
    return f"{standing_line(replace(job.standing, step=None))}; {live}"
