"""metrics.jsonl in model_dir: what was measured at each step, one JSON object a line.

Our trainer writes the file for its own steps, the supervisor for those that a command reports. Each
step has one line: whoever goes back to an earlier step first cuts off what comes after it. A line
that a kill or a full disk left incomplete goes with it.

A cut file is a new file under the old name, so that a copy elsewhere (`adapters.stores.mirror`) can
tell growth from a cut, and a power cut leaves either the old file or the new one.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from io import BufferedReader, FileIO
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO

from . import reading, removal

NAME = "metrics.jsonl"
EVALUATION = "evaluation_"
"""Prefix of the numbers of an evaluation, which has a line of its own."""

DATA_WAIT = "data_wait"
"""The share of the time in which training waits for data."""
MFU = "mfu"
"""The model FLOPs utilisation, a share."""
DEVICE_USE = (DATA_WAIT, MFU)
"""Keys that say how well the devices were used."""
OF_THE_RUN = frozenset({"time", "attempt", *DEVICE_USE})
"""Keys that say how a step was run, not what it computed: equal steps differ in them."""

_APPENDING = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WINDOW = 1 << 16
"""Bytes that are read at once. A line that does not fit is none of ours."""
_MOST = 1 << 30
"""Bytes. A larger file is not thinned out: whoever thins out his lines in time never has one."""

Record = Mapping[str, Any]


def encoded(at: float, phase: str, attempt: int, step: int, measured: Mapping[str, float]) -> bytes:
    """Return the line of a step, with its newline. `at` is a Unix time. A number that JSON does not
    have (NaN, Inf) becomes null."""
    ours = {"time": round(at, 3), "phase": phase, "attempt": attempt, "step": step}
    numbers = {
        name: value if isfinite(value) else None
        for name, value in measured.items()
        if name not in ours
    }
    return json.dumps({**ours, **numbers}, separators=(", ", ": ")).encode() + b"\n"


def append(path: Path, lines: bytes) -> None:
    """Add all of `lines` to the file, or nothing.

    Raises:
        OSError: they cannot be written, or the file is none of ours (a link, a FIFO).
    """
    with _opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        rest = memoryview(lines)
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            os.ftruncate(file.fileno(), size)
            raise


def sync(path: Path) -> None:
    """Return once all that was appended is on stable storage. Errors as `append`."""
    with _opened(path) as file:
        os.fsync(file.fileno())


def cut(path: Path, is_superseded: Callable[[Record], bool]) -> None:
    """Cut the lines off the end of the file that are superseded, or are none.

    Raises:
        OSError: the file cannot be read or replaced; it is as it was.
    """
    try:
        file = reading.open_file(path, below=path.parent)
    except FileNotFoundError:
        return
    with file:
        size = os.fstat(file.fileno()).st_size
        kept = _end_of_kept(file, size, is_superseded)
        if kept == size:
            return

        def copy_kept(copy: BinaryIO) -> None:
            done = 0
            while done < kept:
                done += os.sendfile(copy.fileno(), file.fileno(), done, kept - done)

        _replace(path, copy_kept)


def size(path: Path) -> int:
    """Return the size of the file in bytes; 0: there is none."""
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def thin_out(path: Path) -> None:
    """Remove every second line of the file. Errors as `cut`."""
    with reading.open_file(path, below=path.parent) as file:
        size = os.fstat(file.fileno()).st_size
        if size > _MOST:
            raise reading.UnreadableError(path, f"has {size} bytes, more than {_MOST}")
        _replace(path, lambda copy: copy.writelines(islice(_lines(file), 1, None, 2)))


def _lines(file: FileIO) -> Iterator[bytes]:
    """Yields the lines of the file, without those that are too long."""
    buffered = BufferedReader(file)
    is_whole = True
    while line := buffered.readline(_WINDOW):
        was_whole, is_whole = is_whole, line.endswith(b"\n")
        if was_whole and is_whole:
            yield line


def _end_of_kept(file: FileIO, size: int, is_superseded: Callable[[Record], bool]) -> int:
    """Return where the last line ends that is not superseded; 0: there is none."""
    end = size
    while end:
        start = max(0, end - _WINDOW)
        data = os.pread(file.fileno(), end - start, start)
        last = data.rfind(b"\n") + 1
        while last:
            begin = data.rfind(b"\n", 0, last - 1) + 1
            if start and not begin:
                break  # the line may begin before the window
            record = _record(data[begin:last])
            if record is not None and not is_superseded(record):
                return start + last
            last = begin
        end = start + last if start + last < end else start
    return 0


def _replace(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Replace the file durably by a new one with what `write` writes."""
    temporary = path.with_name(f".{path.name}.tmp")
    with removal.create_temporary(temporary, below=path.parent) as copy:
        write(copy)
        copy.flush()
        os.fsync(copy.fileno())
    temporary.replace(path)
    _sync_folder(path.parent)


def _record(line: bytes) -> Record | None:
    """Return the object in a line; None: it is no line of ours."""
    try:
        record = reading.parse_object(line, NAME)
    except reading.UnreadableError:
        return None
    return record if type(record.get("step")) is int else None


def _opened(path: Path) -> FileIO:
    try:
        descriptor = os.open(path, _APPENDING, 0o666)
    except OSError as error:
        raise reading.open_error(path, error) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise reading.UnreadableError(path, "is not a regular file")
    return FileIO(descriptor, "ab")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
