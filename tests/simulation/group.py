"""A worker group as it truly is, and who is told what truly happens to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from supervisor.diagnosis.failure import WorkerExit
from supervisor.diagnosis.success import Success
from supervisor.protocol.adjustments import Adjustments
from supervisor.protocol.failure_record import FailureRecord
from supervisor.protocol.messages import Message

LEFTOVER = -1
"""The "rank" of a process that a worker left behind."""


class Watcher(Protocol):
    """Who is told what truly happens: the world of the supervisor that runs now."""

    def ended(self, group: Group) -> None:
        """A process of some group ended."""
        ...

    def said(self, group: Group, message: Message) -> None:
        """A worker of the group said something."""
        ...

    def committed(self, group: Group, step: int) -> None:
        """A checkpoint of the group was committed."""
        ...

    def restored(self, group: Group) -> None:
        """The group has its state, and says what it is."""
        ...

    def snapped(self, group: Group, step: int) -> None:
        """The group took a snapshot."""
        ...

    def got_sigterm(self, group: Group, rank: int) -> None:
        """A rank of the group got a SIGTERM, from whomever."""
        ...

    def recorded(self, group: Group, record: FailureRecord) -> None:
        """A rank of the group left a failure record."""
        ...

    def printed(self, group: Group) -> None:
        """The group said in its output that its work is done."""
        ...


@dataclass(slots=True, eq=False)
class Group:
    """A worker group, as it truly is."""

    attempt: int
    phase: int
    success: Success
    ranks: tuple[int, ...]
    owner: Watcher
    """The world of the supervisor that started it."""
    alive: set[int]
    resumed_from: int | None
    step: int
    adjustments: Adjustments
    adjustable: tuple[str, ...]
    """What more it could adjust."""
    num_devices: int | None
    units: tuple[str, ...]
    """What it runs on."""
    from_snapshot: bool = False
    """What it resumed from was no checkpoint."""
    wrong: bool = False
    """It was not only ended from outside: it failed in some way of its own."""
    committed: bool = False
    """It committed a checkpoint above all that were there."""
    exits: list[WorkerExit] = field(default_factory=list)
    stuck: bool = False
    """It does not advance any more: a hang, or a collective that waits for a dead rank."""
    deaf: bool = False
    """It is so stuck that it does not hear SIGTERM either."""
    told_step: int | None = None
    """The last step that a worker has told."""
    asked: bool = False
    printed: bool = False
    """It said that its work is done."""
    dying: bool = False
    recorded: set[int] = field(default_factory=set)
    """The ranks that left a failure record."""
    guard_died: bool = False
    """The guard was killed after it had begun, and before another group did."""
    lost_guard: bool = False
    """The guard was killed, and its workers with it."""
    killed: set[int] = field(default_factory=set)
    """The ranks that got SIGKILL."""
    told_to_stop: set[int] = field(default_factory=set)
    """The ranks that got a SIGTERM that the supervisor did not send."""

    @property
    def has_begun(self) -> bool:
        """Whether it has trained a step: before, it initialises."""
        return self.step > (self.resumed_from or 0)

    @property
    def workers(self) -> list[int]:
        """The ranks that live."""
        return [rank for rank in self.ranks if rank in self.alive]

    @property
    def did_its_work(self) -> bool:
        """Whether it did its phase's work. Where nothing else tells, an exit of its own accord is
        all that can be known."""
        codes = [known.code for known in self.exits]
        if codes != [self.success.exit_code] * len(self.ranks):
            return False
        stopped = self.asked or self.told_to_stop
        return self.printed if self.success.is_proof else not stopped
