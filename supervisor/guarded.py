"""Keeps a guard process beside this supervisor, and another one should it end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from supervisor.adapters.guard import Guard
from supervisor.adapters.reactor import Reactor
from supervisor.core.events import Noticed
from supervisor.ports import Clock

_PAUSE = 1.0


@contextmanager
def guarded(reactor: Reactor, clock: Clock, mark: str) -> Iterator[Guard]:
    """Have what carries `mark` killed whenever this supervisor dies."""
    guard = Guard(mark)

    def ended() -> None:
        reactor.forget(guard.pidfd)
        reactor.call_later(_PAUSE, replace)  # whatever ends it at once is not to be fed

    def replace() -> None:
        guard.replace()
        reactor.watch(guard.pidfd, ended)
        reactor.post(Noticed(clock.now(), "the guard process was killed: there is another one"))

    reactor.watch(guard.pidfd, ended)
    try:
        yield guard
    finally:
        reactor.forget(guard.pidfd)
        guard.dismiss()
