"""Keeps one guard process alive while its supervisor, or its agent on another host, runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from supervisor.adapters.kernel.reactor import Reactor
from supervisor.adapters.processes.guard_client import GuardClient
from supervisor.core.events import Noticed
from supervisor.host.notice import Notice
from supervisor.ports import Clock

_PAUSE = 0.05


class GuardStartError(Exception):
    """The Python interpreter of this process cannot be started once more, for the guard."""


@contextmanager
def keep_guard(reactor: Reactor, clock: Clock) -> Iterator[GuardClient]:
    """Have a guard for the block. It starts the processes of the job, and kills them if this
    supervisor dies. If the guard ends, another one takes its place.

    Raises:
        GuardStartError: see the class.
    """

    def tell(told: Notice) -> None:
        reactor.post(Noticed(clock.now(), told))

    try:
        guard = GuardClient(tell)
    except (PermissionError, FileNotFoundError) as error:
        raise GuardStartError(
            f"{sys.executable} cannot be started: {error.strerror}; run supervise with a Python "
            "that this user may execute, or as another user"
        ) from error
    watched: list[int] = []

    def watch() -> None:
        watched.append(os.dup(guard.pidfd))  # the guard's own is closed when the guard is replaced
        reactor.watch(watched[0], ended)

    def forget() -> None:
        while watched:
            reactor.forget(watched[0])
            os.close(watched.pop())

    def ended() -> None:
        forget()
        mend()

    def mend() -> None:
        if guard.replace_if_dead():
            watch()
        else:
            reactor.call_later(_PAUSE, mend)

    watch()
    try:
        yield guard
    finally:
        forget()
        guard.dismiss()
