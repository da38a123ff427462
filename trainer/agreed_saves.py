"""A save of several processes ends alike in all of them: it is committed, or given up.

By itself, a process of Orbax whose write fails leaves the save, and the others wait for it for 20
minutes. Here each process waits for all of its own writes, says whether they failed, and learns
from the others the same, before the first one commits and says whether that failed. All of this is
in Orbax's background thread, and over the coordination service: no device takes part.

Only an error that may pass is agreed on. Any other ends its own process at once, and the supervisor
ends the others.
"""

# mypy: disable-error-code="attr-defined"
from __future__ import annotations

import errno
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from trainer import distributed
from trainer.retries import first_line, may_pass


class GivenUpError(OSError):
    """All processes have given a save up, because it failed in one of them for a moment."""

    def __init__(self, text: str, own: Exception | None) -> None:
        super().__init__(text)
        self.errno = errno.EAGAIN
        self.own = own
        """What failed in this process; None: it has only heard of it."""


class NoFolderError(OSError):
    """The folders of a save could not be made. The other processes wait for these, and cannot be
    told before that wait ends."""


class AgreedSaves:
    """The saves of this process, which are those of all processes."""

    def __init__(self) -> None:
        """Begin with no save."""
        self._numbers = itertools.count(1)
        self._ended: Future[None] | None = None

    def install(self, commits: Any) -> None:
        """Have `commits`, which waits for Orbax's writes in the background, wait for the agreement
        of all processes instead."""
        start = commits.start_async_commit

        def start_agreed(
            directory: Any, commit_futures: Sequence[Any], on_commit_callback: Callable[[], None]
        ) -> None:
            self._ended = ended = Future[None]()
            key = f"supervise/save/{next(self._numbers)}"
            save = _AgreedSave(key, commit_futures, on_commit_callback, ended)
            start(directory, [save], lambda: None)

        commits.start_async_commit = start_agreed

    def check(self, *, wait: bool) -> None:
        """Raise the error that ended this process's part of the last save, if it is one that does
        not pass. With `wait`, wait until that part has ended."""
        if self._ended is not None and (wait or self._ended.done()):
            self._ended.result()


@dataclass(frozen=True, slots=True)
class _AgreedSave:
    """What Orbax takes for its one write of a save."""

    key: str
    writes: Sequence[Any]
    commit: Callable[[], None]
    ended: Future[None]

    def result(self, timeout: float | None = None) -> None:
        """Write and commit. `timeout` is in seconds, for each wait.

        Raises:
            GivenUpError: it failed for a moment in some process.
            Exception: it failed for good in this one.
        """
        try:
            self._agreed("write", partial(self._write, timeout), timeout)
            self._agreed("commit", self.commit if distributed.is_first() else _nothing, timeout)
        except GivenUpError:
            self.ended.set_result(None)
            raise
        except BaseException as error:
            self.ended.set_exception(error)
            raise
        self.ended.set_result(None)

    def _write(self, timeout: float | None) -> None:
        """Wait for every write, also when one has failed for a moment: none may go on into the next
        save."""
        failed = None
        for write in self.writes:
            try:
                write.result(timeout=timeout)
            except Exception as error:
                if not _may_pass(error):
                    raise
                failed = failed or error
        if failed is not None:
            raise failed

    def _agreed(self, what: str, action: Callable[[], None], timeout: float | None) -> None:
        """Do a part of the save, and wait for all processes to have done theirs."""
        failed = None
        try:
            action()
        except Exception as error:
            if not _may_pass(error):
                raise
            failed = error
        told = distributed.told_by_all(
            f"{self.key}/{what}", None if failed is None else first_line(failed), timeout
        )
        if told:
            text = "; ".join(f"process {number}: {line}" for number, line in sorted(told.items()))
            raise GivenUpError(text, failed) from failed


def _may_pass(error: Exception) -> bool:
    return may_pass(error) and not isinstance(error, NoFolderError)


def _nothing() -> None:
    """Do nothing: another process commits."""
