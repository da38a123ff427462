"""What is shown of a job: values, read once and shown to many."""

from __future__ import annotations

from dataclasses import dataclass, field

from supervisor.core.exit_codes import ExitCode
from supervisor.core.state import JobState
from supervisor.diagnosis.failure import Failure
from supervisor.files.live_status import LiveProgress
from supervisor.goodput.wall_time import Goodput, Ledger
from supervisor.narrative.standing import Standing
from supervisor.protocol.messages import Stage
from supervisor.web.tally import Tally

_FOR_A_PERSON = (ExitCode.FAILED, ExitCode.BUDGET_SPENT, ExitCode.INVALID_CONFIG)
"""The ends after which a person has to change something: no service manager can."""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What the files of a job say at one moment."""

    records: int
    """The number of the last record in the journal."""
    state: JobState
    standing: Standing
    goodput_ledger: Ledger | None
    """The wall time up to the last record; None: a journal of an earlier version does not say."""
    tally: Tally | None
    """None: older records cannot be read."""
    failure: Failure | None
    """The last failure; None: there was none, or it does not count any more."""
    version: str
    """The version of the last supervisor; empty: not known."""
    owner: str | None
    """The process of the supervisor, in words; None: none runs, as far as is known."""
    standstill: str
    """Why that process does nothing now, in words; empty: it runs, as far as is known."""
    told_step: int | None
    """The last completed step in the journal, which has few of them; None: it has none."""
    num_units: int
    """Hosts or devices of the full rung; 0: not known."""
    stage: Stage | None = None
    """The stage that the workers report now; None: they report none, or nobody tells it."""
    live: LiveProgress = field(default_factory=LiveProgress)
    target_step: int | None = None
    """The last step of the phase; None: not known."""
    signed_at: float | None = field(default=None, compare=False)
    """The Unix time of the supervisor's last sign of life; None: it gives none that can be seen."""

    @property
    def has_ended(self) -> bool:
        """Whether the job has ended; running the command again may continue it."""
        return self.state.exit_code is not None

    @property
    def is_supervised(self) -> bool:
        """Whether a supervisor watches over the job."""
        return self.owner is not None and not self.standstill

    @property
    def step(self) -> int | None:
        """The last completed step that is known; None: none is."""
        known = (self.live.step, self.told_step, self.standing.highest_committed)
        return next((step for step in known if step is not None), None)

    def goodput(self, now: float) -> Goodput | None:
        """Returns where the wall time went up to the Unix time `now`; None: not known."""
        if self.goodput_ledger is None:
            return None
        lives = self.owner is not None and not self.has_ended
        return self.goodput_ledger.so_far(now if lives else None)

    @property
    def needs_a_person(self) -> str:
        """Why the job cannot go on until a person acts; empty: nothing needs that."""
        if self.state.exit_code in _FOR_A_PERSON:
            return f"it ended with exit code {self.state.exit_code:d}"
        return "" if self.has_ended else self.standstill


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A job that cannot be read now."""

    why: str


@dataclass(frozen=True, slots=True)
class MadeReport:
    """The report of a job, in both forms."""

    records: int
    """The number of the last record that the journal had when it was begun."""
    page: str
    """HTML."""
    data: str
    """JSON."""


class ReportError(Exception):
    """The report of a job cannot be made; the text says why."""


Seen = JobFacts | Unreadable
"""What a look at a job finds."""
