"""Calls functions that may never return, such as on a hung file system, with a deadline.

A system call that waits for a dead NFS server cannot be interrupted, and a loop that made it would
notice nothing any more, not even SIGTERM. So it runs in a thread of its own. A thread that does not
return in time is abandoned, and while it is stuck its place is not asked again: each place costs at
most one thread and one deadline.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from functools import cache
from typing import TypeVar

T = TypeVar("T")

DEADLINE = 5.0
"""Seconds. A healthy disk answers within milliseconds, one that spins up within these."""


class Aside:
    """Asks one place one question at a time. Not thread-safe."""

    def __init__(self, name: str, deadline: float = DEADLINE) -> None:
        """`name` is the place in messages, as a rule a path."""
        self._name = name
        self._deadline = deadline
        self._thread: threading.Thread | None = None

    def ask(self, question: Callable[[], T]) -> T:
        """Call `question` in another thread; return what it returns, or raise what it raises.

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
        why = "does its file system hang, or are too many entries there?"
        text = f"no answer within {self._deadline:g} s: {why}"
        return TimeoutError(errno.ETIMEDOUT, text, self._name)


@cache
def aside(place: str) -> Aside:
    """Return the main loop's `Aside` for `place`: always the same one."""
    return Aside(place)
