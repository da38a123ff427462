"""The one reader for files that somebody else may have written.

A worker, another user or a damaged disk can leave anything where a file of ours should be: a FIFO
that blocks the process that opens it, a link to `/dev/zero`, a terabyte of zeros, 200,000 `[`. A
process that reads such a file with `Path.read_bytes` hangs, runs out of memory or crashes. Here
only regular files are read. The last component of a path is never followed as a link, and the size
is bounded before a byte is read. Whatever is wrong with a file or its content is one kind of error,
`UnreadableError`.

Three errors are kept apart, because they mean different things to a caller:

* `FileNotFoundError`, `NotADirectoryError`: there is no such file.
* `UnreadableError`: something is there that nobody can use, until a person or program acts.
* any other `OSError`: the file cannot be read now (EIO, EACCES, ESTALE). This never means that
  there is no such file.

Reading may still take as long as the file system likes: see `supervisor.host.aside`.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from io import FileIO
from pathlib import Path
from typing import Any

from .messages import printable

SMALL = 1 << 20
"""Bytes. Any file that holds one record is far smaller."""
MAX_DEPTH = 64
"""Most levels of nesting. The JSON that we write has fewer than ten."""
MAX_DIGITS = 300
"""Most digits of an integer; a longer one does not fit a float."""

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_LINKED = _FLAGS & ~os.O_NOFOLLOW
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class UnreadableError(OSError, ValueError):
    """A file or object cannot be used; the text says what is wrong with it, and what to do."""

    def __init__(
        self, name: str | Path, why: str, remedy: str = "move it away", number: int = errno.EINVAL
    ) -> None:
        """`why` continues the sentence that begins with `name`, the file or object: `is a FIFO`."""
        super().__init__(number, f"{why}: {remedy}", str(name))
        self.why = why

    def __str__(self) -> str:
        return f"{printable(str(self.filename))} {self.strerror}"


def open_file(path: str | Path, *, below: Path | None = None, linked: bool = False) -> FileIO:
    """Open the regular file `path` for reading, unbuffered.

    If its last component is a link, it is not followed. With `below`, a folder that the caller
    trusts, no other component beneath that folder may be a link either. With `linked`, the last
    component may be a link: for a path that a person has named.

    Raises:
        FileNotFoundError, NotADirectoryError: there is no such file.
        UnreadableError: it is no regular file.
        OSError: it cannot be opened now.
    """
    try:
        descriptor = descriptor_of(Path(path), below, _LINKED if linked else _FLAGS)
    except OSError as error:
        raise open_error(path, error) from error
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise UnreadableError(path, f"is {_kind(mode)}, not a regular file")
        return FileIO(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read(path: str | Path, limit: int = SMALL, *, below: Path | None = None) -> bytes:
    """Read all of the regular file `path`, of at most `limit` bytes; for `below` see `open_file`.

    Raises:
        FileNotFoundError, NotADirectoryError: there is no such file.
        UnreadableError: it is no regular file, or is larger.
        OSError: it cannot be read now.
    """
    with open_file(path, below=below) as file:
        return read_open_file(file, path, limit)


def read_open_file(file: FileIO, path: str | Path, limit: int) -> bytes:
    """Read all of the open `file`, of at most `limit` bytes; errors as `read`."""
    size = os.fstat(file.fileno()).st_size
    if size <= limit:
        data = _up_to(file, limit + 1)
        size = len(data)  # the file may have grown since its size was read
    if size > limit:
        why = f"has {size} bytes, more than {limit}"
        raise UnreadableError(path, why, number=errno.EFBIG)
    return data


def read_end(path: str | Path, size: int, *, below: Path | None = None) -> bytes:
    """Read the last `size` bytes of the regular file `path` of any size; errors as `open_file`."""
    with open_file(path, below=below) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - size))
        return _up_to(file, size)


def read_text(path: str | Path, limit: int = SMALL, *, below: Path | None = None) -> str:
    """Read a UTF-8 file as `read` does; anything else is an `UnreadableError`."""
    return decode_text(read(path, limit, below=below), path)


def read_json(path: str | Path, limit: int = SMALL, *, below: Path | None = None) -> Any:
    """Return the value in the JSON file `path`; errors as `read` and `parse_json`."""
    return parse_json(read(path, limit, below=below), path)


def read_object(
    path: str | Path, limit: int = SMALL, *, below: Path | None = None
) -> dict[str, Any]:
    """Return the object in the JSON file `path`; errors as `read` and `parse_object`."""
    return parse_object(read(path, limit, below=below), path)


def decode_text(data: bytes, name: str | Path) -> str:
    """Return `data`, the content of `name`, decoded from UTF-8.

    Raises:
        UnreadableError: it is not UTF-8.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _damaged(name, f"is not UTF-8 at byte {error.start}") from None


def parse_json(data: bytes, name: str | Path) -> Any:
    """Return the value in `data`, JSON that is the content of `name`.

    The value is safe to work with: it is not nested deeper than `MAX_DEPTH`, no integer has more
    than `MAX_DIGITS` digits, and every string can be encoded (half a surrogate pair becomes a
    question mark). NaN and Infinity are allowed, because Python writes them to JSON.

    Raises:
        UnreadableError: it is not such JSON.
    """
    decoded = decode_text(data, name)
    try:
        value = _DECODER.decode(decoded)
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at")
        raise _damaged(name, f"is not JSON: {what} at character {error.pos}") from None
    except RecursionError:
        raise _damaged(name, f"is not usable JSON: {_TOO_DEEP}") from None
    except ValueError as error:
        raise _damaged(name, f"is not usable JSON: {error}") from None
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH and _is_deep(value):
        raise _damaged(name, f"is not usable JSON: {_TOO_DEEP}")
    if _SURROGATE.search(data):
        return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    return value


def parse_object(data: bytes, name: str | Path) -> dict[str, Any]:
    """Return the object in `data`, JSON that is the content of `name`; errors as `parse_json`."""
    value = parse_json(data, name)
    if not isinstance(value, dict):
        raise _damaged(name, "is not a JSON object")
    return value


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"an integer has {len(digits)} digits")
    return int(digits)


_DECODER = json.JSONDecoder(parse_int=_integer)
_TOO_DEEP = f"it is nested deeper than {MAX_DEPTH} levels"


def descriptor_of(path: Path, below: Path | None, flags: int, mode: int = 0o666) -> int:
    """Open `path` with `flags` and return the descriptor. Beneath `below`, if given, no folder on
    the way may be a link."""
    if below is None:
        return os.open(path, flags, mode)
    *folders, last = path.relative_to(below).parts
    here = os.open(below, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in folders:
            above, here = here, os.open(name, _FOLDER, dir_fd=here)
            os.close(above)
        return os.open(last, flags, mode, dir_fd=here)
    finally:
        os.close(here)


def open_error(path: str | Path, error: OSError) -> OSError:
    """Return the error to raise for the `error` of opening `path`: an `UnreadableError` if another
    try cannot help."""
    if error.errno == errno.ELOOP:
        return UnreadableError(path, "is a link, which is not followed", number=errno.ELOOP)
    if error.errno == errno.ENXIO:
        return UnreadableError(path, "is a socket, a device or a FIFO", number=errno.ENXIO)
    return OSError(error.errno, error.strerror, str(path))


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def _up_to(file: FileIO, size: int) -> bytes:
    chunks = []
    while size > 0 and (chunk := file.read(size)):
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)


def _damaged(name: str | Path, why: str) -> UnreadableError:
    return UnreadableError(name, why, "remove it, or write it anew", errno.EILSEQ)


def _is_deep(value: Any) -> bool:
    """True if `value` is nested deeper than `MAX_DEPTH`. It uses no recursion."""
    level, depth = [value] if isinstance(value, dict | list) else [], 0
    while level and depth <= MAX_DEPTH:
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        depth += 1
    return depth > MAX_DEPTH
