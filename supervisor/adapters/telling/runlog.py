"""run.log, and the same lines on the console as text or as JSON."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Literal

from supervisor.core.allowance import Allowance
from supervisor.core.events import WorkerReported, WorkersGone
from supervisor.core.policy import RestartPolicy
from supervisor.narrative import MAIN, Level, tell
from supervisor.ports import Clock, Storage, Transition
from supervisor.protocol.messages import Message, StageMessage, printable
from supervisor.protocol.segments import RUN_LOG

LogFormat = Literal["text", "json"]

_TELL_LEFT_OUT = 60.0
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
        has_shown: Callable[[Sequence[str]], bool] = lambda lines: False,
    ) -> None:
        """`redact` takes the secrets out of a line. What rank 0's output `has_shown` on the console
        is not repeated there."""
        self._storage = storage
        self._policy = policy
        self._console = console
        self._format = console_format
        self._redact = redact
        self._has_shown = has_shown
        self._clock = clock
        self._reports = _Reports()
        self._directory: str | None = None
        self._waiting: list[str] = []
        self._broken = False

    def observe(self, transition: Transition) -> None:
        """See `ports.Observer`."""
        self._directory = transition.after.directory or self._directory
        event, now = transition.event, self._clock.now()
        lines = tuple(tell(transition, self._policy))
        quoted = [line.quotes for line in lines if line.quotes is not None]
        repeats = bool(quoted) and self._has_shown(quoted)
        for line in lines:
            if isinstance(event, WorkerReported) and not self._reports.take(event.message, now):
                continue
            silent = repeats and line.quotes is not None
            self._say(line.text, line.source, line.level, silent=silent)
        if left_out := self._reports.left_out(now, over=isinstance(event, WorkersGone)):
            self.say(f"{left_out} more reports of the worker were not shown", level="warning")
        if transition.after.attempt != transition.before.attempt:
            self._reports = _Reports()

    def say(self, text: str, *, source: str = MAIN, level: Level = "info") -> None:
        """Log one line."""
        self._say(text, source, level)

    def _say(self, text: str, source: str, level: Level, *, silent: bool = False) -> None:
        """Log one line; if `silent`, not on the console."""
        stamp = self._clock.wall().isoformat(sep=" ", timespec="milliseconds")
        said = printable(self._redact(text))
        mark = "" if level == "info" else f"{level.upper()}: "
        line = f"{stamp} [{source}] {mark}{said}"
        fields = {"time": stamp, "level": level, "source": source, "event": said}
        if not silent:
            self._console(line if self._format == "text" else json.dumps(fields))
        self._waiting.append(line + "\n")
        self._write()

    def _write(self) -> None:
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
                self.say(f"{RUN_LOG} cannot be written: {why}", level="warning")
            return
        self._waiting.clear()
        self._broken = False


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
        allowed = self._kinds[kind].take(now)
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
