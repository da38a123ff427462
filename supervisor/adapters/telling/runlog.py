"""The event log: each event goes to run.log and to the console, as text or as JSON.

structlog's chain of processors makes one dictionary of each event; run.log, the lines on the
console and those of `--log-format json` are renderings of it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from supervisor.core.allowance import Allowance
from supervisor.core.events import WorkerReported, WorkersGone
from supervisor.files.segments import RUN_LOG
from supervisor.host.notice import Notice
from supervisor.narrative import Level, Line, noticed
from supervisor.narrative.structured import (
    BoundLogger,
    EventDict,
    JSONRenderer,
    add_log_level,
    wrap_logger,
)
from supervisor.narrative.told import Told
from supervisor.ports import Clock, Storage
from supervisor.protocol.messages import Message, StageMessage, printable

LogFormat = Literal["text", "json"]
Console = Callable[[str, Level], None]
"""Shows a line."""

_FIRST = ("time", "level", "source", "event", "text")
"""The keys that each event has, in this order; others follow."""
_OURS = frozenset(_FIRST) - {"text"}
"""Of these, none holds what somebody else said."""
_TELL_LEFT_OUT = 60.0
_MAX_WAITING = 1000
_AS_JSON = JSONRenderer()


class RunLog:
    """Writes what is told in the phase's run.log and to `console`."""

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        console: Console,
        console_format: LogFormat = "text",
        redact: Callable[[str], str] = str,
        has_shown: Callable[[Sequence[str]], bool] = lambda lines: False,
    ) -> None:
        """`redact` takes the secrets out of a line. What rank 0's output `has_shown` on the console
        is not repeated there."""
        self._storage = storage
        self._console = console
        self._format = console_format
        self._redact = redact
        self._has_shown = has_shown
        self._clock = clock
        self._logger: BoundLogger = wrap_logger(
            _Sink(self._write),
            processors=[add_log_level, self._stamped, self._cleaned, _as_arguments],
            wrapper_class=BoundLogger,
        )
        self._reports = _Reports()
        self._directory: str | None = None
        self._waiting: list[str] = []
        self._broken = False

    def observe(self, told: Told) -> None:
        """See `observers.Rendering`."""
        self._directory = told.after.directory or self._directory
        event, lines, now = told.event, told.lines, self._clock.now()
        quoted = [line.quotes for line in lines if line.quotes is not None]
        repeats = bool(quoted) and self._has_shown(quoted)
        for line in lines:
            if isinstance(event, WorkerReported) and not self._reports.take(event.message, now):
                continue
            self._log(line, silent=repeats and line.quotes is not None)
        if left_out := self._reports.left_out(now, over=isinstance(event, WorkersGone)):
            text = f"{left_out} more reports of the worker were not shown"
            self.say(Notice("reports-left-out", text, number=left_out), level="warning")
        if told.after.attempt != told.before.attempt:
            self._reports = _Reports()

    def say(self, notice: Notice, *, level: Level = "info") -> None:
        """Log one event of the job."""
        self._log(noticed(notice, level))

    def _log(self, line: Line, *, silent: bool = False) -> None:
        """Log one event; if `silent`, not on the console."""
        log = getattr(self._logger, line.level)
        log(line.event, source=line.source, text=line.text, _silent=silent, **line.keys)

    def _stamped(self, _: Any, __: str, fields: EventDict) -> EventDict:
        fields["time"] = self._clock.wall().isoformat(sep=" ", timespec="milliseconds")
        return {key: fields.pop(key) for key in _FIRST} | dict(fields)

    def _cleaned(self, _: Any, __: str, fields: EventDict) -> EventDict:
        return {
            key: value if key in _OURS else _clean(value, self._redact)
            for key, value in fields.items()
        }

    def _write(self, fields: Mapping[str, Any], *, silent: bool) -> None:
        line, level = _as_text(fields), fields["level"]
        if not silent:
            self._console(line if self._format == "text" else as_json(fields), level)
        self._waiting.append(line + "\n")
        self._write_what_waits()

    def _write_what_waits(self) -> None:
        """Write what waits, if that can be done; a full disk is tried again with the next line."""
        if self._directory is None:
            return
        data = "".join(self._waiting).encode("utf-8", "replace")
        try:
            self._storage.append(f"{self._directory}/{RUN_LOG}", data)
        except OSError as error:
            del self._waiting[:-_MAX_WAITING]
            if not self._broken:
                self._broken = True
                why = error.strerror or str(error)
                text = f"{RUN_LOG} cannot be written: {why}"
                self.say(Notice("run-log-unwritable", text, reason=why), level="warning")
            return
        self._waiting.clear()
        self._broken = False


class _Sink:
    """What structlog writes to: one method a level, as loggers have it."""

    def __init__(self, write: Callable[..., None]) -> None:
        self.info = self.warning = self.error = write


def _as_arguments(_: Any, __: str, fields: EventDict) -> tuple[tuple[EventDict], dict[str, bool]]:
    silent = bool(fields.pop("_silent"))
    return (fields,), {"silent": silent}


def _as_text(fields: Mapping[str, Any]) -> str:
    mark = "" if fields["level"] == "info" else f"{fields['level'].upper()}: "
    return f"{fields['time']} [{fields['source']}] {mark}{fields['text']}"


def as_json(fields: Mapping[str, Any]) -> str:
    """An event as one line of JSON, in ASCII."""
    return str(_AS_JSON(None, "", dict(fields)))


def _clean(value: Any, redact: Callable[[str], str]) -> Any:
    """`value` without secrets and control characters, of what JSON knows."""
    match value:
        case str():
            return printable(redact(value))
        case float() if not math.isfinite(value):
            return str(value)  # JSON knows no such number
        case float():
            return round(value, 4)
        case Mapping():
            return {str(key): _clean(each, redact) for key, each in value.items()}
        case list() | tuple():
            return [_clean(each, redact) for each in value]
        case _:
            return value


class _Reports:
    """How much the workers of an attempt may say here: of each kind of report, and of each stage,
    some at once and little in the long run, so that no flood hides what is rare."""

    def __init__(self) -> None:
        self._kinds: defaultdict[object, Allowance] = defaultdict(Allowance)
        self._refused = 0
        self._told = -math.inf

    def take(self, message: Message, now: float) -> bool:
        """Whether a line about `message` may be written."""
        kind = (type(message), message.stage if isinstance(message, StageMessage) else None)
        allowed, self._kinds[kind] = self._kinds[kind].take(now)
        self._refused += not allowed
        return allowed

    def left_out(self, now: float, *, over: bool) -> int:
        """How many lines were refused, where it is time to tell: now and then, and when all is
        `over`."""
        if not over and now < self._told + _TELL_LEFT_OUT:
            return 0
        refused, self._refused = self._refused, 0
        self._told = now if refused else self._told
        return refused
