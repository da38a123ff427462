"""Keeps the tokens of data in a file, so that data may be larger than memory, and a restart reads
them at once.

Below a supervisor the file stays in model_dir for later attempts: its name is a digest of all that
decides its content, and an older one of other data for the same config is removed. Elsewhere it is
a temporary one. Either way it is mapped: what is not read takes no memory.

A damaged file would train on other tokens without a word. So behind the tokens there is a checksum
of each block of them, which is checked when the block is first read. The last bytes say that the
file was written to its end and not cut since.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from supervisor.protocol import environment, removal
from supervisor.protocol.reading import UnreadableError, descriptor_of, open_error, open_file
from trainer.tokenizer import Ids

HasRead = Callable[[int], None]
_SUFFIX = ".tokens"
_BLOCK = 1 << 14
"""Tokens that have a checksum: to compute it takes some ten microseconds."""
_MARK = b"tokens\0\2"
"""Follows the checksums; behind it stand, in eight bytes each, the number of the tokens and the
checksum of the checksums."""
_END = len(_MARK) + 16
_TOKEN = 4
"""Bytes of a token, and of a checksum."""
_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class DamagedTokensError(ValueError):
    """Tokens are not those that were stored; the text says what to do."""


@dataclass(frozen=True, slots=True)
class StoredTokens:
    """Tokens in a file, which is read as far as they are asked for."""

    _tokens: Ids
    _checksums: npt.NDArray[np.uint32]
    _file: Path | None
    """None: a temporary file."""
    _checked: npt.NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_checked", np.zeros(len(self._checksums), np.bool_))

    def __len__(self) -> int:
        return len(self._tokens)

    def between(self, start: int, stop: int) -> Ids:
        """Return the tokens from `start` to before `stop`.

        Raises:
            DamagedTokensError: they are not those that were stored. The file is removed.
        """
        for block in range(start // _BLOCK, -(-min(stop, len(self)) // _BLOCK)):
            if not self._checked[block]:
                self._check(block)
        return self._tokens[start:stop]

    def _check(self, block: int) -> None:
        if _checksum(self._tokens[block * _BLOCK : (block + 1) * _BLOCK]) != self._checksums[block]:
            if self._file is None:
                raise DamagedTokensError(
                    "the temporary file with the tokens of the data was changed: another attempt "
                    "makes it again; suspect the disk or the memory of this machine"
                )
            _remove(self._file)
            raise DamagedTokensError(
                f"{self._file}: block {block} of the tokens does not have the content that was "
                "written: nothing was trained on it. The file is removed, and another attempt "
                "makes it again; if this comes back, suspect the disk or the memory of this machine"
            )
        self._checked[block] = True


def stored(
    pieces: Iterable[Ids], identity: str, has_read: HasRead = lambda tokens: None
) -> StoredTokens:
    """Return all `pieces` one after the other, mapped from a file. They are only read if no earlier
    process has stored those of the same `identity`; meanwhile `has_read` is called with the number
    of tokens that are. Where an identity has the form `CONFIG-DATA`, one file is kept for each
    config."""
    directory = os.environ.get(environment.TOKENS)
    if directory is None:
        with tempfile.TemporaryFile(prefix="supervise-tokens-") as file:
            return _mapped(file, *_write(pieces, file, has_read), None)
    return _kept(pieces, Path(directory), identity, has_read)


def _kept(pieces: Iterable[Ids], folder: Path, identity: str, has_read: HasRead) -> StoredTokens:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{identity}{_SUFFIX}"
    # Several processes may want the same file: the first one writes it, the others wait for that.
    config, _, data = identity.partition("-")
    with _locked(folder / f"{config}.lock"):
        found = _stored_before(path)
        if found is not None:
            return found
        temporary = folder / f".{path.name}.tmp"
        try:
            with removal.create_temporary(temporary, below=folder) as file:
                written = _write(pieces, file, has_read)
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:  # a full disk, which checkpoints need more
            with suppress(OSError):
                removal.remove_file(removal.Place.TEMPORARY, temporary, below=folder)
            raise
        for other in folder.glob(f"{config}-*{_SUFFIX}") if data else ():
            if other != path:  # whoever still reads it has it mapped
                _remove(other)
        with open_file(path) as stored_file:
            return _mapped(stored_file, *written, path)


def _remove(path: Path) -> None:
    """Remove a file of tokens. Where that fails, it stays: it costs room alone, or the next attempt
    finds the same damage."""
    with suppress(OSError):
        removal.remove_file(removal.Place.TOKENS, path, below=path.parent)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock on the file `path`, which is made if it is not there."""
    try:
        descriptor = descriptor_of(path, path.parent, _LOCK)
    except OSError as error:
        raise open_error(path, error) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UnreadableError(path, "is not a regular file")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _stored_before(path: Path) -> StoredTokens | None:
    """Return the tokens in `path`; None: there is no such file, or it is cut."""
    try:
        file = open_file(path)
    except FileNotFoundError:
        return None
    with file:
        size = file.seek(0, os.SEEK_END)
        if size < _END:
            return None
        file.seek(-_END, os.SEEK_END)
        end = file.read()
        num_tokens = int.from_bytes(end[len(_MARK) : -8], "little")
        begin = num_tokens * _TOKEN
        if size != begin + _TOKEN * _num_blocks(num_tokens) + _END:
            return None
        file.seek(begin)
        checksums = file.read(size - begin - _END) or b""
        if end != _end(num_tokens, checksums):
            return None
        return _mapped(file, num_tokens, checksums, path)


def _write(pieces: Iterable[Ids], file: BinaryIO, has_read: HasRead) -> tuple[int, bytes]:
    """Write `pieces`, and what says that they are all; returns the number of tokens, and their
    checksums."""
    num_tokens, checksum = 0, 0
    finished = list[int]()
    for piece in pieces:
        data = memoryview(np.ascontiguousarray(piece, np.int32).tobytes())
        file.write(data)
        while data:
            part = data[: (_BLOCK - num_tokens % _BLOCK) * _TOKEN]
            checksum = zlib.crc32(part, checksum)
            num_tokens += len(part) // _TOKEN
            data = data[len(part) :]
            if num_tokens % _BLOCK == 0:
                finished.append(checksum)
                checksum = 0
        has_read(num_tokens)
    if num_tokens % _BLOCK:
        finished.append(checksum)
    checksums = np.array(finished, "<u4").tobytes()
    file.write(checksums + _end(num_tokens, checksums))
    file.flush()
    return num_tokens, checksums


def _checksum(tokens: Ids) -> int:
    return zlib.crc32(tokens.tobytes())


def _num_blocks(num_tokens: int) -> int:
    return -(-num_tokens // _BLOCK)


def _end(num_tokens: int, checksums: bytes) -> bytes:
    return _MARK + b"".join(n.to_bytes(8, "little") for n in (num_tokens, zlib.crc32(checksums)))


def _mapped(
    file: BinaryIO | FileIO, num_tokens: int, checksums: bytes, path: Path | None
) -> StoredTokens:
    tokens: Ids = np.empty(0, np.int32)
    if num_tokens:
        tokens = np.memmap(file, np.int32, "r", shape=(num_tokens,))
    return StoredTokens(tokens, np.frombuffer(checksums, "<u4"), path)
