"""The protocols between the runtime and the adapters: each names what one side needs of the other.

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
"""Calls a function once in the main loop, after a delay in seconds."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One step of the decision core: the event, the state before and after, and the decisions."""

    event: Event
    before: JobState
    after: JobState
    decisions: tuple[Decision, ...]
    wall: datetime
    """The time of day of the step; only for people."""


class MainLoopView(Protocol):
    """The main loop, as another thread sees it."""

    @property
    def busy_since(self) -> float | None:
        """The time since which the loop has been busy; None while it waits for the next event."""
        ...

    @property
    def is_stop_requested(self) -> bool:
        """Whether anybody has asked the supervisor to stop."""
        ...


class Clock(Protocol):
    """The source of the time; the simulation has its own."""

    def now(self) -> float:
        """Returns seconds from a clock that never runs backwards; only differences mean
        something."""
        ...

    def wall(self) -> datetime:
        """Returns the time of day, with its time zone."""
        ...


class ProcessStarter(Protocol):
    """Starts the job's processes and reports their exit codes."""

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        output: int,
        errors: int,
        inherit: Sequence[int] = (),
    ) -> Started:
        """Start a process of the job. Safe in any thread.

        Its stdout and stderr go to the descriptors `output` and `errors`; the descriptors `inherit`
        stay open in it.

        Raises:
            OSError: it cannot be started.
        """
        ...

    def exit_code(self, process: Started) -> int | None:
        """Returns the exit code as `subprocess` counts it (-N: killed by signal N); None while the
        process runs. Safe in any thread.

        Raises:
            ChildProcessError: the exit code is lost.
        """
        ...


class World(Protocol):
    """Everything outside the runtime: it delivers events and carries out decisions."""

    def wait(self, until: float | None) -> Sequence[Event]:
        """Returns the events that have come; blocks until there is one, or until the time `until`.

        Returns an empty sequence only after `until` has passed without an event.
        """
        ...

    def carry_out(self, decision: Decision) -> None:
        """Carry out a decision. Its results are posted as events."""
        ...


class Observer(Protocol):
    """Gets every transition after it was journalled and carried out; decides nothing.

    `supervisor.observers` lists the observers and isolates them: an exception turns one off. Some
    rules cannot be enforced there, so each observer must follow them itself:

    * It redacts the text that it shows or writes. Failures and command lines are redacted before
      they are journalled; what a program reports is not.
    * It never blocks the main loop, where `observe` and timers run: a file system or a reader may
      hang. It may write small files of model_dir, as the journal does. Work that takes longer, or
      reads files that others wrote, belongs in a thread; wait for it a few seconds at most.
    * It sets its timers with the `CallLater` that it is made with, so that they are isolated too.
    * If it has a thread, the thread handles its own errors, and tells the job by a `Noticed` event.
    """

    def observe(self, transition: Transition) -> None:
        """Take note of a transition."""
        ...


class Journal(Protocol):
    """The record of a job's events and decisions."""

    def append(self, transition: Transition, *, durable: bool) -> None:
        """Add a record; with `durable`, return only once it is on stable storage."""
        ...


class Storage(Protocol):
    """The files of a model_dir; paths are relative to it. Errors are OSErrors."""

    def read(self, path: str, limit: int) -> bytes:
        """Returns the content of a file of at most `limit` bytes.

        Raises the same errors as `protocol.reading.read`.
        """
        ...

    def replace(self, path: str, data: bytes) -> None:
        """Replace the content of a file by `data`, atomically and durably."""
        ...

    def append(
        self, path: str, data: bytes, *, at: int | None = None, durable: bool = False
    ) -> None:
        """Add all of `data` to a file, or nothing; with `durable`, return only once it is on stable
        storage.

        With `at`, fails unless the file ends at that offset: else somebody changed or removed it.
        """
        ...

    def make_directory(self, path: str, *, durable: bool = False) -> bool:
        """Make a directory and its parents, durably if `durable`; returns False if it existed."""
        ...

    def names(self, path: str) -> list[str]:
        """Returns the names directly in a directory ("" is model_dir); empty if there is none."""
        ...

    def local_path(self, path: str) -> Path:
        """Returns the path of the file on this host, for a program that writes it itself."""
        ...


@dataclass(frozen=True, slots=True)
class StoredObject:
    """The content of an object, and the id of this version of it."""

    data: bytes
    version: str


@dataclass(frozen=True, slots=True)
class Listing:
    """The entries directly below a path: objects with their sizes in bytes, and folders."""

    objects: Mapping[str, int]
    folders: frozenset[str]


class ConflictError(OSError):
    """The object has another version than the expected one."""


class UnavailableError(OSError):
    """The store failed after several tries; the same call may succeed later."""


MAX_OBJECT = 1 << 30
"""Bytes; every file of a job that is kept in a bucket is smaller."""


class Objects(Protocol):
    """The objects of a bucket below one URI; paths are relative to it.

    Safe in any thread. A call may block, for a bounded time, so it does not belong in the main
    loop. Besides the errors that a method names, all raise:

    * `UnavailableError` for an error that may pass; the call was retried, with growing pauses and
      for a bounded time, before it is raised;
    * `OSError` for what only a person can mend: no such bucket, no permission.
    """

    def read(self, path: str, limit: int = MAX_OBJECT) -> StoredObject:
        """Returns an object.

        Raises:
            FileNotFoundError: there is no such object.
            protocol.reading.UnreadableError: it has more than `limit` bytes; none is read then.
        """
        ...

    def write(self, path: str, data: bytes, *, expected: str | None = None) -> str:
        """Replace an object by `data`, atomically; returns its new version.

        With `expected`, replaces only that version ("": only if there is no object).

        Raises:
            ConflictError: the object has another version. If the answer to an earlier try was lost,
                it may be the caller's own version: read it.
        """
        ...

    def delete(self, path: str) -> None:
        """Remove an object, if there is one."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is such an object; cheaper than reading it."""
        ...

    def list(self, path: str) -> Listing:
        """Returns what is directly below `path` ("": the top); an empty listing if nothing is."""
        ...


class SliceState(StrEnum):
    """The state of a request for a TPU slice, as the Cloud TPU API v2 names it."""

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
    """Also stands for a state that only a later version of the API knows."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a cloud does not give a slice. Without `may_pass`, only a person can mend it."""

    text: str
    may_pass: bool


@dataclass(frozen=True, slots=True)
class CloudSlice:
    """A requested slice; `refusal` says why its state is FAILED."""

    state: SliceState
    refusal: Refusal | None = None


class Slices(Protocol):
    """The slices that a cloud keeps for one job. Generation n is the n-th slice that was requested.

    Calls block for a bounded time, and may be repeated. All raise `UnavailableError`, after several
    tries, for an error that may pass, and `PermissionError` if credentials are missing or not
    sufficient.
    """

    def all(self, current: int) -> Mapping[int, CloudSlice]:
        """Returns all slices that exist, in any state. It includes the generation `current` for
        certain, if that exists (0: none is looked for); others may be missing."""
        ...

    def create(self, generation: int, rung: int) -> Refusal | None:
        """Request a slice of `rung` chips; does nothing if it exists or is on its way."""
        ...

    def delete(self, generation: int) -> None:
        """Begin to delete a slice, with all that runs on it. Returns before it is deleted."""
        ...


@dataclass(frozen=True, slots=True)
class Announcement:
    """An announcement that this machine will be taken away or maintained."""

    text: str
    ends_machine: bool = True
    """True if the job cannot stay on this machine."""
    notice: float | None = None
    """How many seconds the machine stays, if the source knows that. Such a source announces when
    the job must begin to save."""


class AnnouncementSource(Protocol):
    """A source that may know that this machine will be taken away."""

    quick: bool
    """Whether the first look returns at once on a healthy machine."""

    @property
    def pause(self) -> float:
        """Seconds to wait between two looks."""
        ...

    def look(self) -> Announcement | None:
        """Returns the announcement, if there is one; may block.

        Raises:
            Exception: the source could not be asked; `PreemptionWatch` reports it and asks again.
        """
        ...
