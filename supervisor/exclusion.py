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
from supervisor.adapters.lease import Lease, LeaseTakenError, LeaseTimes, is_shared
from supervisor.adapters.lock import DirectoryLock, LockUnsupportedError
from supervisor.adapters.reactor import Reactor
from supervisor.adapters.storage import LocalStorage
from supervisor.core.exit_codes import ExitCode
from supervisor.ports import Clock

_CHECK_INTERVAL = 1.0
_LAST_WORDS = 10.0

Check = Callable[[], None]
"""Raises where model_dir may not be ours any more; to be called after every wait."""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """By what means a model_dir is kept to one supervisor."""

    flock: bool = True
    lease: LeaseTimes | None = None

    @classmethod
    def of(cls, model_dir: Path) -> Exclusion:
        """What the directory's file system asks for."""
        return cls(lease=LeaseTimes() if is_shared(model_dir) else None)


@contextmanager
def owned(
    model_dir: Path,
    clock: Clock,
    reactor: Reactor,
    guard: Guard,
    exclusion: Exclusion,
    say: Callable[[str], None],
) -> Iterator[Check]:
    """Own model_dir until the end of the block.

    Raises:
        LockHeldError, LeaseHeldError: it is somebody else's.
        OSError: it cannot be used.
    """
    with ExitStack() as stack:
        if exclusion.flock:
            with suppress(LockUnsupportedError):  # then `is_shared` is true as well
                stack.callback(DirectoryLock(model_dir, clock.wall()).release)
        if exclusion.lease is None:
            yield lambda: None
            return

        def lost(error: Exception) -> None:
            """In the lease's thread. The main thread has `check`, but it may hang."""
            guard.kill_now()
            time.sleep(_LAST_WORDS)
            os._exit(_code(error))

        lease = Lease(
            LocalStorage(model_dir, writer=f".{uuid.uuid4().hex}"),
            exclusion.lease,
            on_renewed=guard.kill_unless_renewed,
            on_lost=lost,
            say=say,
        )
        lease.acquire()
        stack.callback(lease.release)

        def check_again() -> None:
            lease.check()
            reactor.call_later(_CHECK_INTERVAL, check_again)

        check_again()
        yield lease.check


def _code(error: Exception) -> ExitCode:
    return ExitCode.OWNED if isinstance(error, LeaseTakenError) else ExitCode.CANNOT_WRITE
