"""Asks what may never answer, such as a file system that hangs, without waiting for it for ever.

A system call that waits for a dead NFS server cannot be interrupted, and a loop that made it would
hear nothing any more, SIGTERM included. So it is made in a thread of its own. One that does not
answer in time is left behind, and while it is stuck its place is not asked again: each place costs
one thread at the most, and the wait of one deadline.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from functools import cache
from typing import TypeVar

T = TypeVar("T")

DEADLINE = 5.0
"""Seconds: a disk that is alive answers in some milliseconds, and one that spins up in these."""


class Aside:
    """Asks one place, one question at a time. To be used by one thread."""

    def __init__(self, name: str, deadline: float = DEADLINE) -> None:
        """`name` is what a person calls the place."""
        self._name = name
        self._deadline = deadline
        self._thread: threading.Thread | None = None

    def ask(self, question: Callable[[], T]) -> T:
        """What `question` returns or raises; it is called in another thread.

        Raises:
            TimeoutError: there is no answer in time, an earlier question still has none, or no
                thread can be started to ask.
        """
        if self._thread is not None and self._thread.is_alive():
            raise self._silence()
        answers: list[T] = []
        errors: list[BaseException] = []

        def asked() -> None:
            try:
                answers.append(question())
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=asked, name=f"aside: {self._name}", daemon=True)
        try:
            thread.start()
        except RuntimeError as why:  # no more processes are allowed (pids.max, RLIMIT_NPROC)
            raise TimeoutError(errno.EAGAIN, f"nobody can ask: {why}", self._name) from why
        self._thread = thread
        thread.join(self._deadline)  # signals are handled meanwhile
        if thread.is_alive():
            raise self._silence()
        self._thread = None
        for error in errors:
            raise error
        return answers[0]

    def _silence(self) -> TimeoutError:
        text = f"no answer within {self._deadline:g} s: does its file system hang?"
        return TimeoutError(errno.ETIMEDOUT, text, self._name)


@cache
def aside(place: str) -> Aside:
    """The one that asks `place`, for the main loop."""
    return Aside(place)
