"""A worker group in its true state, and the protocol by which the machine learns what happens to
it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from supervisor.diagnosis.failure import WorkerExit
from supervisor.diagnosis.success import Success
from supervisor.protocol.adjustments import Adjustments
from supervisor.protocol.failure_record import FailureRecord
from supervisor.protocol.messages import Message

LEFTOVER = -1
"""The rank of a process that a worker left behind."""


class Watcher(Protocol):
    """Is told what truly happens: the machine of the supervisor that runs now."""

    def ended(self, group: Group) -> None:
        """A process of the group ended."""
        ...

    def said(self, group: Group, message: Message) -> None:
        """A worker of the group sent a message."""
        ...

    def committed(self, group: Group, step: int) -> None:
        """A checkpoint of the group was committed."""
        ...

    def restored(self, group: Group) -> None:
        """The group has its state, and reports which one."""
        ...

    def snapped(self, group: Group, step: int) -> None:
        """The group took a snapshot."""
        ...

    def got_sigterm(self, group: Group, rank: int) -> None:
        """A rank of the group got a SIGTERM, from anybody."""
        ...

    def recorded(self, group: Group, record: FailureRecord) -> None:
        """A rank of the group left a failure record."""
        ...

    def printed(self, group: Group) -> None:
        """The group printed that its work is done."""
        ...


@dataclass(slots=True, eq=False)
class Group:
    """A worker group in its true state."""

    attempt: int
    phase: int
    success: Success
    ranks: tuple[int, ...]
    owner: Watcher
    """The machine of the supervisor that started it."""
    alive: set[int]
    resumed_from: int | None
    step: int
    adjustments: Adjustments
    adjustable: tuple[str, ...]
    """What it could still adjust."""
    num_devices: int | None
    units: tuple[str, ...]
    """The units that it runs on."""
    from_snapshot: bool = False
    """It resumed from a snapshot, not from a checkpoint."""
    wrong: bool = False
    """It failed by itself in some way, and was not only ended from outside."""
    committed: bool = False
    """It committed a checkpoint above all earlier ones."""
    exits: list[WorkerExit] = field(default_factory=list)
    stuck: bool = False
    """It makes no progress any more: it hangs, or its collective waits for a dead rank."""
    deaf: bool = False
    """It is so stuck that it does not react to SIGTERM."""
    told_step: int | None = None
    """The last step that a worker has reported."""
    asked: bool = False
    printed: bool = False
    """It printed that its work is done."""
    dying: bool = False
    recorded: set[int] = field(default_factory=set)
    """The ranks that left a failure record."""
    guard_died: bool = False
    """The guard was killed after this group had begun, and before the next one did."""
    lost_guard: bool = False
    """The guard was killed, and this group's workers with it."""
    killed: set[int] = field(default_factory=set)
    """The ranks that got SIGKILL."""
    told_to_stop: set[int] = field(default_factory=set)
    """The ranks that got a SIGTERM from somebody other than the supervisor."""

    @property
    def has_begun(self) -> bool:
        """Whether it has trained a step; before its first step it initialises."""
        return self.step > (self.resumed_from or 0)

    @property
    def workers(self) -> list[int]:
        """The ranks that live."""
        return [rank for rank in self.ranks if rank in self.alive]

    @property
    def did_its_work(self) -> bool:
        """Whether it did the work of its phase. If nothing but the exit code tells, an exit without
        being asked counts as success."""
        codes = [known.code for known in self.exits]
        if codes != [self.success.exit_code] * len(self.ranks):
            return False
        stopped = self.asked or self.told_to_stop
        return self.printed if self.success.is_proof else not stopped
