"""What `supervise doctor` looks at of the job in a model_dir: where it stands, who runs it, and
which programs it runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from supervisor.adapters.stores.journal import DamagedJournalError, JournalError
from supervisor.cli.job_view import JobView, NoJobError, view
from supervisor.doctor import disk_check
from supervisor.doctor.examination import Finding, note, ok, wrong
from supervisor.doctor.interpreter import Program, recorded_programs
from supervisor.doctor.job_check import standby
from supervisor.files.segments import JOURNAL
from supervisor.host.identity import Identity
from supervisor.narrative.standing import standing, standing_line
from supervisor.protocol.location import Uri

JOB = "job"


class ExaminedJob:
    """The job in a model_dir, once `look` has read it."""

    def __init__(self, place: Path | Uri, redact: Callable[[str], str]) -> None:
        """`place` is the model_dir."""
        self._place = place
        self._redact = redact
        self._view: JobView | None = None

    @property
    def owner(self) -> Identity | None:
        """The supervisor that runs the job on this host; None: none is known here."""
        owner = self._view.identity if self._view is not None else None
        return owner if owner is not None and owner.is_seen_from_here else None

    @property
    def programs(self) -> list[Program]:
        """The programs that the journal names."""
        config = self._view.history.config if self._view is not None else None
        return list(recorded_programs(config or ()))

    def checkpoints(self) -> Iterator[Finding]:
        """Yields what room there is where the checkpoints of the job were found."""
        state = self._view.history.state if self._view is not None else None
        if state is not None and state.checkpoints is not None:
            model_dir = self._place if isinstance(self._place, Path) else None
            yield from disk_check.checkpoints(Path(state.checkpoints), model_dir)

    def look(self) -> Iterator[Finding]:
        """Yields where the job stands, and what keeps it from going on."""
        if isinstance(self._place, Path) and not os.path.lexists(self._place / JOURNAL):
            yield ok(JOB, f"{self._place} holds no job yet")
            return
        try:
            self._view = job = view(self._place)
        except NoJobError as error:
            yield ok(JOB, str(error))
            return
        except DamagedJournalError as error:
            yield wrong(JOB, error.message_for(self._place))
            return
        except (JournalError, ImportError, ValueError) as error:
            yield wrong(JOB, f"{self._place}: {error}")
            return
        state = job.history.state.durable()
        yield ok(JOB, standing_line(standing(state, job.policy)))
        if job.owner is None and state.exit_code is None:
            text = "the last supervisor ended before the job: the end of run.log may say why"
            yield note(JOB, text, "run the same command again to go on")
        elif job.owner is None:
            yield ok(JOB, "no supervisor runs here")
        elif job.standstill:
            yield wrong(JOB, f"its supervisor ({job.owner}) does nothing: {job.standstill}")
        else:
            yield ok(JOB, f"its supervisor runs ({job.owner})")
        if (owner := self.owner) is not None and not job.standstill:
            group = state.group
            yield from standby(owner, group.live_pids if group else (), self._redact)
