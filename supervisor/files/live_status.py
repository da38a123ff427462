"""status.json: where a job stands at this moment, in a small file for readers outside of its
process.

The journal has all that must last. This file has besides what changes with every step. Whoever
reads it must not trust it: another program may have written it, and the supervisor that wrote it
may be gone. `time` says when it was written, and it is written again after each `period`.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, NonNegativeFloat, ValidationError

from supervisor.protocol.messages import Stage
from supervisor.protocol.reading import UnreadableError, parse_object

STATUS = "status.json"
FORMAT = 1
MAX_SIZE = 1 << 16
"""Bytes; the file has a few thousand, with a long command."""
_ALWAYS = {"v", "job", "status", "exit_code", "time"}
"""Keys that every version has written."""
_SLOWEST = timedelta(seconds=15)
"""How much later than its `period` a living supervisor may write the file on a loaded machine, or a
bucket show it."""


class _Read(BaseModel):
    model_config = ConfigDict(frozen=True)


class LiveProgress(_Read):
    """How far the attempt has come when the file was written: see `narrative.pace.Progress`."""

    step: int | None = None
    loss: float | None = None
    loss_not_finite: bool = False
    """Whether that loss was NaN or Inf, which JSON has not."""
    steps_per_second: NonNegativeFloat | None = None
    eta_seconds: NonNegativeFloat | None = None
    data_wait: NonNegativeFloat | None = None
    mfu: NonNegativeFloat | None = None
    step_at: AwareDatetime | None = None


class LiveStatus(_Read):
    """The content of the file; `docs/reference/files.md` describes its keys."""

    v: int = FORMAT
    job: str
    status: str
    exit_code: int | None
    phase: str
    attempt: int
    stage: Stage | None
    num_devices: int | None
    step: int | None
    """The highest step ever committed."""
    committed_at: AwareDatetime | None
    max_steps: int | None
    saves_on_request: bool = False
    """Whether the program has told that `supervise save` can ask it."""
    command: str | None = None
    """The command that started the supervisor, without secrets; None: another program did."""
    directory: str | None = None
    """The folder in which that command was typed."""
    checkpoints: str | None = None
    """Where checkpoints of the phase are looked for; None: an earlier version has not told."""
    checkpoints_unseen: str | None = None
    """Why what the program saves in this phase does not count, and where it is; None: nothing is
    known to be saved so."""
    live: LiveProgress
    supervisor: dict[str, Any]
    """The process that wrote it: see `host.identity.Identity`."""
    period: NonNegativeFloat
    time: AwareDatetime

    def is_fresh(self, now: datetime) -> bool:
        """Whether a supervisor that lives and works could have written it last."""
        return now - self.time < timedelta(seconds=self.period) + _SLOWEST

    def encoded(self) -> bytes:
        """Returns the file's content. A number that JSON has not (NaN) becomes `null`."""
        return self.model_dump_json().encode() + b"\n"


def parse(data: bytes) -> LiveStatus:
    """Returns what the file with this content says.

    Raises:
        UnreadableError: it is not such a file, or one of an earlier version.
    """
    try:
        return LiveStatus.model_validate(parse_object(data, STATUS))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise UnreadableError(STATUS, f"has no valid {place}: {first['msg']}") from error


def is_ours(data: bytes) -> bool:
    """Whether a supervisor of any version wrote a file with this content."""
    try:
        return parse_object(data, STATUS).keys() >= _ALWAYS
    except UnreadableError:
        return False
