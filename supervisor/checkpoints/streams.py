"""Whether a file of msgpack or of pickle opcodes is complete: a walk that skips what it can.

Both formats are a row of small heads, some of which say how many bytes follow. The walk reads the
heads alone, so a file of gigabytes costs as many reads as it has values. Nothing is loaded, and no
opcode of a pickle is carried out. A file of more values than `_MAX_VALUES` is called incomplete.
"""

from __future__ import annotations

import pickletools
from io import BufferedReader, FileIO

from supervisor.checkpoints.formats import size_of

_MAX_VALUES = 1_000_000
_MAX_DEPTH = 64
_MAX_LINE = 64 << 10

_FIXED = {
    **dict.fromkeys((0xC0, 0xC2, 0xC3), 0),
    0xCC: 1,
    0xCD: 2,
    0xCE: 4,
    0xCF: 8,
    0xD0: 1,
    0xD1: 2,
    0xD2: 4,
    0xD3: 8,
    0xCA: 4,
    0xCB: 8,
    0xD4: 2,
    0xD5: 3,
    0xD6: 5,
    0xD7: 9,
    0xD8: 17,
}
"""The bytes that follow a head of msgpack."""
_SIZED = {
    0xC4: (1, 0),
    0xC5: (2, 0),
    0xC6: (4, 0),
    0xC7: (1, 1),
    0xC8: (2, 1),
    0xC9: (4, 1),
    0xD9: (1, 0),
    0xDA: (2, 0),
    0xDB: (4, 0),
}
"""The bytes of the length that follows a head, and how many more bytes come than it says."""
_HOLDERS = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""The bytes of the count that follows a head, and how many values each of the counted has."""
MAPS = {*range(0x81, 0x90), 0xDE, 0xDF}
"""Heads of a map that is not empty."""

_OPCODES = {opcode.code.encode("latin-1"): opcode.arg for opcode in pickletools.opcodes}
_WIDTHS = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
_PROTO = b"\x80"


def is_msgpack(file: FileIO) -> bool:
    """True if the file is one map of msgpack that is not empty, and nothing else."""
    size, reader = size_of(file), _reader_of(file)
    start = reader.peek(1)[:1]
    if not start or start[0] not in MAPS:
        return False
    left = [1]
    for _ in range(_MAX_VALUES):
        head = reader.read(1)
        if not head:
            return False
        left[-1] -= 1
        inside = _values_inside(reader, head[0])
        if inside is None or len(left) > _MAX_DEPTH:
            return False
        if inside:
            left.append(inside)
        while left and not left[-1]:
            left.pop()
        if not left:
            return reader.tell() == size
        if reader.tell() > size:
            return False
    return False


def is_pickle(file: FileIO) -> bool:
    """True if the file is one or more pickles of protocol 2 or later: the STOP opcode of the last
    one is the last byte, and is reached opcode by opcode.

    The beginning of such a file that ends between two pickles looks complete.
    """
    size, reader = size_of(file), _reader_of(file)
    is_begin = True
    for _ in range(_MAX_VALUES):
        code = reader.read(1)
        if is_begin and code != _PROTO:
            return False
        is_begin = code == b"."
        if is_begin and reader.tell() == size:
            return True
        if code not in _OPCODES or not _skip_argument(reader, code, size):
            return False
    return False


def _reader_of(file: FileIO) -> BufferedReader:
    """Returns a reader of the same open file, which the caller closes."""
    return BufferedReader(FileIO(file.fileno(), closefd=False))


def _values_inside(reader: BufferedReader, head: int) -> int | None:
    """Skips a value of msgpack after its `head`; returns how many values are in it. None: that is
    no head, or the file ends."""
    if head <= 0x7F or head >= 0xE0:
        return 0
    if head <= 0x9F:
        return (head & 0xF) * (1 if head & 0x10 else 2)
    if head <= 0xBF:
        reader.seek(head & 0x1F, 1)
        return 0
    if head in _HOLDERS:
        width, values = _HOLDERS[head]
        count = _number(reader, width, "big")
        return None if count is None else count * values
    if head in _SIZED:
        width, more = _SIZED[head]
        length = _number(reader, width, "big")
        if length is None:
            return None
        reader.seek(length + more, 1)
        return 0
    if head in _FIXED:
        reader.seek(_FIXED[head], 1)
        return 0
    return None


def _skip_argument(reader: BufferedReader, code: bytes, size: int) -> bool:
    """Skips the argument of an opcode; False: it ends behind the file, or a line is too long."""
    argument = _OPCODES[code]
    if argument is None:
        return True
    if argument.n >= 0:
        return _skip(reader, argument.n, size)
    if argument.n in _WIDTHS:
        length = _number(reader, _WIDTHS[argument.n], "little")
        return length is not None and _skip(reader, length, size)
    lines = 2 if argument.name == "stringnl_noescape_pair" else 1
    return all(reader.readline(_MAX_LINE).endswith(b"\n") for _ in range(lines))


def _skip(reader: BufferedReader, length: int, size: int) -> bool:
    """Skips bytes; False: the file of `size` bytes has fewer. No length is given to the system
    unchecked: a file system refuses what is beyond its largest file."""
    if length > size - reader.tell():
        return False
    reader.seek(length, 1)
    return True


def _number(reader: BufferedReader, width: int, order: str) -> int | None:
    data = reader.read(width)
    return (
        int.from_bytes(data, "big" if order == "big" else "little") if len(data) == width else None
    )
