"""What a trainer tells: each event has a stable name and keys, and people read it as a line.

structlog makes the event; `TEXTS` renders it. A supervisor reads none of these lines: what it needs
comes by its pipe (`supervisor.protocol.reporter`), and so do the warnings.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from supervisor.protocol.messages import NoticeCode
from supervisor.protocol.reporter import Reporter

_rich = sys.modules.get("rich")
sys.modules["rich"] = None  # type: ignore[assignment]  # structlog's console: 25 ms of a restart
try:
    from structlog import BoundLogger, wrap_logger
finally:
    del sys.modules["rich"]
    if _rich is not None:
        sys.modules["rich"] = _rich

TEXTS: Mapping[str, str] = {
    "already-complete": "nothing to do: step {step} is committed, max_steps is {max_steps}",
    "checkpoint-committed": "step {step}  checkpoint committed",
    "checkpoint-restored": "restored step {step} from {directory}",
    "evaluated": "step {step}  validation loss {loss:.4f}",
    "mesh-chosen": (
        "{num_devices} {platform} devices: data {data} x fsdp {fsdp}, {per_device_batch} "
        "sequences a device at a time, accumulation {accumulation}"
    ),
    "phase-loaded": "fresh start with {parts} of step {step} from {directory}",
    "program-compiled": "{program}: compiled in {seconds:.2f} s",
    "program-loaded": "{program}: loaded from {place} in {seconds:.2f} s",
    "snapshot-restored": "resumed from the snapshot of step {step} in memory",
    "snapshots-off": "no snapshots are taken: no supervisor has memory for them",
    "started-afresh": "fresh start: no committed checkpoint in {directory}",
    "step-completed": "step {step}  loss {loss:.4f}  lr {learning_rate:.2e}",
    "step-removed": "removing {path}: {reason}",
    "warning": "{text}",
}
"""Every event, and the line for it."""
_OPTIONAL = {"steps_per_second": "  {steps_per_second:.2f} steps/s"}
"""What a key adds to the line where the event has it."""


class _Output:
    """Our standard output, whichever it is at the time: a standby's is replaced."""

    def info(self, line: str) -> None:
        """Write a line that is complete at once, so that a kill loses none."""
        print(line, flush=True)

    warning = info


def _as_line(_logger: object, _level: str, event: MutableMapping[str, Any]) -> str:
    text = TEXTS[event.pop("event")]
    return "".join((text, *(_OPTIONAL[key] for key in event if key in _OPTIONAL))).format(**event)


log: BoundLogger = wrap_logger(_Output(), processors=[_as_line], wrapper_class=BoundLogger)
"""`log.info(event, **keys)`: the names and their keys are those of `TEXTS`."""


@dataclass(slots=True)
class WorkerLog:
    """Tells people in the output what `reporter` tells a supervisor; it is silent until set."""

    reporter: Reporter = field(default_factory=lambda: Reporter(None))

    def warn(self, text: str, code: NoticeCode | None = None, step: int | None = None) -> None:
        """Tell one line that a person should read; tools read `code` and `step`."""
        log.warning("warning", text=text)
        self.reporter.notice(text, code or "", step)

    def obtained(self, seconds: float, name: str, source: str) -> None:
        """Tell that a compiled step is there: loaded from `source`, or else compiled."""
        if source:
            log.info("program-loaded", program=name, seconds=seconds, place=source)
        else:
            log.info("program-compiled", program=name, seconds=seconds)
        self.reporter.compiled(seconds, name, source)
