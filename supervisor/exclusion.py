"""One supervisor per model_dir: the lock of this host, and where others see it too, the lease."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from supervisor.adapters.guard import Guard
from supervisor.adapters.lease import (
    Lease,
    LeasePlace,
    LeaseTakenError,
    LeaseTimes,
    is_shared,
)
from supervisor.adapters.lease_places import LeaseFile
from supervisor.adapters.lock import DirectoryLock, LockUnsupportedError
from supervisor.adapters.reactor import Reactor
from supervisor.adapters.storage import LocalStorage
from supervisor.core.exit_codes import ExitCode
from supervisor.ports import Clock

_CHECK_INTERVAL = 1.0
_LAST_WORDS = 10.0


class ModelDirError(Exception):
    """model_dir cannot be written, so nothing can be started."""


Check = Callable[[], None]
"""Raises where model_dir may not be ours any more; to be called after every wait."""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """By what means a model_dir is kept to one supervisor."""

    flock: bool = True
    lease: LeaseTimes | None = None

    @classmethod
    def of(cls, model_dir: Path, *, in_bucket: bool) -> Exclusion:
        """What the directory's file system asks for; a bucket always asks for a lease."""
        others_see_it = in_bucket or is_shared(model_dir)
        return cls(lease=LeaseTimes() if others_see_it else None)


@dataclass(frozen=True, slots=True)
class Ownership:
    """Of a model_dir."""

    check: Check
    epoch: int = 0
    """Counts the owners, where there is a lease."""


@contextmanager
def owned(
    model_dir: Path,
    clock: Clock,
    reactor: Reactor,
    guard: Guard,
    exclusion: Exclusion,
    say: Callable[[str], None],
    place: LeasePlace | None,
) -> Iterator[Ownership]:
    """Own model_dir until the end of the block, which may end in what the check raises.

    The lease is kept in `place`; None: in a file.

    Raises:
        ModelDirError: it was deleted or moved.
        LockHeldError, LeaseHeldError: it is somebody else's.
        OSError: it cannot be used.
    """
    with ExitStack() as stack:
        checks: list[Check] = []
        if exclusion.flock:
            with suppress(LockUnsupportedError):  # then `is_shared` is true as well
                lock = DirectoryLock(model_dir, clock.wall())
                stack.callback(lock.release)
                checks.append(lambda: _still_there(lock, model_dir))
        ownership = Ownership(_nothing)
        if exclusion.lease is not None:
            file = LocalStorage(model_dir, writer=f".{uuid.uuid4().hex}")
            place = place or LeaseFile(file, exclusion.lease.settle)
            lease = _lease(place, exclusion.lease, guard, say)
            lease.acquire()
            stack.callback(lease.release)
            ownership = Ownership(lease.check, lease.epoch)
            checks.append(lease.check)

        def check_all() -> None:
            for each in checks:
                each()
            reactor.call_later(_CHECK_INTERVAL, check_all)

        check_all()
        yield ownership


def _nothing() -> None:
    """Without a lease nobody can take model_dir over while we hold its lock."""


def _still_there(lock: DirectoryLock, model_dir: Path) -> None:
    """A trainer may run on for hours in a folder that was deleted."""
    if not lock.holds(model_dir):  # or another one, which somebody else may own
        raise ModelDirError(f"{model_dir} was deleted or moved while the job ran")


def _lease(place: LeasePlace, times: LeaseTimes, guard: Guard, say: Callable[[str], None]) -> Lease:
    def lost(error: Exception) -> None:
        """In the lease's thread. The main thread has `check`, but it may hang."""
        guard.kill_now()
        time.sleep(_LAST_WORDS)
        say(f"{error}; run the same command again to resume")
        os._exit(_code(error))

    return Lease(
        place,
        times,
        on_renewed=guard.kill_unless_renewed,
        on_lost=lost,
        say=say,
    )


def _code(error: Exception) -> ExitCode:
    return ExitCode.OWNED if isinstance(error, LeaseTakenError) else ExitCode.CANNOT_WRITE
