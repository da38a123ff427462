"""Whether a file that was just written is complete, by the structure of its format.

A process that is killed while it writes leaves the beginning of a file. These functions tell such a
beginning from the whole: all that a format says of its own size must agree with the file. They
load nothing, and they say nothing about the values in the file.

Anybody may have written the file. So every function reads a bounded part of it, and returns False
for nonsense. An OSError means that the file cannot be read now.
"""

from __future__ import annotations

import re
import struct
import zipfile
from io import FileIO
from os import SEEK_END, SEEK_SET

from supervisor.protocol.reading import UnreadableError, parse_object

_MAX_DIRECTORY = 8 << 20
"""The largest central directory of a zip archive, in bytes: that of 80,000 arrays. To read it takes
many times as much memory. A file with more is not known to be complete."""
_MAX_HEADER = 4 << 20
"""The largest header of a safetensors file: that of 30,000 tensors."""
_MAX_ARRAYS = 200_000
_MAX_LINE = 64 << 10
_ZIP_ENTRY = 30
"""The fixed bytes of an entry before its name and its data."""
_ZIP_END = 22
"""The bytes of the end of an archive, before its comment."""

_NPY = re.compile(
    rb"\{'descr': '([<>|=])([a-zA-Z])(\d{1,9})(?:\[\w+\])?', 'fortran_order': (?:True|False), "
    rb"'shape': \(([\d, ]*)\),? ?\}\s*"
)
_HDF5 = b"\x89HDF\r\n\x1a\n"
_SUPERBLOCK = 64
"""The bytes of a superblock that are read; no file of HDF5 is smaller."""
_HDF5_VARIANTS = {0: (13, 24, 2), 1: (13, 28, 2), 2: (9, 12, 2), 3: (9, 12, 2)}
"""By the version of the superblock: where it has the size of an address, where the addresses begin,
and which of them is the end of the file."""
_OPEN_FOR_WRITING = 0b101
"""Flags of the superblock: a process has the file open for writing, alone or with readers."""
_TABLE_END = struct.pack("<Q", 0xDB4775248B80FB57)
_TABLE_FOOTER = 48


class _Bounded:
    """A file for `zipfile` that refuses to read more at once than a directory has."""

    def __init__(self, file: FileIO) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        wanted = size if size >= 0 else size_of(self._file) - self._file.tell()
        if wanted > _MAX_DIRECTORY:
            raise zipfile.BadZipFile("the directory is too large")
        return _read(self._file, wanted)

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        try:
            return self._file.seek(offset, whence)
        except OSError as error:
            if offset < 0 or (whence == SEEK_END and -offset > size_of(self._file)):
                raise zipfile.BadZipFile("a place before the file") from error
            raise

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True


def size_of(file: FileIO) -> int:
    """Returns the size of an open file."""
    here = file.tell()
    end = file.seek(0, SEEK_END)
    file.seek(here)
    return end


def is_zip(file: FileIO) -> bool:
    """True if a zip archive begins where the file begins, and is complete."""
    size = size_of(file)
    try:
        with zipfile.ZipFile(_Bounded(file)) as archive:
            entries, directory = archive.infolist(), archive.start_dir
            end = size - _ZIP_END - len(archive.comment)
    except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error):
        return False
    if end < 0:  # it was shorter at first: its writer is at work
        return False
    ends = (one.header_offset + _ZIP_ENTRY + one.compress_size for one in entries)
    if not entries or min(one.header_offset for one in entries) or max(ends) > directory:
        return False
    return _read_at(file, 0, 4) == b"PK\3\4" and _read_at(file, end, 4) == b"PK\5\6"


def is_safetensors(file: FileIO) -> bool:
    """True if the header is whole, and the file ends where the last tensor ends."""
    size, start = size_of(file), file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or not 2 <= length <= min(_MAX_HEADER, size - 8):
        return False
    try:
        header = parse_object(_read(file, length), "header")
    except UnreadableError:
        return False
    ends = [0]
    for name, tensor in header.items():
        if name != "__metadata__":
            offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
            if not (isinstance(offsets, list) and [type(at) for at in offsets] == [int, int]):
                return False
            ends.append(offsets[1])
    return len(ends) > 1 and size == 8 + length + max(ends)


def is_npy(file: FileIO) -> bool:
    """True if the file is a row of npy arrays, up to its end. A line of JSON may come first, as in
    the examples of equinox.

    The beginning of such a file that ends between two arrays looks complete.
    """
    size, at = size_of(file), 0
    first = _read(file, 6)
    if first.startswith(b"{"):
        line = first + _read(file, _MAX_LINE)
        at = line.find(b"\n") + 1
        if not at:
            return False
    for _ in range(_MAX_ARRAYS):
        file.seek(at)
        length = _length_of_npy(file)
        if length is None or at + length > size:
            return False
        at += length
        if at == size:
            return True
    return False


def is_hdf5(file: FileIO) -> bool:
    """True if the superblock names the end of the file as the end, and nobody writes to it."""
    size, block = size_of(file), _read(file, _SUPERBLOCK)
    if not block.startswith(_HDF5) or len(block) < _SUPERBLOCK:
        return False
    variant = _HDF5_VARIANTS.get(block[8])
    if variant is None:
        return False
    width_at, addresses, end_at = variant
    width = block[width_at]
    if width not in (4, 8) or (block[8] == 3 and block[11] & _OPEN_FOR_WRITING):
        return False
    start = addresses + end_at * width
    return int.from_bytes(block[start : start + width], "little") == size


def ends_as_table(file: FileIO) -> bool:
    """True if the file ends with the footer of a TensorFlow index."""
    size = size_of(file)
    if size < _TABLE_FOOTER:
        return False
    return _read_at(file, size - len(_TABLE_END), len(_TABLE_END)) == _TABLE_END


def _length_of_npy(file: FileIO) -> int | None:
    """Returns the bytes of the array that begins here; None: no array begins here."""
    start = _read(file, 12)
    if not start.startswith(b"\x93NUMPY") or len(start) < 12:
        return None
    width = 2 if start[6] == 1 else 4
    length = int.from_bytes(start[8 : 8 + width], "little")
    if length > _MAX_LINE:
        return None
    file.seek(8 + width - len(start), 1)
    match = _NPY.fullmatch(_read(file, length))
    if match is None or match[2] == b"O":
        return None
    items = int(match[3]) * (4 if match[2] == b"U" else 1)
    for number in match[4].replace(b" ", b"").split(b","):
        items *= int(number[:19]) if number else 1
    return 8 + width + length + items


def _read_at(file: FileIO, place: int, size: int) -> bytes:
    file.seek(place)
    return _read(file, size)


def _read(file: FileIO, size: int) -> bytes:
    """Returns the next `size` bytes of the file, less only at its end."""
    chunks = []
    while size > 0 and (chunk := file.read(size)):
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)
