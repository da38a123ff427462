"""run.log, and the same lines on the console as text or as JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import structlog

from supervisor.core.policy import RestartPolicy
from supervisor.narrative import MAIN, Level, tell
from supervisor.ports import Clock, Storage, Transition
from supervisor.protocol.messages import printable

LogFormat = Literal["text", "json"]


class RunLog:
    """Tells every transition in the phase's run.log and to `console`."""

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        policy: RestartPolicy,
        console: Callable[[str], None],
        console_format: LogFormat = "text",
    ) -> None:
        self._storage = storage
        self._policy = policy
        self._console = console
        self._format = console_format
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
        for line in tell(transition, self._policy):
            self.say(line.text, source=line.source, level=line.level)

    def say(self, text: str, *, source: str = MAIN, level: Level = "info") -> None:
        """Log one line."""
        getattr(self._log, level)(printable(text), source=source)

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
            del self._waiting[:-1000]
            return
        self._waiting.clear()
        self._broken = False


class _Sink:
    """Where structlog hands over a finished log event."""

    def __init__(self, write: Callable[[dict[str, Any]], None]) -> None:
        self._write = write

    def info(self, **event: Any) -> None:
        self._write(event)

    warning = error = info


def _stamp(clock: Clock) -> str:
    return clock.wall().isoformat(sep=" ", timespec="milliseconds")
