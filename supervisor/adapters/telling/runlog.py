"""The event log: writes each event to run.log and to the console, as text or as JSON.

structlog's chain of processors makes one dictionary of each event. The lines in run.log, the lines
on the console and those of `--log-format json` are rendered from this dictionary.
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
from supervisor.narrative import Level, Line, notice_line
from supervisor.narrative.rendered import RenderedTransition
from supervisor.narrative.structured import (
    BoundLogger,
    EventDict,
    JSONRenderer,
    add_log_level,
    wrap_logger,
)
from supervisor.ports import Clock, Storage
from supervisor.protocol.messages import Message, StageMessage, printable

LogFormat = Literal["text", "json"]
ShowLine = Callable[[str, Level], None]
"""Shows a line of the given level to people."""

_FIRST = ("time", "level", "source", "event", "text")
"""The keys that each event has, in this order. The others follow them."""
_TRUSTED_KEYS = frozenset(_FIRST) - {"text"}
"""Those of them whose values are always our own words, so they are neither redacted nor cleaned."""
_TELL_LEFT_OUT = 60.0
"""Seconds between two lines about reports that were not shown."""
_MAX_WAITING = 1000
"""Lines kept while run.log cannot be written: the newest."""
_AS_JSON = JSONRenderer()


class RunLog:
    """Writes each event to run.log of the phase, and to `console`."""

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        console: ShowLine,
        console_format: LogFormat = "text",
        redact: Callable[[str], str] = str,
        has_shown: Callable[[Sequence[str]], bool] = lambda lines: False,
    ) -> None:
        """`redact` removes the secrets from a text. `has_shown` says whether rank 0's output on the
        console contains these lines: then they are not repeated there."""
        self._storage = storage
        self._console = console
        self._format = console_format
        self._redact = redact
        self._has_shown = has_shown
        self._clock = clock
        self._logger: BoundLogger = wrap_logger(
            _StructlogTarget(self._write),
            processors=[add_log_level, self._stamped, self._cleaned, _as_arguments],
            wrapper_class=BoundLogger,
        )
        self._report_limits = _ReportLimits()
        self._directory: str | None = None
        self._waiting: list[str] = []
        self._after_start: list[Line] = []
        """Lines that wait for the one that a supervisor has started."""
        self._broken = False

    def observe(self, told: RenderedTransition) -> None:
        """See `observers.LineObserver`."""
        self._directory = told.after.directory or self._directory
        event, lines, now = told.event, told.lines, self._clock.now()
        quoted = [line.quotes for line in lines if line.quotes is not None]
        repeats = bool(quoted) and self._has_shown(quoted)
        for line in lines:
            if isinstance(event, WorkerReported) and not self._report_limits.take(
                event.message, now
            ):
                continue
            self._log(line, silent=repeats and line.quotes is not None)
            if line.event == "supervisor-started":
                self.say_what_waits()
        if left_out := self._report_limits.left_out(now, over=isinstance(event, WorkersGone)):
            text = f"{left_out} more reports of the worker were not shown"
            self.say(Notice("reports-left-out", text, number=left_out), level="warning")
        if told.after.attempt != told.before.attempt:
            self._report_limits = _ReportLimits()

    def say(self, notice: Notice, *, level: Level = "info") -> None:
        """Log one event of the job."""
        self._log(notice_line(notice, level))

    def say_after_start(self, notice: Notice, *, level: Level = "info") -> None:
        """Log one event of the job once the log says that the supervisor has started."""
        self._after_start.append(notice_line(notice, level))

    def say_what_waits(self) -> None:
        """Log now what waits for the start of the supervisor."""
        waiting, self._after_start = self._after_start, []
        for line in waiting:
            self._log(line)

    def _log(self, line: Line, *, silent: bool = False) -> None:
        """Log one event; if `silent`, only in run.log."""
        log = getattr(self._logger, line.level)
        log(line.event, source=line.source, text=line.text, _silent=silent, **line.keys)

    def _stamped(self, _: Any, __: str, fields: EventDict) -> EventDict:
        fields["time"] = self._clock.wall().isoformat(sep=" ", timespec="milliseconds")
        return {key: fields.pop(key) for key in _FIRST} | dict(fields)

    def _cleaned(self, _: Any, __: str, fields: EventDict) -> EventDict:
        return {
            key: value if key in _TRUSTED_KEYS else _clean(value, self._redact)
            for key, value in fields.items()
        }

    def _write(self, fields: Mapping[str, Any], *, silent: bool) -> None:
        line, level = _as_text(fields), fields["level"]
        if not silent:
            self._console(line if self._format == "text" else as_json(fields), level)
        self._waiting.append(line + "\n")
        self._flush()

    def _flush(self) -> None:
        """Write all waiting lines to run.log. If that fails, the next line tries again."""
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


class _StructlogTarget:
    """The logger that structlog writes to: one method for each level."""

    def __init__(self, write: Callable[..., None]) -> None:
        self.info = self.warning = self.error = write


def _as_arguments(_: Any, __: str, fields: EventDict) -> tuple[tuple[EventDict], dict[str, bool]]:
    silent = bool(fields.pop("_silent"))
    return (fields,), {"silent": silent}


def _as_text(fields: Mapping[str, Any]) -> str:
    mark = "" if fields["level"] == "info" else f"{fields['level'].upper()}: "
    return f"{fields['time']} [{fields['source']}] {mark}{fields['text']}"


def as_json(fields: Mapping[str, Any]) -> str:
    """Returns an event as one line of JSON, in ASCII."""
    return str(_AS_JSON(None, "", dict(fields)))


def _clean(value: Any, redact: Callable[[str], str]) -> Any:
    """Returns `value` as JSON can hold it, without secrets and control characters."""
    match value:
        case str():
            return printable(redact(value))
        case float() if not math.isfinite(value):
            return str(value)  # JSON has no NaN and no Infinity
        case float():
            return round(value, 4)
        case Mapping():
            return {str(key): _clean(each, redact) for key, each in value.items()}
        case list() | tuple():
            return [_clean(each, redact) for each in value]
        case _:
            return value


class _ReportLimits:
    """Limits the lines about reports of one attempt's workers (see `Allowance`).

    Each kind of report, and each stage, has a limit of its own, so that a flood of one kind does
    not hide a rare one.
    """

    def __init__(self) -> None:
        self._kinds: defaultdict[object, Allowance] = defaultdict(Allowance)
        self._refused = 0
        self._told = -math.inf

    def take(self, message: Message, now: float) -> bool:
        """True if a line about `message` may be written; it counts against the limit."""
        kind = (type(message), message.stage if isinstance(message, StageMessage) else None)
        allowed, self._kinds[kind] = self._kinds[kind].take(now)
        self._refused += not allowed
        return allowed

    def left_out(self, now: float, *, over: bool) -> int:
        """Returns how many lines were refused since it last told; 0 if it is too early to tell.

        It tells at most every `_TELL_LEFT_OUT` seconds, and when the attempt is `over`.
        """
        if not over and now < self._told + _TELL_LEFT_OUT:
            return 0
        refused, self._refused = self._refused, 0
        self._told = now if refused else self._told
        return refused
