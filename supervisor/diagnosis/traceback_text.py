"""Reads the tracebacks in an output: the exceptions, those that led to them, and their origin.

A traceback that begins at module level ended the program. One in a thread may have ended it. One
that was logged was caught.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from supervisor.diagnosis.chain import Chain, Origin, PrintedError
from supervisor.diagnosis.frames import Frame, frame_in, place
from supervisor.diagnosis.hints import code, hints_of, is_wordless
from supervisor.diagnosis.line_forms import (
    CAUSED,
    HEADER,
    LOGGED,
    MEMBER,
    NOISE,
    STACK,
    is_caused,
    when,
)
from supervisor.diagnosis.speakers import raiser

_MAX_CONTINUATION = 40
MAX_FRAMES = 60

_EXCEPTION = re.compile(
    r"((?:[A-Za-z_][\w<>]*\.)*[A-Za-z_]\w*)(?:\(([A-Za-z_][\w.]*)\)| \(see above for traceback\))?"
    r"(?::(?: (.*))?)?$"
)
_BUILTIN_STYLE = re.compile(
    r"(?:Base)?Exception$|_?[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Group|Iteration|Timeout|Warning|Failure)$|"
    r"_RemoteTraceback$|RemoteTraceback$"
)
_LOWER = frozenset({"error", "timeout", "gaierror", "herror"})
"""Names of exceptions that begin in lower case."""


def exception_type(line: str) -> str | None:
    """Returns the type if the line names an exception as a traceback does; None: it names none."""
    match = _EXCEPTION.match(line)
    if match is None:
        return None
    kind = match[1].rpartition(".")[2]
    dotted = "." in match[1] and (kind.lstrip("_")[:1].isupper() or kind in _LOWER)
    return match[1] if dotted or _BUILTIN_STYLE.match(kind) else None


def frames_of_chain(frames: Sequence[Frame]) -> tuple[tuple[str, str], ...]:
    """Returns the frames in the form of `Chain.frames`."""
    return tuple((frame.path, frame.function) for frame in frames)


@dataclass(slots=True)
class TracebackReader:
    """Reads tracebacks line by line. Threads write over one another, so any order is possible."""

    lines: Sequence[str]
    open: int = 0
    """The number of tracebacks that began and whose exception has not come yet."""
    origin: Origin = Origin.LOGGED
    frames: list[Frame] = field(default_factory=list)
    ignored: bool = False
    members: list[PrintedError] = field(default_factory=list)
    chained: bool = False
    when: str = ""

    def chains(self) -> Iterator[Chain]:
        """Yields the chains of the text, without noise."""
        for number, line in enumerate(self.lines):
            if is_caused(line) or MEMBER.match(line):
                self._lacks_cause = self._lacks_cause or (is_caused(line) and not self.members)
                self.chained = True
                self.open = max(self.open, 1)
                continue
            self.when = when(line) or self.when
            raised = self._exception(number) if self._expects(number) else None
            if raised is not None:
                yield from self._take(raised, number)
            if HEADER in line:
                self._begin(number, inside=raised is not None)
            elif frame := frame_in(line):
                self._frame(frame)
        yield from self._finish()

    def _expects(self, number: int) -> bool:
        if self.open:
            return True
        following = self.lines[number + 1 : number + 6]
        return any(line in CAUSED for line in following)

    def _begin(self, number: int, *, inside: bool) -> None:
        self.open += 1
        self._began = number
        if not self.members:
            self._since = self.when
        if inside:
            self.chained = True
            return
        before = next(
            (line for line in reversed(self.lines[max(0, number - 3) : number]) if line), ""
        )
        if before.startswith("Exception ignored"):
            self.ignored = True
        elif before.startswith(("Exception in thread", "Process ")):
            self.origin = Origin.THREAD

    def _frame(self, frame: Frame) -> None:
        self.open = max(self.open, 1)
        self.frames.append(frame)
        function = frame.function
        if function == "<module>" or (not function and self.origin is Origin.LOGGED):
            self.origin = Origin.MAIN if self.origin is Origin.LOGGED else self.origin

    def _exception(self, number: int) -> PrintedError | None:
        line = self.lines[number]
        kind = exception_type(line)
        if kind is None:
            return None
        text = "\n".join([line, *self._continuation(number + 1)])
        hints = hints_of(self.lines, self._began, number) if is_wordless(line) else ""
        raising = code(self.lines, number)
        return PrintedError(kind, line.rstrip(), text, hints=hints, code=raising)

    def _continuation(self, number: int) -> Iterator[str]:
        """Yields the further lines of a message."""
        for line in self.lines[number : number + _MAX_CONTINUATION]:
            if HEADER in line or line in CAUSED or MEMBER.match(line):
                return
            if frame_in(line) or LOGGED.match(line) or STACK.match(line):
                return
            yield line

    def _take(self, raised: PrintedError, number: int) -> Iterator[Chain]:
        self.open = max(0, self.open - 1)
        if NOISE.search(raised.line) or self.ignored:
            self.ignored = False
            return
        if self.members and not self.chained and not self._inside(raised):
            yield from self._finish(keep=True)
        raised_in = raiser([frame.path for frame in self.frames])
        self.members.append(replace(raised, at=place(self.frames), raised_in=raised_in))
        self.chained = False
        self._end = number + 1
        if not self.open:
            self._settle()

    def _inside(self, raised: PrintedError) -> bool:
        """True if the exception before this one only carries it, as Ray prints it."""
        return self.members[-1].is_wrapper

    # `origin` and `frames` belong to the traceback that is being read; a chain gets the smallest
    # origin of its members, and the frames of all.
    _best: Origin = Origin.LOGGED
    _all: list[Frame] = field(default_factory=list)
    _since: str = ""
    _began: int | None = None
    """The index of the line in which the traceback that is being read begins."""
    _end: int = 0
    _lacks_cause: bool = False

    def _settle(self) -> None:
        self._best = min(self._best, self.origin)
        self._all = [*self._all, *self.frames][-MAX_FRAMES:]
        self.origin, self.frames = Origin.LOGGED, []

    def _finish(self, *, keep: bool = False) -> Iterator[Chain]:
        origin, frames = self.origin, self.frames
        if keep:
            self.origin, self.frames = Origin.LOGGED, []
        else:
            self._settle()
        if self.members:
            yield Chain(
                tuple(self.members),
                self._best,
                frames_of_chain(self._all),
                self._since,
                self._end,
                self._lacks_cause,
            )
            self._lacks_cause = False
        self.members, self._best, self._all = [], Origin.LOGGED, []
        if keep:
            self.origin, self.frames = origin, frames
