"""From the text that a dying program printed to the errors that are in it, genuine ones only.

The last line of a log misleads more often than not: after the error that ended a program come
threads that find their event loop closed, exit handlers, the coordination service taking down the
other ranks, C++ stacks and abort traces. And what comes before may have been caught and survived.
So the text is read for *chains*: the exceptions of one traceback, with the ones that they came
from, and how that traceback was printed. One that begins at the module level ended the program. One
in a thread may have. One that was logged was caught by somebody.

Pure text work, line by line, every regular expression anchored or without nested repetition.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from supervisor.core.frames import Frame, frame_in, place
from supervisor.core.speakers import Speaker, speaker
from supervisor.protocol.failure import ExceptionInfo, FailureRecord

_MAX_LINE = 4000
_MAX_CONTINUATION = 40
_MAX_FATAL_LINES = 12
_MAX_LAST_LINES = 25
_MAX_FRAMES = 60

_HEADER = "Traceback (most recent call last)"
_CAUSED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_MEMBER = re.compile(r"[-+| ]*-{5,} ?(?:\d+|\.\.\.) ?-{5,}")
"""What stands between the members of an exception group."""
_GROUP_BAR = re.compile(r"[ +|-]*[+|] (?=\S|  )")
_PREFIX = re.compile(
    r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-][\d:]+) std(?:out|err) [FP] |"
    r"\[rank ?\d+\]:? ?|\([\w.:]+ (?:pid=\d+|pid=\d+, ip=[\d.]+)\) |\[\d+\]: |[\w.-]+ +\| "
)
"""What launchers and Ray put before a worker's line."""
_SPECULATION = re.compile(
    r"(?i)(?:some )?(?:common|potential|possible|likely) (?:root )?(?:causes?|reasons?)\b"
)
"""From here on a message says what might have been: killed for memory, by a person, by anything."""
_WHEN = re.compile(r"[IWEF](\d\d)(\d\d) |\d{4}-(\d\d)-(\d\d)[ T]")
_TIME = re.compile(r"\d\d:\d\d:\d\d(?:[.,]\d+)?")
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_EXCEPTION = re.compile(
    r"((?:[A-Za-z_][\w<>]*\.)*[A-Za-z_]\w*)(?:\(([A-Za-z_][\w.]*)\))?(?::(?: (.*))?)?$"
)
_BUILTIN_STYLE = re.compile(
    r"(?:Base)?Exception$|_?[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Group|Iteration|Timeout|Warning|Failure)$|"
    r"_RemoteTraceback$|RemoteTraceback$"
)
_LOWER = frozenset({"error", "timeout", "gaierror", "herror"})
"""Exceptions whose names do not begin like those of others."""
_CALLBACK = re.compile(r"(?:[Cc]allback|Generated function)\b.*? error[^:]*: ")
_EMBEDDED = re.compile(r"(?:.*?[ :])??((?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)): (.*)")
_LOGGED = re.compile(r"[IWEF]\d{4} \d\d:|\d{4}-\d\d-\d\d[ T]\d\d:|(?:INFO|WARNING|ERROR|DEBUG):")
_INFO = re.compile(
    r"[IW]\d{4} \d\d:|\d{4}-\d\d-\d\d[ T][\d:.,]+:? (?:[IW]|INFO|WARNING|DEBUG)\b|"
    r"(?:INFO|WARNING|DEBUG)[: ]"
)
_FATAL = re.compile(
    r"F\d{4} \d\d:|\d{4}-\d\d-\d\d [\d:.]+: F |Fatal Python error: (?!Aborted)|LLVM ERROR|"
    r"terminate called |.*\bCheck failed: "
)
_STACK = re.compile(
    r"\s+@ |\*\*\* Check failure|Extension modules: |(?:Current t|T)hread 0x|\s*\^|#\d+ 0x|-{8,}|"
    r"\S+\.py:\d+: \w*Warning\b|Exception ignored|Fatal Python error: Aborted|"
    r"For simplicity, JAX has|For simplicity, Grain has"
)
_NOISE = re.compile(
    r"Event loop is closed|cannot schedule new futures after|cannot join current thread|"
    r"can't (?:create|start) new thread at interpreter shutdown|Python is likely shutting down|"
    r"I/O operation on closed file|leaked \w+ objects|Task was destroyed but it is pending|"
    r"interpreter shutdown|Set changed size during iteration"
)
"""What Python prints of its own end, whatever brought it about."""
_WRAPPERS = frozenset(
    {
        "ExceptionGroup",
        "BaseExceptionGroup",
        "JaxStackTraceBeforeTransformation",
        "RayTaskError",
        "RayActorError",
        "ActorDiedError",
        "_RemoteTraceback",
        "RemoteTraceback",
        "SystemExit",
    }
)
"""Exceptions that only carry another one, where that is known."""


class Origin(IntEnum):
    """How an error came to be printed; what is more certain to have ended the program is less."""

    MAIN = 0
    """An exception that nobody caught, or one in a failure record."""
    THREAD = 1
    """One that ended a thread or a child process."""
    ABORT = 2
    """A line of native code that ends the process as it is written."""
    LOGGED = 3
    """A traceback that somebody caught and printed."""
    OUTPUT = 4
    """The last lines, taken as they are."""


@dataclass(frozen=True, slots=True)
class Raised:
    """One error: `type` as it was printed ("" for a line of text), `text` all that it says."""

    type: str
    line: str
    text: str
    bases: tuple[str, ...] = ()
    """Its base classes, where they are known."""
    at: str = ""
    """The innermost place in the user's own code that it passed through, else of all; `FILE:LINE in
    FUNCTION`. Empty where no traceback says so."""
    raised_in: str = ""
    """The file that raised it: the innermost of its traceback. Empty where none is known."""

    @property
    def speaker(self) -> Speaker | None:
        """Who raised it; None: nothing tells."""
        return speaker(self.type, self.raised_in)

    @property
    def names(self) -> frozenset[str]:
        """The names that a rule may call it by: those of its types, with ever less of the module.

        Empty for a line of text.
        """
        if not self.type:
            return frozenset()
        names = {"BaseException"}
        for name in (self.type, *self.bases):
            parts = name.split(".")
            names |= {".".join(parts[index:]) for index in range(len(parts))}
        return frozenset(names)


@dataclass(frozen=True, slots=True)
class Chain:
    """Errors that came of one another, the innermost first, and the frames they passed through."""

    members: tuple[Raised, ...]
    origin: Origin
    frames: tuple[tuple[str, str], ...] = ()
    """File and function."""
    when: str = ""
    """The time of the last log line before it (month, day, time of day), where there is one."""

    @property
    def path(self) -> str:
        """The frames as text, a line each."""
        return "\n".join(f"{path}:{name}" for path, name in self.frames)

    @property
    def stage(self) -> str | None:
        """What the program was doing, as far as the frames of a checkpoint library tell."""
        names = [name for path, name in self.frames if "orbax" in path or "tensorstore" in path]
        if any("restore" in name or "deserialize" in name for name in names):
            return "RESTORING"
        return "SAVING" if any("save" in name or "serialize" in name for name in names) else None


def chains_of_text(text: str) -> list[Chain]:
    """The genuine errors in an output, in the order they were printed."""
    lines = [_clean(line) for line in text.splitlines()]
    found = list(_Reader(lines).chains())
    found += _aborts(lines)
    if last := _last_lines(lines):
        found.append(last)
    return [chain for chain in map(_unwrapped, found) if chain.members]


def chain_of_record(record: FailureRecord) -> Chain | None:
    """The errors of a failure record."""
    lines = record.traceback.splitlines()
    printed = [each for chain in _Reader(lines).chains() for each in chain.members]
    members = tuple(
        inner if inner.at else _placed(inner, printed)
        for info in reversed(record.exceptions)
        for inner in _members_of_info(info)
    )
    frames = [frame for line in lines if (frame := frame_in(line))][-_MAX_FRAMES:]
    return _unwrapped(Chain(members, Origin.MAIN, _passed(frames))) if members else None


def _passed(frames: Sequence[Frame]) -> tuple[tuple[str, str], ...]:
    """See `Chain.frames`."""
    return tuple((frame.path, frame.function) for frame in frames)


def _placed(raised: Raised, printed: Sequence[Raised]) -> Raised:
    """An error of the record at the place that the traceback has for it: by its message, else by
    its type (the message of a SyntaxError is printed without its place)."""
    same = [each for each in printed if _kind(each) == _kind(raised)]
    same.sort(key=lambda each: _message(each) != _message(raised))
    return replace(raised, at=same[0].at, raised_in=same[0].raised_in) if same else raised


def _kind(raised: Raised) -> str:
    return raised.type.rpartition(".")[2]


def _message(raised: Raised) -> str:
    return raised.line.partition(": ")[2].rstrip()[: _MAX_LINE // 2]


def _members_of_info(info: ExceptionInfo) -> Iterator[Raised]:
    """The error itself, after those that its message holds as text (a callback's, a worker's)."""
    if _HEADER in info.message:
        for chain in _Reader([_clean(line) for line in info.message.splitlines()]).chains():
            yield from chain.members
    text = f"{info.type}: {info.message}"
    yield Raised(info.type, text.splitlines()[0], _said(text), info.bases)


def _said(text: str) -> str:
    """What a message says of what happened, without what it supposes."""
    return _SPECULATION.split(text, maxsplit=1)[0]


def _when(line: str) -> str:
    """The time at the head of a log line, in an order of its own; empty where there is none."""
    head = _WHEN.match(line)
    clock = _TIME.search(line, 0, 40) if head is not None else None
    if head is None or clock is None:
        return ""
    return f"{head[1] or head[3]}{head[2] or head[4]} {clock[0].replace(',', '.')}"


def _clean(line: str) -> str:
    line = _ANSI.sub("", line[:_MAX_LINE]) if "\x1b" in line else line[:_MAX_LINE]
    return _GROUP_BAR.sub("", _PREFIX.sub("", line, count=1), count=1) if line else line


@dataclass(slots=True)
class _Reader:
    """Reads tracebacks line by line. Threads write over one another: it expects no good order."""

    lines: Sequence[str]
    open: int = 0
    """Tracebacks that began and whose exception is still to come."""
    origin: Origin = Origin.LOGGED
    frames: list[Frame] = field(default_factory=list)
    ignored: bool = False
    members: list[Raised] = field(default_factory=list)
    chained: bool = False
    when: str = ""

    def chains(self) -> Iterator[Chain]:
        """The chains of the text, noise left out."""
        for number, line in enumerate(self.lines):
            if line in _CAUSED or _MEMBER.match(line):
                self.chained = True
                self.open = max(self.open, 1)
                continue
            self.when = _when(line) or self.when
            raised = self._exception(number) if self._expects(number) else None
            if raised is not None:
                yield from self._take(raised)
            if _HEADER in line:
                self._begin(number, inside=raised is not None)
            elif frame := frame_in(line):
                self._frame(frame)
        yield from self._finish()

    def _expects(self, number: int) -> bool:
        if self.open:
            return True
        following = self.lines[number + 1 : number + 6]
        return any(line in _CAUSED for line in following)

    def _begin(self, number: int, *, inside: bool) -> None:
        self.open += 1
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

    def _exception(self, number: int) -> Raised | None:
        line = self.lines[number]
        match = _EXCEPTION.match(line)
        if match is None:
            return None
        kind = match[1].rpartition(".")[2]
        dotted = "." in match[1] and (kind.lstrip("_")[:1].isupper() or kind in _LOWER)
        if not dotted and not _BUILTIN_STYLE.match(kind):
            return None
        text = "\n".join([line, *self._continuation(number + 1)])
        return Raised(match[1], line.rstrip(), _said(text))

    def _continuation(self, number: int) -> Iterator[str]:
        """The further lines of a message that has several."""
        for line in self.lines[number : number + _MAX_CONTINUATION]:
            if _HEADER in line or line in _CAUSED or _MEMBER.match(line):
                return
            if frame_in(line) or _LOGGED.match(line) or _STACK.match(line):
                return
            yield line

    def _take(self, raised: Raised) -> Iterator[Chain]:
        self.open = max(0, self.open - 1)
        if _NOISE.search(raised.line) or self.ignored:
            self.ignored = False
            return
        if self.members and not self.chained and not self._inside(raised):
            yield from self._finish(keep=True)
        raised_in = self.frames[-1].path if self.frames else ""
        self.members.append(replace(raised, at=place(self.frames), raised_in=raised_in))
        self.chained = False
        if not self.open:
            self._settle()

    def _inside(self, raised: Raised) -> bool:
        """Whether the exception before this one only reported it (Ray shows it so)."""
        return self.members[-1].type.rpartition(".")[2] in _WRAPPERS

    # The origin and frames belong to the traceback that is being read; a chain gets the best of
    # those of its members.
    _best: Origin = Origin.LOGGED
    _all: list[Frame] = field(default_factory=list)
    _since: str = ""

    def _settle(self) -> None:
        self._best = min(self._best, self.origin)
        self._all = [*self._all, *self.frames][-_MAX_FRAMES:]
        self.origin, self.frames = Origin.LOGGED, []

    def _finish(self, *, keep: bool = False) -> Iterator[Chain]:
        origin, frames = self.origin, self.frames
        if keep:
            self.origin, self.frames = Origin.LOGGED, []
        else:
            self._settle()
        if self.members:
            yield Chain(tuple(self.members), self._best, _passed(self._all), self._since)
        self.members, self._best, self._all = [], Origin.LOGGED, []
        if keep:
            self.origin, self.frames = origin, frames


def _unwrapped(chain: Chain) -> Chain:
    """The chain without what only carries its genuine members."""
    members = tuple(inner for member in chain.members for inner in _opened(member))
    genuine = tuple(
        member
        for member in members
        if member.type.rpartition(".")[2] not in _WRAPPERS and not _CALLBACK.search(member.line)
    )
    return replace(chain, members=genuine or members)


def _opened(member: Raised) -> Iterator[Raised]:
    """An exception that names another in its own line: that one, and itself."""
    callback = _CALLBACK.search(member.line)
    if callback is not None:
        inner = _EMBEDDED.match(member.line[callback.end() :])
        if inner is not None:
            line = f"{inner[1]}: {inner[2]}"
            yield Raised(inner[1], line, member.text, at=member.at, raised_in=member.raised_in)
    yield member


def _aborts(lines: Sequence[str]) -> Iterator[Chain]:
    """The lines with which native code ended the process."""
    for number, line in enumerate(lines):
        if _FATAL.match(line):
            text = [line]
            for further in lines[number + 1 : number + _MAX_FATAL_LINES]:
                if _STACK.match(further) or _FATAL.match(further) or _HEADER in further:
                    break
                text.append(further)
            said = Raised("", line.rstrip(), _said("\n".join(text)))
            yield Chain((said,), Origin.ABORT, when=_when(line))


def _last_lines(lines: Sequence[str]) -> Chain | None:
    """The last lines that say anything, each an error of its own."""
    said: list[Raised] = []
    for line in reversed(lines[-500:]):
        if len(said) == _MAX_LAST_LINES:
            break
        told = line.strip() and not (_INFO.match(line) or _STACK.match(line) or frame_in(line))
        if told and not _NOISE.search(line):
            said.append(Raised("", line.strip(), line))
    return Chain(tuple(reversed(said)), Origin.OUTPUT) if said else None
