"""Writes the file of an acceptance run atomically. It replaces nothing but a regular file."""

from __future__ import annotations

from pathlib import Path

from supervisor.adapters.stores.storage import LocalStorage


class CannotWriteError(Exception):
    """The file cannot be written; the text says which, why, and what to do."""


class Output:
    """The file that `--out` names."""

    def __init__(self, path: Path) -> None:
        """Check that `path` names a file or nothing, in a folder that exists.

        Raises:
            CannotWriteError: it does not.
        """
        self._path = path
        try:
            self._target = path.resolve()
            if not self._target.parent.is_dir():
                raise self._refused(f"there is no folder {self._target.parent}: make it first")
            if self._target.exists() and not self._target.is_file():
                raise self._refused("it is no regular file: name another one")
        except (OSError, RuntimeError) as error:  # too long a name, or symlinks in a circle
            raise self._refused(f"{error}; name another place") from error

    def write(self, text: str) -> None:
        """Replace the content of the file by `text`.

        Raises:
            CannotWriteError: an error; the file is as it was before.
        """
        try:
            LocalStorage(self._target.parent).replace(self._target.name, text.encode())
        except OSError as error:
            raise self._refused(f"{error.strerror or error}; name another place") from error

    def _refused(self, why: str) -> CannotWriteError:
        return CannotWriteError(f"--out {self._path}: {why}")
