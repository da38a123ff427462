"""The last failures of a job's phase, from the records that the journal keeps of its attempts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from supervisor.cli.job_view import JobView
from supervisor.core.decisions import FinishJob
from supervisor.core.events import LaunchFailed, PhaseBegun, SupervisorStarted, WorkersGone
from supervisor.files.attempts import attempt_folder
from supervisor.narrative.attempt_records import SUMMARY, AttemptRecords
from supervisor.narrative.rendered import render_history
from supervisor.ports import Transition
from supervisor.protocol.location import Uri

_SHOWN = 3
"""How many failures are shown: enough to see whether they are alike."""
_KEPT = 100
_TOLD = (SupervisorStarted, PhaseBegun, WorkersGone, LaunchFailed)
"""Events from which the records follow, as far as they are needed here."""


@dataclass(frozen=True, slots=True)
class PastFailure:
    """How an attempt failed."""

    attempt: int
    ended: str
    """When it ended, as text with a time zone."""
    failure: dict[str, Any]
    """The failure with all its fields: see `failure_text.record`."""
    directory: str | None
    """The folder of the phase."""

    def log(self, place: Path | Uri) -> str | None:
        """Returns the path of what the rank has printed that the failure was judged by; None: it is
        not known, or not there any more."""
        if self.directory is None:
            return None
        return log_in(place, self.directory, self.attempt, self.failure.get("rank"))


def past_failures(job: JobView) -> list[PastFailure]:
    """Returns the last failures of the phase, the newest first."""
    records, snapshot = AttemptRecords(_KEPT), job.history.snapshot
    policy = job.policy
    if snapshot is not None:
        records.restore(snapshot.views.get(SUMMARY))
        policy = snapshot.policy or policy
    for told in render_history(filter(_matters, job.history.transitions), policy):
        for line in told.lines:
            records.take(line, told.wall.isoformat(timespec="seconds"), None)
    return list(islice(_failures(records), _SHOWN))


def _matters(transition: Transition) -> bool:
    ends = any(isinstance(each, FinishJob) for each in transition.decisions)
    return ends or isinstance(transition.event, _TOLD)


def _failures(records: AttemptRecords) -> Iterator[PastFailure]:
    for each in reversed(records.attempts):
        if isinstance(failure := each.get("failure"), dict):
            ended = str(each.get("ended", ""))
            yield PastFailure(each["attempt"], ended, failure, records.directory)


def log_in(place: Path | Uri, directory: str, attempt: int, rank: object) -> str | None:
    """Returns the path of the output of a rank; None: it is not there any more."""
    log = f"{directory}/{attempt_folder(attempt)}/rank{rank}.log"
    if isinstance(place, Path):
        return str(place / log) if (place / log).exists() else None
    return f"{place}/{log}"
