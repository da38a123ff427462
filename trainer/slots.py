"""Two slots in memory: one always holds the newest complete record, even if the writer dies.

A record is a header and a payload of many pieces. It is written into the slot that does not hold
the newest record. That slot's header is erased first and written last, so a slot is either complete
or empty (double buffering; as with two superblocks of a file system, the newer complete one
counts). Writes before a process's death stay in the memory in order: there is no disk or cache.

Each piece has a CRC-32 in the header, and the header has its own. CRC-32 is by far the fastest
checksum in the standard library (measured: 6.5 GB/s; Adler-32 3.9, SHA-1 2.0, SHA-256 1.9), and
finds every error burst of up to 32 bits. It does not protect against forgery: only the trainer can
write to this memory.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from errno import ENOMEM
from typing import Any

import numpy as np

from supervisor.protocol.reading import parse_object
from trainer.host_memory import available

Piece = memoryview
"""A contiguous view of bytes (format `B`)."""

_MAGIC = b"SUPSNAP1"
_PREFIX = struct.Struct("<8sII")
"""Magic and version; length and CRC-32 of the header's body."""
HEADER = 1 << 20
"""Bytes reserved for a header; pages that are never written take no memory."""
_PAGE = 1 << 12
_MOST_AT_ONCE = 1 << 30
"""Most bytes in one system call: the kernel accepts less than 2 GiB."""
_THREADS = 2


class DamagedRecordError(Exception):
    """A piece does not match its checksum."""


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a record: what can be known without reading its payload."""

    number: int
    """The step of a snapshot; the newer of two records has the greater number."""
    about: Mapping[str, Any]
    """The writer's description of the record; can be stored as JSON."""
    checksums: tuple[int, ...]
    slot: int


class Slots:
    """The two slots, for payloads whose pieces have the given sizes."""

    def __init__(self, memory: int, sizes: Sequence[int]) -> None:
        """`memory` is a descriptor that supports pwrite and ftruncate; `sizes` are in bytes."""
        self._memory = memory
        self._sizes = tuple(sizes)
        self._size = HEADER + -(-sum(sizes) // _PAGE) * _PAGE

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever written, or all was cleared."""
        return os.fstat(self._memory).st_size == 0

    def claim(self) -> None:
        """Allocate the memory of both slots now, so that a later write cannot fail for lack of it.

        Raises:
            OSError: there is not enough memory.
        """
        wanted, left = 2 * sum(self._sizes), available()
        if wanted > left:
            raise OSError(ENOMEM, f"they would take {wanted} bytes of memory, {left} are left")
        for slot in (0, 1):
            begin = slot * self._size + HEADER
            os.posix_fallocate(self._memory, begin, self._size - HEADER)

    def write(self, number: int, about: Mapping[str, Any], pieces: Sequence[Piece]) -> None:
        """Write a record. The newest one before it stays readable, also after this one is complete.

        Raises:
            OSError: there is no room.
            ValueError: `about` is too large.
        """
        newest = self.newest()
        start = 0 if newest is None or newest.slot == 1 else self._size
        os.pwrite(self._memory, bytes(_PREFIX.size), start)
        for (begin, _), piece in zip(_offsets(start, self._sizes), pieces, strict=True):
            _write(self._memory, piece, begin)
        checksums = [zlib.crc32(piece) for piece in pieces]
        body = json.dumps({"number": number, "about": about, "checksums": checksums}).encode()
        if len(body) > HEADER - _PREFIX.size:
            raise ValueError(f"a header of {len(body)} bytes is too large")
        os.pwrite(self._memory, body, start + _PREFIX.size)
        os.pwrite(self._memory, _PREFIX.pack(_MAGIC, len(body), zlib.crc32(body)), start)

    def newest(self) -> Header | None:
        """Return the header of the newest complete record; None: there is none."""
        found = [header for slot in (0, 1) if (header := self._header(slot)) is not None]
        return max(found, key=lambda header: header.number, default=None)

    def read(self, header: Header, sizes: Sequence[int]) -> Iterator[Piece]:
        """Yield the pieces of a record in order; `sizes` are in bytes. A thread reads and verifies
        the next pieces while the caller works on the one before.

        Raises:
            DamagedRecordError: a piece does not match its checksum.
        """
        offsets = _offsets(header.slot * self._size, sizes)
        with ThreadPoolExecutor(_THREADS, "snapshot") as pool:
            yield from pool.map(self._verified, offsets, header.checksums)

    def clear(self) -> None:
        """Remove both records, and free the memory."""
        os.ftruncate(self._memory, 0)

    def _header(self, slot: int) -> Header | None:
        start = slot * self._size
        prefix = os.pread(self._memory, _PREFIX.size, start)
        if len(prefix) < _PREFIX.size:
            return None
        magic, length, checksum = _PREFIX.unpack(prefix)
        if magic != _MAGIC or not 0 < length <= HEADER:  # the CRC-32 of nothing is 0
            return None
        body = os.pread(self._memory, length, start + _PREFIX.size)
        if zlib.crc32(body) != checksum:
            return None
        try:
            told = parse_object(body, "the header of a snapshot")
            return Header(int(told["number"]), told["about"], tuple(told["checksums"]), slot)
        except (ValueError, KeyError, TypeError):  # complete, but not written by `write`
            return None

    def _verified(self, place: tuple[int, int], checksum: int) -> Piece:
        begin, size = place
        piece = np.empty(size, np.uint8).data  # a bytearray would be set to zero first
        _read(self._memory, piece, begin)
        if zlib.crc32(piece) != checksum:
            raise DamagedRecordError(f"{size} bytes at {begin} are not what was written")
        return piece


def _offsets(start: int, sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield (offset, size) of each piece, in bytes."""
    begin = start + HEADER
    for size in sizes:
        yield begin, size
        begin += size


def _write(descriptor: int, piece: Piece, begin: int) -> None:
    done = 0
    while done < len(piece):
        done += os.pwrite(descriptor, piece[done : done + _MOST_AT_ONCE], begin + done)


def _read(descriptor: int, piece: Piece, begin: int) -> None:
    done = 0
    while done < len(piece):
        count = os.preadv(descriptor, [piece[done : done + _MOST_AT_ONCE]], begin + done)
        if count == 0:
            raise DamagedRecordError(f"there are only {done} of {len(piece)} bytes at {begin}")
        done += count
