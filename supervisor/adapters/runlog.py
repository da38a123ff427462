"""run.log, and the same lines on the console as text or as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import structlog

from supervisor.core.events import WorkerReported
from supervisor.core.policy import RestartPolicy
from supervisor.narrative import MAIN, Level, tell
from supervisor.ports import Clock, Storage, Transition
from supervisor.protocol.messages import printable

LogFormat = Literal["text", "json"]

_MAX_REPORTS = 100.0
_REPORTS_PER_SECOND = 1.0
_MAX_WAITING = 1000


class RunLog:
    """Tells every transition in the phase's run.log and to `console`."""

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        policy: RestartPolicy,
        console: Callable[[str], None],
        console_format: LogFormat = "text",
        redact: Callable[[str], str] = str,
    ) -> None:
        """`redact` takes the secrets out of a line."""
        self._storage = storage
        self._policy = policy
        self._console = console
        self._format = console_format
        self._redact = redact
        self._clock = clock
        self._allowance = _Allowance()
        self._directory: str | None = None
        self._waiting: list[str] = []
        self._broken = False
        self._json = structlog.processors.JSONRenderer()
        self._log = structlog.wrap_logger(
            _Sink(self._write),
            processors=[
                structlog.processors.add_log_level,
                lambda logger, method, event: {**event, "time": _stamp(clock)},
                lambda logger, method, event: ((), dict(event)),
            ],
        )

    def observe(self, transition: Transition) -> None:
        """See `ports.Observer`."""
        self._directory = transition.after.directory or self._directory
        reported = isinstance(transition.event, WorkerReported)
        for line in tell(transition, self._policy):
            if reported and not self._allowance.take(self._clock.now()):
                continue
            if left_out := self._allowance.left_out():
                self.say(f"{left_out} more reports of the worker are not shown", level="warning")
            self.say(line.text, source=line.source, level=line.level)

    def say(self, text: str, *, source: str = MAIN, level: Level = "info") -> None:
        """Log one line."""
        getattr(self._log, level)(printable(self._redact(text)), source=source)

    def _write(self, event: dict[str, Any]) -> None:
        """Both forms of one log event."""
        mark = "" if event["level"] == "info" else f"{event['level'].upper()}: "
        text = f"{event['time']} [{event['source']}] {mark}{event['event']}"
        self._to_file(text + "\n")
        self._console(text if self._format == "text" else str(self._json(None, "", event)))

    def _to_file(self, text: str) -> None:
        self._waiting.append(text)
        if self._directory is None:
            return
        data = "".join(self._waiting).encode("utf-8", "replace")
        try:
            self._storage.append(f"{self._directory}/run.log", data)
        except OSError as error:
            if not self._broken:
                self._console(f"run.log cannot be written: {error.strerror}")
            self._broken = True
            del self._waiting[:-_MAX_WAITING]
            return
        self._waiting.clear()
        self._broken = False


class _Allowance:
    """How much a worker may say here: some at once, little in the long run, whatever it sends."""

    def __init__(self) -> None:
        self._left = _MAX_REPORTS
        self._at = -math.inf
        self._refused = 0

    def take(self, now: float) -> bool:
        """Whether one more line may be written."""
        self._left = min(_MAX_REPORTS, self._left + (now - self._at) * _REPORTS_PER_SECOND)
        self._at = now
        if self._left < 1:
            self._refused += 1
            return False
        self._left -= 1
        return True

    def left_out(self) -> int:
        """How many lines were refused since this was asked last."""
        refused, self._refused = self._refused, 0
        return refused


class _Sink:
    """Where structlog hands over a finished log event."""

    def __init__(self, write: Callable[[dict[str, Any]], None]) -> None:
        self._write = write

    def info(self, **event: Any) -> None:
        self._write(event)

    warning = error = info


def _stamp(clock: Clock) -> str:
    return clock.wall().isoformat(sep=" ", timespec="milliseconds")
