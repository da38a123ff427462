"""Writes small files for readers outside of the supervisor, and tells once of one that fails."""

from __future__ import annotations

from collections.abc import Callable

from supervisor.host.notice import Notice, Tell


class UnwritableOnce:
    """Tells of a file that cannot be written: once, until it could be written again."""

    def __init__(self, file: str, what: str, tell: Tell) -> None:
        """`what` goes on after the file's name, with `{}` for the reason."""
        self._file = file
        self._what = what
        self._tell = tell
        self._is_told = False

    def attempt(self, write: Callable[[], object]) -> None:
        """Call `write`; the first of several errors in a row is told."""
        try:
            write()
        except OSError as error:
            if not self._is_told:
                text = f"{self._file} {self._what.format(error.strerror or error)}"
                self._tell(Notice("file-unwritable", text, place=self._file, reason=error.strerror))
            self._is_told = True
        else:
            self._is_told = False
