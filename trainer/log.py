"""The log of a trainer: each event has a stable name and keys, and a line for people.

structlog makes the event; `TEXTS` renders it. A supervisor reads none of these lines: reports and
warnings reach it through its pipe (`supervisor.protocol.reporter`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Protocol

from supervisor.protocol.messages import NoticeCode
from supervisor.protocol.reporter import Reporter

_rich = sys.modules.get("rich")
sys.modules["rich"] = None  # type: ignore[assignment]  # spares the import of rich: 25 ms
try:
    from structlog import BoundLogger, wrap_logger
finally:
    del sys.modules["rich"]
    if _rich is not None:
        sys.modules["rich"] = _rich

TEXTS: Mapping[str, str] = {
    "already-complete": "nothing to do: step {step} is committed, max_steps is {max_steps}",
    "check-passed": "step {step}  the check for silent corruption passed",
    "checkpoint-committed": "step {step}  checkpoint committed",
    "checkpoint-restored": "restored step {step} from {directory}",
    "completions-broken-off": (
        "step {step}  the completions that were being rewarded are lost: the next attempt makes "
        "them again"
    ),
    "data-read": "reading the data: {tokens} tokens so far",
    "evaluated": "step {step}  validation loss {loss:.4f}",
    "evaluation-broken-off": (
        "step {step}  validation stops after {done} of {batches} batches: the next attempt goes on "
        "there"
    ),
    "evaluation-not-noted": (
        "step {step}  how far the validation is could not be noted ({error}): another attempt "
        "would begin with an earlier batch"
    ),
    "evaluation-resumed": "step {step}  validation goes on after {done} of {batches} batches",
    "failed-save-left": "step {step}  what its failed save has left is removed later: {error}",
    "mesh-chosen": (
        "{num_devices} {platform} devices: data {data} x fsdp {fsdp}, {per_device_batch} "
        "sequences a device at a time, accumulation {accumulation}"
    ),
    "phase-loaded": "fresh start with {parts} of step {step} from {directory}",
    "pretrained-loaded": "loaded the pretrained weights in {directory}",
    "program-compiled": "{program}: compiled in {seconds:.2f} s",
    "program-loaded": "{program}: loaded from {place} in {seconds:.2f} s",
    "rollout-mesh-chosen": "{text}",
    "save-interval-chosen": "{text}",
    "snapshot-restored": "resumed from the snapshot of step {step} in memory",
    "snapshots-off": "no snapshots are taken: no supervisor has memory for them",
    "started-afresh": "fresh start: no committed checkpoint in {directory}",
    "step-completed": "step {step}  loss {loss:.4f}  lr {learning_rate:.2e}",
    "step-removed": "removing {path}: {reason}",
    "storage-retried": "{what} failed ({error}): it is tried again in {seconds:.1f} s",
    "warning": "{text}",
}
"""The line for each event."""
_ALIVE_EVERY = 60.0
"""Seconds between two lines about data that are read."""
_OPTIONAL = {"steps_per_second": "  {steps_per_second:.2f} steps/s"}
"""Text that is added to the line if the event has the key."""


class _Output:
    """Writes to the present standard output: a standby's is replaced when it becomes a worker."""

    def info(self, line: str) -> None:
        """Write a complete line and flush it, so that a kill loses none."""
        print(line, flush=True)

    warning = info


def _as_line(_logger: object, _level: str, event: MutableMapping[str, Any]) -> str:
    text = TEXTS[event.pop("event")]
    return "".join((text, *(_OPTIONAL[key] for key in event if key in _OPTIONAL))).format(**event)


log: BoundLogger = wrap_logger(_Output(), processors=[_as_line], wrapper_class=BoundLogger)
"""`log.info(event, **keys)`; the events and their keys are those of `TEXTS`."""


class Warn(Protocol):
    """Warns a person by one line of text. Tools read the code, and the step if it is about one."""

    def __call__(self, text: str, code: NoticeCode, step: int | None = None, /) -> None:
        """Warn."""
        ...


@dataclass(slots=True)
class WorkerLog:
    """Writes to the log for people, and reports the same to the supervisor by `reporter`. Until
    `reporter` is set, nothing goes to a supervisor."""

    reporter: Reporter = field(default_factory=lambda: Reporter(None))
    _alive_at: float = field(default_factory=monotonic)

    def warn(self, text: str, code: NoticeCode, step: int | None = None) -> None:
        """Log a warning that a person should read; tools read `code` and `step`."""
        log.warning("warning", text=text)
        self.reporter.notice(text, code, step)

    def has_read(self, num_tokens: int) -> None:
        """Tell once a minute how many tokens of the data are read, and that the stage goes on: data
        that take longer than a stage may last are no hang."""
        if monotonic() >= self._alive_at + _ALIVE_EVERY:
            self._alive_at = monotonic()
            log.info("data-read", tokens=num_tokens)
            stage, step = self.reporter.current
            if stage is not None:
                self.reporter.stage(stage, step)

    def chose_rollout_mesh(self, text: str) -> None:
        """Log which devices make completions and do not train."""
        log.info("rollout-mesh-chosen", text=text)
        self.reporter.notice(text, NoticeCode.ROLLOUT_MESH_CHOSEN, None)

    def chose_save_interval(self, text: str, step: int) -> None:
        """Log which time between saves was chosen at `step`, and why."""
        log.info("save-interval-chosen", text=text)
        self.reporter.notice(text, NoticeCode.SAVE_INTERVAL_CHOSEN, step)

    def obtained(self, seconds: float, name: str, source: str) -> None:
        """Log that the compiled step `name` is ready: loaded from `source`, or compiled if that is
        empty."""
        if source:
            log.info("program-loaded", program=name, seconds=seconds, place=source)
        else:
            log.info("program-compiled", program=name, seconds=seconds)
        self.reporter.compiled(seconds, name, source)
