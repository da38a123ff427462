"""Reports where this process writes what may be a checkpoint.

Python tells an audit hook of every directory that is made, every file that is opened for writing
and every rename. The names of checkpoints end with their step (`300`, `step_300`, `ckpt-300.pt`),
or have it before a word and a suffix (`model_300_best.pkl`). A path with such a name is reported,
once for each directory and kind of name. A kind is told apart by all but its last number; of kinds
that only other numbers tell apart (`seed1_step_300`), a few are reported. A report proves to the
supervisor that this job writes there, and not another one beside it. The supervisor finds out what
is committed.

Another job's folder must not seem to be ours because the program reads or tidies there. The audit
event comes before the call, so the hook can still see what is there. It does not report

* a step that is there already (`os.makedirs(step, exist_ok=True)` makes nothing then);
* another name for a step (a copy of `step_5` as `step_0005`; `step_2` renamed to `old_2`), nor what
  is written below it;
* what is below /proc, /sys or /dev, which save nothing, though names there are numbers
  (`/proc/1/fd/1`);
* below a shell, any folder or file that is there already: nobody knows which program trains.

Code in C++ or Rust opens files without an audit event (`torch.save`, safetensors, h5py). So two
more things are reported: each folder that the program makes, and what is given to the functions in
`NATIVE_WRITERS`.

The hook is called for all audit events of the program, so it returns early, and imports nothing.
"""

from __future__ import annotations

import os
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import ModuleType, TracebackType
    from typing import Any

# Copied from `protocol.environment`, whose imports would slow down every start of a program.
PROGRESS_FD = "SUPERVISE_PROGRESS_FD"
PROGRESS_PIPE = "SUPERVISE_PROGRESS_PIPE"

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
_NO_FILES = ("/proc/", "/sys/", "/dev/")
_MEMORY = "/dev/shm/"
_EVENTS = ("open", "os.mkdir", "os.rename")
"""The audit events that are looked at."""

NATIVE_WRITERS = (
    ("torch.serialization", "save", 1, "f"),
    ("safetensors._safetensors_rust", "serialize_file", 1, "filename"),
    ("h5py.h5f", "create", 0, "name"),
)
"""Functions that open a file without an audit event: the module, the name, and the place and the
name of the argument that is the path."""


class OurFrames:
    """Context manager that removes the bootstrap's traceback entries from an exception."""

    def __init__(self, ours: str) -> None:
        """`ours` is the bootstrap's directory."""
        self._ours = ours

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.forget(error)

    def forget(self, error: BaseException) -> None:
        """Remove the bootstrap's entries from the traceback of `error`."""
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename.startswith(self._ours):
            trace = trace.tb_next
        error.__traceback__ = trace


class WrittenPaths:
    """An audit hook that passes on what may be a checkpoint."""

    def __init__(
        self,
        say: Callable[[bytes], bool],
        is_here: Callable[[], bool],
        *,
        only_new: bool = False,
    ) -> None:
        """`say` sends a line to the supervisor, and returns False if that failed; `is_here` says
        whether this is still the worker's process. With `only_new`, a file that is there already
        is not reported."""
        self._say = say
        self._is_here = is_here
        self._only_new = only_new
        self._known: dict[str, dict[str, set[str]]] = {}
        """What stands before the last number in the names that were reported, by directory and by
        the name without numbers."""
        self._made: set[str] = set()
        """The folders that were reported because the program makes them."""
        self._copies: set[str] = set()
        """Other names that the program gives to steps, each with a slash behind it."""

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
            elif event == "os.mkdir":
                self._note(arguments[0], is_made=True)
            elif not self._is_renamed_step(arguments[0], arguments[1]):
                self._note(arguments[1])
        except Exception:
            return

    def watch_native_writers(
        self,
        when_imported: Callable[[str, Callable[[ModuleType], None]], None],
        frames: AbstractContextManager[None],
    ) -> None:
        """Take note of what is given to the `NATIVE_WRITERS`, once `when_imported` calls for their
        modules. `frames` removes our frames from tracebacks."""

        def watch(name: str, index: int, key: str) -> Callable[[ModuleType], None]:
            def begin(module: ModuleType) -> None:
                if self._is_here() and hasattr(module, name):
                    self.watch_writer(module, name, index, key, frames)

            return begin

        for module, name, index, key in NATIVE_WRITERS:
            when_imported(module, watch(name, index, key))

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
        before = _before_the_step(name)
        if before is None and not is_made:
            return
        text = os.path.abspath(text)
        if text.startswith(_NO_FILES) and not text.startswith(_MEMORY):
            return
        if before is None:
            self._note_made(text)
            return
        folder, kind = text.rpartition("/")[0], name.translate(_DIGITS)
        if self._is_told(folder, kind, before) or not self._is_here():
            return
        if (is_made or self._only_new) and os.path.lexists(text):
            return
        if self._is_copy(folder, name, before):
            return
        if len(line := _line(text)) <= _MAX_LINE and self._say(line):
            self._known.setdefault(folder, {}).setdefault(kind, set()).add(before)

    def _is_told(self, folder: str, kind: str, before: str) -> bool:
        """Whether such a name was reported, or is not to be: too many others were, or it is below
        a copy."""
        if any(map(f"{folder}/".startswith, self._copies)):
            return True
        kinds = self._known.get(folder)
        if kinds is None:
            return len(self._known) >= _MAX_DIRECTORIES
        told = kinds.get(kind)
        if told is None:
            return len(kinds) >= _MAX_KINDS
        return before in told or len(told) >= _MAX_NUMBERS

    def _is_copy(self, folder: str, name: str, before: str) -> bool:
        """Whether the step `name` is in `folder` under another name already."""
        is_copy = _has_other_name(folder, name, before)
        if is_copy and len(self._copies) < _MAX_FOLDERS:
            self._copies.add(f"{folder}/{name}/")
        return is_copy

    def _is_renamed_step(self, old: Any, new: Any) -> bool:
        """Whether a rename gives a step that this process has not written another name, as far as
        is known. A save that is complete loses a suffix, or has been written by this process."""
        source = os.path.abspath(os.fsdecode(old))
        folder, _, name = source.rpartition("/")
        new_name = os.fsdecode(new).rstrip("/").rpartition("/")[2]
        before, new_before = _before_the_step(name), _before_the_step(new_name)
        if before is None or new_before is None:
            return False
        if _number_and_rest(name, before) != _number_and_rest(new_name, new_before):
            return False
        return before not in self._known.get(folder, {}).get(name.translate(_DIGITS), ())

    def _note_made(self, folder: str) -> None:
        name = folder.rpartition("/")[2]
        is_hidden = name.startswith((".", "__"))
        if is_hidden or folder in self._made or len(self._made) >= _MAX_FOLDERS:
            return
        if (self._only_new and os.path.lexists(folder)) or any(
            map(folder.startswith, self._copies)
        ):
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


def _number_and_rest(name: str, before: str) -> tuple[int, str]:
    """Return the step in `name`, which `before` stands before, and what stands behind it."""
    rest = name[len(before) :]
    behind = rest.lstrip(_STEP)
    return int(rest[: len(rest) - len(behind)]), behind


def _has_other_name(folder: str, name: str, before: str) -> bool:
    """Whether the step `name` is in `folder` under a name with more or fewer zeros."""
    step = _number_and_rest(name, before)
    try:
        others = os.listdir(folder)
    except OSError:
        return False
    return any(
        other != name
        and other.startswith(before)
        and _before_the_step(other) == before
        and _number_and_rest(other, before) == step
        for other in others
    )


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


def say(line: bytes) -> bool:
    """Write `line` to the progress pipe; False: this process has none, or the write failed."""
    try:
        descriptor = int(os.environ.get(PROGRESS_FD, ""))
        status = os.fstat(descriptor)
        identity = f"{status.st_dev}:{status.st_ino}"
        if stat.S_ISFIFO(status.st_mode) and identity == os.environ.get(PROGRESS_PIPE):
            os.write(descriptor, line)
            return True
    except (ValueError, OSError):
        pass
    return False
