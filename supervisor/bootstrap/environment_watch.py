"""Notes each change that the program makes in its environment, with its place among the imports.

A standby may have made some of the changes ahead, for its imports. Its worker has the environment
of any other worker, so the program makes them again. If it does not, or sets other values, what was
prepared does not fit, and the program is started again without it.

Loaded at each start of a program, so it imports next to nothing.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from _typeshed import StrOrBytesPath

_MAX_CHANGES = 1000
_STANDARD_LIBRARY = os.path.dirname(os.__file__) + "/"


class ExpectedChanges:
    """The values that a standby has set for its imports, and that the program has still to set."""

    def __init__(
        self,
        values: dict[str, list[str | None]] | None = None,
        start_cold: Callable[[str], None] = lambda why: None,
    ) -> None:
        """`values` are those of each variable, in their order (None: it is removed). `start_cold`
        starts the program again; it gets the reason, and does not return."""
        self._values = values or {}
        self._start_cold = start_cold

    def check(self) -> None:
        """Start again unless the program has made all of them."""
        if self._values:
            names = ", ".join(sorted(self._values))
            self._start_cold(f"the program does not set {names} this time")

    def take(self, name: str, value: str | None) -> bool:
        """Take note that the program changes a variable. Returns whether that was expected; if
        another value was, start again."""
        if name not in self._values:
            return False
        values = self._values[name]
        if value != values.pop(0):
            self._start_cold(f"the program sets {name} to another value this time")
        if not values:
            del self._values[name]
        return True


class EnvironmentWatch:
    """Watches `os.putenv` and `os.unsetenv`, which `os.environ` calls too."""

    def __init__(self, expected: ExpectedChanges, is_here: Callable[[], bool]) -> None:
        """`is_here` tells whether this is the worker's process, not one forked from it."""
        self._expected = expected
        self._is_here = is_here
        self.changes: list[tuple[str, str, str | None, str]] = []
        """For each unexpected change the last module that was imported before it, the name, the
        value (None: it was removed), and the installed module whose import makes it (or "")."""

    def begin(self) -> None:
        """Watch from now on."""
        put, remove = os.putenv, os.unsetenv

        def putenv(name: StrOrBytesPath, value: StrOrBytesPath, /) -> None:
            self._note(name, value)
            put(name, value)

        def unsetenv(name: StrOrBytesPath, /) -> None:
            self._note(name, None)
            remove(name)

        os.putenv, os.unsetenv = putenv, unsetenv

    def _note(self, name: StrOrBytesPath, value: StrOrBytesPath | None) -> None:
        if not self._is_here() or len(self.changes) >= _MAX_CHANGES:
            return
        key, text = os.fsdecode(name), os.fsdecode(value) if value is not None else None
        if not self._expected.take(key, text):
            self.changes.append((next(reversed(sys.modules)), key, text, _import_under_way()))


def _import_under_way() -> str:
    """Returns the installed module that the program is importing, with all that this imports; "":
    none."""
    found = ""
    frame: FrameType | None = sys._getframe(3)  # of `os`, which calls our function
    while frame is not None:
        code, name = frame.f_code, frame.f_globals.get("__name__", "")
        if (
            code.co_name == "<module>"
            and name != "__main__"
            and is_installed_file(code.co_filename)
        ):
            found = name
        frame = frame.f_back
    return found


def is_of_a_package(file: str) -> bool:
    """Whether a file belongs to an installed package, not to Python itself."""
    return "/site-packages/" in file or "/dist-packages/" in file


def is_installed_file(file: str) -> bool:
    """Whether a file belongs to an installed package or to Python's standard library."""
    return is_of_a_package(file) or file.startswith(_STANDARD_LIBRARY)
