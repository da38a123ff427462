"""What the runtime and the adapters need of each other, as protocols: the seams of the program.

The simulation implements the same protocols with fakes under a virtual clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from supervisor.core.decisions import Decision
from supervisor.core.events import Event
from supervisor.core.state import JobState
from supervisor.host.guard_socket import Started

Post = Callable[[Event], None]
"""Hands an event to the runtime; safe to call from any thread."""
CallLater = Callable[[float, Callable[[], None]], None]
"""Calls a function once in the main loop, so many seconds from now."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One turn of the decision core: what happened, what became of it, what is to be done."""

    event: Event
    before: JobState
    after: JobState
    decisions: tuple[Decision, ...]
    wall: datetime
    """When, on the wall clock; only for people."""


class Loop(Protocol):
    """The main loop, as it is seen from another thread."""

    @property
    def busy_since(self) -> float | None:
        """Since when it has not asked for what comes next; None: it waits for that."""
        ...

    @property
    def is_told_to_stop(self) -> bool:
        """Whether it has been told, by whomever."""
        ...


class Clock(Protocol):
    """Time, passed in."""

    def now(self) -> float:
        """Seconds that never run backwards."""
        ...

    def wall(self) -> datetime:
        """The time of day, with its zone."""
        ...


class Starter(Protocol):
    """Starts the job's processes and reports their exit codes."""

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        output: int,
        errors: int,
        inherit: Sequence[int] = (),
    ) -> Started:
        """Start a process of the job, with stdout and stderr on `output` and `errors`, and the
        descriptors `inherit` open. In any thread.

        Raises:
            OSError: it cannot be started.
        """
        ...

    def exit_code(self, process: Started) -> int | None:
        """How it ended, as `subprocess` has it; None while it runs. In any thread.

        Raises:
            ChildProcessError: nobody saw how it ended.
        """
        ...


class World(Protocol):
    """All that the runtime acts on and hears from."""

    def wait(self, until: float | None) -> Sequence[Event]:
        """The events that have come; blocks until there is one, or until the time `until`.

        Nothing only if there was none until a moment past `until`.
        """
        ...

    def carry_out(self, decision: Decision) -> None:
        """Carry out a decision. What comes of it is posted as events."""
        ...


class Observer(Protocol):
    """Is told of every transition, once it is journalled and carried out; decides nothing.

    `supervisor.observers` lists the observers and isolates them: an exception turns one off. What
    cannot be isolated is the observer's own duty:

    * It redacts the text that it shows or writes. Failures and command lines are redacted before
      they are journalled; what a program reports is not.
    * It never blocks the main loop, where `observe` and timers run: a file system or a reader may
      hang. It writes small files of model_dir, as the journal does; what takes longer, or reads
      what others wrote, belongs in a thread, and is waited for at most some seconds.
    * It sets its timers by the `CallLater` that it is made with, so that they are isolated too.
    * A thread of its own reports errors itself, and speaks to the job by a `Noticed` event.
    """

    def observe(self, transition: Transition) -> None:
        """Take note of a transition."""
        ...


class Journal(Protocol):
    """Where a job's events and decisions are kept."""

    def append(self, transition: Transition, *, durable: bool) -> None:
        """Add a record; with `durable`, return only once it is safe."""
        ...


class Storage(Protocol):
    """The files of a model_dir, by their path relative to it. Errors are OSErrors."""

    def read(self, path: str, limit: int) -> bytes:
        """The content of a file of at most `limit` bytes; errors as `protocol.reading.read`."""
        ...

    def replace(self, path: str, data: bytes) -> None:
        """Make `data` the content of a file: whole or not at all, and durable."""
        ...

    def append(
        self, path: str, data: bytes, *, at: int | None = None, durable: bool = False
    ) -> None:
        """Add `data` to a file, whole or not at all; with `durable`, return only once it is safe.

        With `at`, the file must end there: it fails where somebody else has changed or removed it.
        """
        ...

    def make_directory(self, path: str, *, durable: bool = False) -> bool:
        """Make a directory and those above it, as safe as `durable` says; False if it was there."""
        ...

    def names(self, path: str) -> list[str]:
        """What is directly in a directory, "" for model_dir; nothing where there is none."""
        ...

    def local(self, path: str) -> Path:
        """Where on this host a program can write the file itself."""
        ...


@dataclass(frozen=True, slots=True)
class Stored:
    """What an object holds, and what names this one version of it."""

    data: bytes
    version: str


@dataclass(frozen=True, slots=True)
class Listing:
    """What is directly below a place: objects with their sizes in bytes, and places."""

    objects: Mapping[str, int]
    folders: frozenset[str]


class ConflictError(OSError):
    """The object is not the version that it was expected to be."""


class UnavailableError(OSError):
    """The store did not do it, after some tries; it may later on."""


MAX_OBJECT = 1 << 30
"""Bytes: no file of a job that is kept in a bucket has as many."""


class Objects(Protocol):
    """The objects of a bucket below one place, by their path relative to it.

    A call may block, though for a bounded time: it is for threads of its own. Safe in any thread.
    Besides what a method names, all raise `UnavailableError` for what may pass, and `OSError` for
    what only a person can mend (no such bucket, no permission); what may pass was tried again with
    a growing pause, within a bound, before.
    """

    def read(self, path: str, limit: int = MAX_OBJECT) -> Stored:
        """An object; FileNotFoundError where there is none, `protocol.reading.UnreadableError`
        where it has more than `limit` bytes, which are not read then."""
        ...

    def write(self, path: str, data: bytes, *, expected: str | None = None) -> str:
        """Make `data` the content of an object, whole or not at all; the version that it is.

        With `expected`, only in the place of that version ("": only where there is none).

        Raises:
            ConflictError: it is another version. After a try whose answer was lost, that may be
                the caller's own: read it.
        """
        ...

    def delete(self, path: str) -> None:
        """Remove an object, if there is one."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is an object; cheaper than to read it."""
        ...

    def list(self, path: str) -> Listing:
        """What is directly below `path` ("": of all); nothing where there is nothing."""
        ...


class SliceState(StrEnum):
    """What has become of the request for a slice: the states of the Cloud TPU API v2."""

    CREATING = "CREATING"
    ACCEPTED = "ACCEPTED"
    WAITING_FOR_RESOURCES = "WAITING_FOR_RESOURCES"
    PROVISIONING = "PROVISIONING"
    ACTIVE = "ACTIVE"
    SUSPENDING = "SUSPENDING"
    SUSPENDED = "SUSPENDED"
    FAILED = "FAILED"
    DELETING = "DELETING"
    UNKNOWN = "STATE_UNSPECIFIED"
    """Also what a later version of the API may say."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a cloud does not give a slice. What does not `may_pass` only a person can mend."""

    text: str
    may_pass: bool


@dataclass(frozen=True, slots=True)
class CloudSlice:
    """A slice that was asked for; `refusal` says why it is FAILED."""

    state: SliceState
    refusal: Refusal | None = None


class Slices(Protocol):
    """The slices that a cloud keeps for one job, by generation: the n-th that was asked for.

    Calls block, for a bounded time, and may be repeated. All raise `UnavailableError` for what may
    pass, after some tries, and `PermissionError` for credentials that are missing or not enough.
    """

    def all(self, current: int) -> Mapping[int, CloudSlice]:
        """All that there are, in whatever state; for certain if the generation `current` is (0:
        none)."""
        ...

    def create(self, generation: int, rung: int) -> Refusal | None:
        """Ask for a slice of `rung` chips; nothing where it is there already, or is on its way."""
        ...

    def delete(self, generation: int) -> None:
        """Give back a slice, with all that runs on it; begun, not done, when this returns."""
        ...


@dataclass(frozen=True, slots=True)
class Announcement:
    """What was announced, and by whom."""

    text: str
    doomed: bool = True
    """Whether the job cannot stay on this machine."""


class Source(Protocol):
    """Somebody who may know that the machine will be taken away."""

    quick: bool
    """Whether a first look takes no time, where all is well."""

    @property
    def pause(self) -> float:
        """The seconds to wait between two looks."""
        ...

    def look(self) -> Announcement | None:
        """What is announced, if anything is; may block.

        Raises:
            Exception: it could not be asked; `PreemptionWatch` tells why and asks again.
        """
        ...
