"""The errors that an output or a failure record shows: one error, and a chain of them."""

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
"""Exceptions that only carry another one, where that is known."""
_OF_A_CREATION = "an error raised in its creation task"
"""What Ray says of an actor that never began: the error of its program follows. Any other death of
an actor is an error of its own."""


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

    @property
    def told(self) -> str:
        """What a person should know of an error that came so."""
        return _TOLD[self]


_TOLD = {
    Origin.MAIN: "nobody caught it",
    Origin.THREAD: "it ended a thread or a child process, which need not have ended the program",
    Origin.ABORT: "native code ended the process with it, which may be how another error ends",
    Origin.LOGGED: "it was printed, but nothing tells that it ended the program",
    Origin.OUTPUT: "it is one of the last lines, with no traceback",
}


@dataclass(frozen=True)
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
    """The file that it comes from, see `speakers.raiser`. Empty where none is known."""
    beside: str = ""
    """What stands beside an exception without words, see `beside`."""
    code: str = ""
    """The line of code that raised it, where the traceback shows it."""

    @property
    def is_wrapper(self) -> bool:
        """Whether it only carries another one."""
        kind = self.type.rpartition(".")[2]
        of_an_actor = kind in ("RayActorError", "ActorDiedError")
        return kind in _WRAPPERS or (of_an_actor and _OF_A_CREATION in self.text)

    @cached_property
    def stated(self) -> str:
        """What it states of what happened: its text without advice and suppositions."""
        return stated(self.text)

    @cached_property
    def speaker(self) -> Speaker:
        """Who raised it."""
        return speaker(self.type, self.raised_in, self.bases)

    @cached_property
    def codes(self) -> frozenset[str]:
        """The structured codes in what it says."""
        return codes_of(self.type, self.text)

    @cached_property
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


@dataclass(frozen=True)
class Chain:
    """Errors that came of one another, the innermost first, and the frames they passed through."""

    members: tuple[Raised, ...]
    origin: Origin
    frames: tuple[tuple[str, str], ...] = ()
    """File and function."""
    when: str = ""
    """The time of the last log line before it (month, day, time of day), where there is one."""
    end: int = 0
    """Which line of its process follows its last error."""
    cut: bool = False
    """Whether it came of an error that is not in the text: the log begins after it."""
    followed: int = 0
    """How many lines of its process follow that say anything."""

    @cached_property
    def path(self) -> str:
        """The frames as text, a line each."""
        return "\n".join(f"{path}:{name}" for path, name in self.frames)

    @cached_property
    def stage(self) -> str | None:
        """What the program was doing, as far as the frames of a checkpoint library tell."""
        names = [name for path, name in self.frames if "orbax" in path or "tensorstore" in path]
        if any("restore" in name or "deserialize" in name for name in names):
            return "RESTORING"
        return "SAVING" if any("save" in name or "serialize" in name for name in names) else None
