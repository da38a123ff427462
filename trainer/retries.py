"""Tries storage again that fails for a moment, so that a shared disk's hiccup costs no restart.

Only errors that may pass are tried again, and only a few times: then the error is raised, and the
supervisor decides. Each further try is told in the log. The clients of buckets retry requests by
themselves; what they give up and call retriable is tried again here, too.
"""

from __future__ import annotations

import errno
import os
import random
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from trainer.log import log

T = TypeVar("T")

_PASSING = frozenset((errno.EIO, errno.EAGAIN, errno.ETIMEDOUT))
_OF_TENSORSTORE = re.compile(": (" + "|".join(re.escape(os.strerror(n)) for n in _PASSING) + r")\b")
"""How tensorstore tells the error of a system call: it raises no OSError."""


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a storage operation is tried, and how long the pauses are."""

    pauses: tuple[float, ...] = (0.5, 2.0, 8.0)
    """Seconds before each further try; each is varied by half of it, at random."""
    sleep: Callable[[float], None] = time.sleep
    chance: Callable[[], float] = random.random
    """Returns a number from 0 to 1."""

    def pause(self, failures: int, what: str, error: Exception) -> float:
        """Return the seconds to wait after so many failures of `what` in a row, and tell it. Errors
        as `seconds`."""
        seconds = self.seconds(failures, error)
        log.warning("storage-retried", what=what, error=first_line(error), seconds=seconds)
        return seconds

    def seconds(self, failures: int, error: Exception) -> float:
        """Return the seconds to wait after so many failures in a row. If `error` does not pass, or
        came once too often, it is raised."""
        if self.are_used_up(failures) or not may_pass(error):
            raise error
        return self.pauses[failures - 1] * (0.5 + self.chance())

    def are_used_up(self, failures: int) -> bool:
        """Whether there is no other try after so many failures in a row."""
        return failures > len(self.pauses)

    def run(self, what: str, action: Callable[[], T]) -> T:
        """Return what `action` returns, after several tries if need be. `what` names it."""
        failures = 0
        while True:
            try:
                return action()
            except Exception as error:
                failures += 1
                seconds = self.pause(failures, what, error)
            self.sleep(seconds)


def first_line(error: Exception) -> str:
    """Return the first line of what `error` says; its type if it says nothing."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def may_pass(error: BaseException) -> bool:
    """Whether `error`, or one that caused it, is known to pass by itself."""
    while True:
        if isinstance(error, OSError) and error.errno in _PASSING:
            return True
        if _OF_TENSORSTORE.search(str(error)) or _is_retriable_in_bucket(error):
            return True
        context = None if error.__suppress_context__ else error.__context__
        if (cause := error.__cause__ or context) is None:
            return False
        error = cause


def _is_retriable_in_bucket(error: BaseException) -> bool:
    client = sys.modules.get("gcsfs.retry")  # it is loaded where there is a bucket
    return client is not None and bool(client.is_retriable(error))
