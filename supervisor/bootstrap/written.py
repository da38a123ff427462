"""Reports where this process writes what may be a checkpoint.

Python tells an audit hook of every directory that is made, every file that is opened for writing
and every rename. The names of checkpoints end with their step (`300`, `step_300`, `ckpt-300.pt`),
or have it before a word and a suffix (`model_300_best.pkl`). A path with such a name is reported,
once for each directory and kind of name. A kind is told apart by all but its last number; of kinds
that only other numbers tell apart (`seed1_step_300`), a few are reported. A report proves to the
supervisor that this job writes there, and not another one beside it. The supervisor finds out what
is committed.

Code in C++ or Rust opens files without an audit event (`torch.save`, safetensors, h5py). So two
more things are reported: each folder that the program makes, also if it is there already
(`os.makedirs(out, exist_ok=True)`), and what is given to the functions in `NATIVE_WRITERS`.

The hook is called for all audit events of the program, so it returns early, and imports nothing.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import ModuleType
    from typing import Any

_MAX_DIRECTORIES = 64
_MAX_KINDS, _MAX_NUMBERS = 12, 4
"""The most directories, kinds of names in each, numbers apart, and numbers of such a kind that are
reported: a program may write its cache to thousands of files with a hash for a name."""
_STEP = "0123456789"
_DIGITS = {ord(digit): None for digit in _STEP}
_MAX_FOLDERS = 64
"""The most folders that are reported because the program makes them."""
_MAX_LINE = 4096
_WRITES = os.O_WRONLY | os.O_RDWR
_EVENTS = {"open": 0, "os.mkdir": 0, "os.rename": 1}
"""The audit events that are looked at, with the index of the path that comes into being."""

NATIVE_WRITERS = (
    ("torch.serialization", "save", 1, "f"),
    ("safetensors._safetensors_rust", "serialize_file", 1, "filename"),
    ("h5py.h5f", "create", 0, "name"),
)
"""Functions that open a file without an audit event: the module, the name, and the place and the
name of the argument that is the path."""


class WrittenPaths:
    """An audit hook that passes on what may be a checkpoint."""

    def __init__(self, say: Callable[[bytes], bool], is_here: Callable[[], bool]) -> None:
        """`say` sends a line to the supervisor, and returns False if that failed; `is_here` says
        whether this is still the worker's process."""
        self._say = say
        self._is_here = is_here
        self._known: dict[str, dict[str, set[str]]] = {}
        """What stands before the last number in the names that were reported, by directory and by
        the name without numbers."""
        self._made: set[str] = set()
        """The folders that were reported because the program makes them."""

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Take note of an audit event. Whatever is wrong with it, the program's own call goes
        on."""
        if event not in _EVENTS:
            return
        try:
            if event == "open":
                path, _, flags = arguments
                if flags & _WRITES:
                    self._note(path)
            else:
                self._note(arguments[_EVENTS[event]], is_made=event == "os.mkdir")
        except Exception:
            return

    def watch_writer(
        self,
        module: ModuleType,
        name: str,
        index: int,
        key: str,
        frames: AbstractContextManager[None],
    ) -> None:
        """Take note of what is given to the function `name` of `module` as the path: its argument
        number `index`, or `key`. `frames` removes our frames from tracebacks."""
        from contextlib import suppress
        from functools import wraps

        write = getattr(module, name)

        @wraps(write)
        def noting(*arguments: Any, **named: Any) -> Any:
            with frames:
                paths = arguments[index : index + 1] or (named.get(key),)
                with suppress(Exception):  # the function says what is wrong with its arguments
                    self._note(paths[0])
                return write(*arguments, **named)

        package = module.__name__.partition(".")[0]
        for other, each in list(sys.modules.items()):  # a standby may have imported them ahead
            if other.partition(".")[0] == package and vars(each).get(name) is write:
                setattr(each, name, noting)

    def _note(self, path: Any, *, is_made: bool = False) -> None:
        if isinstance(path, int) or path is None:
            return
        text = os.fsdecode(path).rstrip("/")
        name = text.rpartition("/")[2]
        if name.endswith(".pyc"):
            return
        if (before := _before_the_step(name)) is None:
            if is_made:
                self._note_made(os.path.abspath(text))
            return
        text = os.path.abspath(text)
        folder, kind = text.rpartition("/")[0], name.translate(_DIGITS)
        if self._is_told(folder, kind, before) or not self._is_here():
            return
        if len(line := _line(text)) <= _MAX_LINE and self._say(line):
            self._known.setdefault(folder, {}).setdefault(kind, set()).add(before)

    def _is_told(self, folder: str, kind: str, before: str) -> bool:
        """Whether such a name was reported, or too many others were."""
        kinds = self._known.get(folder)
        if kinds is None:
            return len(self._known) >= _MAX_DIRECTORIES
        told = kinds.get(kind)
        if told is None:
            return len(kinds) >= _MAX_KINDS
        return before in told or len(told) >= _MAX_NUMBERS

    def _note_made(self, folder: str) -> None:
        name = folder.rpartition("/")[2]
        is_hidden = name.startswith((".", "__"))
        if is_hidden or folder in self._made or len(self._made) >= _MAX_FOLDERS:
            return
        if len(line := _line(folder)) <= _MAX_LINE and self._is_here() and self._say(line):
            self._made.add(folder)


def _before_the_step(name: str) -> str | None:
    """Return what stands before the number that may be the step; None: there is none.

    That is the number with which `name` ends before its last dot, or before its first one; else the
    last one before the last dot that neither a letter nor a digit follows.
    """
    stem = name.rpartition(".")[0]
    for end in (stem, name.partition(".")[0]):
        if end and end[-1] in _STEP:
            return end.rstrip(_STEP)
    for at in range(len(stem) - 1, 0, -1):
        if stem[at - 1] in _STEP and not stem[at].isalnum():
            return stem[:at].rstrip(_STEP)
    return None


def _line(path: str) -> bytes:
    """Returns the message `wrote` of the worker protocol. `json` would slow down the start of a
    program. A byte that is no UTF-8 is half of a surrogate pair in `path`."""
    quoted = path.replace("\\", "\\\\").replace('"', '\\"')
    if not quoted.isprintable():
        quoted = "".join(
            f"\\u{ord(char):04x}" if char < " " or "\ud800" <= char <= "\udfff" else char
            for char in quoted
        )
    return b'{"v":1,"kind":"wrote","path":"%s"}\n' % quoted.encode()
