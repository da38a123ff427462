"""Types for the errors in an output or a failure record: one error, and a chain of errors."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

from supervisor.diagnosis.speakers import Speaker, speaker
from supervisor.diagnosis.statements import stated
from supervisor.diagnosis.structured_codes import codes_of

_WRAPPERS = frozenset(
    {
        "ExceptionGroup",
        "BaseExceptionGroup",
        "JaxStackTraceBeforeTransformation",
        "DatasetGenerationError",
        "RayTaskError",
        "_RemoteTraceback",
        "RemoteTraceback",
        "SystemExit",
    }
)
"""Types of exceptions that only carry another one. They do not count if that one is known."""
_OF_A_CREATION = "an error raised in its creation task"
"""Words that Ray prints if an actor failed to start: the error of its program follows. Any other
death of an actor is an error of its own."""


_OF_LAUNCHERS = frozenset({"ChildFailedError"})
"""Types of exceptions by which a launcher only says that a process which it had started failed."""


class Origin(IntEnum):
    """How an error came to be printed. The smaller the value, the surer it ended the program."""

    MAIN = 0
    """An exception that nobody caught, or one in a failure record."""
    THREAD = 1
    """An exception that ended a thread or a child process, or that was followed by more work."""
    ABORT = 2
    """A line that native code writes as it ends the process."""
    LOGGED = 3
    """A traceback that the program caught and printed, or that is quoted in another text."""
    OUTPUT = 4
    """One of the last lines of the output, without a traceback."""

    @property
    def told(self) -> str:
        """Describes the origin for people."""
        return _TOLD[self]


_TOLD = {
    Origin.MAIN: "nobody caught it",
    Origin.THREAD: "it ended a thread or a child process, which need not have ended the program",
    Origin.ABORT: "native code ended the process with it, which may be how another error ends",
    Origin.LOGGED: "it was printed, but nothing tells that it ended the program",
    Origin.OUTPUT: "it is one of the last lines, with no traceback",
}


@dataclass(frozen=True)
class PrintedError:
    """One error: `type` as printed ("": a line of text), its first `line`, and its whole `text`."""

    type: str
    line: str
    text: str
    bases: tuple[str, ...] = ()
    """The names of its base classes, if they are known."""
    at: str = ""
    """The innermost place in the user's own code that it passed through, else the innermost of all,
    as `FILE:LINE in FUNCTION`. Empty: no traceback shows one."""
    raised_in: str = ""
    """The path of the file that it comes from, see `speakers.raiser`. Empty: not known."""
    hints: str = ""
    """Hints about an exception without a message, see `hints.py`."""
    code: str = ""
    """The line of code that raised it. Empty: no traceback shows it."""

    @property
    def is_wrapper(self) -> bool:
        """True if it only carries another error."""
        kind = self.type.rpartition(".")[2]
        of_an_actor = kind in ("RayActorError", "ActorDiedError")
        return kind in _WRAPPERS or (of_an_actor and _OF_A_CREATION in self.text)

    @cached_property
    def stated(self) -> str:
        """Its statements about what happened: its text without advice and suppositions."""
        return stated(self.text)

    @cached_property
    def speaker(self) -> Speaker:
        """Who raised it: the user's own code, an I/O library or another library."""
        return speaker(self.type, self.raised_in, self.bases)

    @cached_property
    def codes(self) -> frozenset[str]:
        """The structured codes in its text."""
        return codes_of(self.type, self.text)

    @cached_property
    def names(self) -> frozenset[str]:
        """The names that a rule may use for it: those of its type and its base classes.

        `a.b.C` is also named `b.C` and `C`; every exception is also named `BaseException`. Empty
        for a line of text.
        """
        if not self.type:
            return frozenset()
        names = {"BaseException"}
        for name in (self.type, *self.bases):
            parts = name.split(".")
            names |= {".".join(parts[index:]) for index in range(len(parts))}
        return frozenset(names)


@dataclass(frozen=True)
class Chain:
    """Errors of which each led to the next, first cause first, and the frames they went through."""

    members: tuple[PrintedError, ...]
    origin: Origin
    frames: tuple[tuple[str, str], ...] = ()
    """Path and function of each frame, the innermost last."""
    when: str = ""
    """The time of the last log line before it (month, day, time of day). Empty: there is none."""
    end: int = 0
    """The index of the line after the first line of its last error, in the text that was read."""
    lacks_cause: bool = False
    """Whether an error led to it that is not in the text, because the log begins after that."""
    followed: int = 0
    """How many lines of its process follow that say anything, see `native_text.speaks`."""
    is_recorded: bool = False
    """Whether it is of a failure record, not of an output."""

    @property
    def is_of_a_launcher(self) -> bool:
        """True if it only says that a process which a launcher had started failed."""
        return all(each.type.rpartition(".")[2] in _OF_LAUNCHERS for each in self.members)

    @cached_property
    def path(self) -> str:
        """The frames as text, one `PATH:FUNCTION` a line."""
        return "\n".join(f"{path}:{name}" for path, name in self.frames)

    @cached_property
    def stage(self) -> str | None:
        """RESTORING or SAVING if frames of a checkpoint library show it; None: not known."""
        names = [name for path, name in self.frames if "orbax" in path or "tensorstore" in path]
        if any("restore" in name or "deserialize" in name for name in names):
            return "RESTORING"
        return "SAVING" if any("save" in name or "serialize" in name for name in names) else None
