"""What the parts of a running supervisor share: the job as it was prepared, and the means to wait,
to start processes, to tell people, and to end what was begun."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from supervisor.adapters.kernel.reactor import Reactor
from supervisor.adapters.processes.guard_client import GuardClient
from supervisor.adapters.telling.runlog import LogFormat
from supervisor.core.events import Noticed
from supervisor.diagnosis.redaction import Redactor
from supervisor.host.notice import Notice
from supervisor.host.outlet import say_on_stderr
from supervisor.model_dir_ownership import Exclusion
from supervisor.ports import Clock
from supervisor.prepare import Prepared


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a person wants a job to be run, besides its config."""

    log_format: LogFormat
    exclusion: Exclusion | None = None
    """None: what model_dir needs (`Exclusion.needed_by`)."""
    once: bool = False
    """Do nothing if the job has succeeded already, even if only its exit code says so."""
    alive_file: Path | None = None
    """See `AliveFile`."""
    http: str | None = None
    """The address at which the job is shown while it runs; None: it is not."""


@dataclass(frozen=True, slots=True)
class Supervision:
    """One run of a job, from the start of its supervisor to the end."""

    prepared: Prepared
    options: RunOptions
    instance: str
    """Unique to this run: the token of its ownership of model_dir, and a part of its lineage."""
    clock: Clock
    reactor: Reactor
    guard: GuardClient
    redactor: Redactor
    """Knows the secrets of the config and of our environment."""
    stack: ExitStack
    """What ends with the run; what was entered last ends first."""

    def notice(self, told: Notice, routine: bool = False) -> None:
        """Tell people, once the main loop runs; `routine`: it is normal. Safe in any thread."""
        self.reactor.post(Noticed(self.clock.now(), told, routine))

    def complain(self, text: str) -> None:
        """Write a line to standard error, when there is no run.log or no time for it."""
        say_on_stderr(f"supervise: {self.redactor.text(text)}")
