"""Finds the jobs below a folder, for the verbs that list them or take the one a person means."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from supervisor.adapters.stores.lock import living_owner
from supervisor.cli.job_view import NoJobError
from supervisor.files.segments import JOURNAL
from supervisor.protocol.location import Uri

_HERE = Path()
_MAX_DEPTH = 6


def jobs_below(folder: Path) -> Iterator[Path]:
    """Yields the model_dirs at and below a folder; links are not followed."""
    for path, folders, files in os.walk(folder):
        place = Path(path)
        if JOURNAL in files:
            yield place
            folders.clear()
        elif len(place.relative_to(folder).parts) >= _MAX_DEPTH:
            folders.clear()


def chosen_job(given: Path | Uri | None) -> Path | Uri:
    """Returns the model_dir that a person gave; None: the one at or below the working directory
    whose journal was written last.

    Raises:
        NoJobError: none was given, and there is none.
    """
    if given is not None:
        return given
    places = list(jobs_below(_HERE))
    if not places:
        raise NoJobError("no job is here: give the job's model_dir (`supervise jobs` lists them)")
    return max(places, key=lambda place: (place / JOURNAL).stat().st_mtime)


def only_running_job(given: Path | Uri | None) -> Path | Uri:
    """Returns the model_dir that a person gave; None: that of the only job at or below the working
    directory whose supervisor runs. Of several none is guessed: the wrong one would end.

    Raises:
        NoJobError: none was given, and none runs, or more than one.
    """
    if given is not None:
        return given
    running = [place for place in jobs_below(_HERE) if living_owner(place) is not None]
    if len(running) == 1:
        return running[0]
    what = "give the job's model_dir (`supervise jobs` lists them)"
    if running:
        which = ", ".join(map(str, sorted(running)))
        raise NoJobError(f"{len(running)} jobs run here, {which}: {what}")
    raise NoJobError(f"no job that runs is here: {what}")
