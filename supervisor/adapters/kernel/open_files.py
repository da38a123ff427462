"""Finds what processes have open for writing, from /proc."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from supervisor.host import tree
from supervisor.protocol.reading import read

_MAX_PROCESSES = 200
_MAX_FILES = 2000
"""The most descriptors of a process that are looked at."""
_MAX_BYTES = 1 << 16
_DELETED = " (deleted)"
_ELSEWHERE = ("/dev/", "/proc/", "/sys/")

Identity = tuple[int, int]
"""The device and the inode of a file."""


def is_open_by(pids: Iterable[int], files: Collection[Identity]) -> bool:
    """True if one of the processes `pids` has one of `files` open for writing now.

    A process that ends meanwhile, or that may not be looked at, has none. Neither has one that maps
    a file into its memory and has closed it.
    """
    return any(_is_written(pid, name) for pid in pids for name in _descriptors_of(pid, files))


def written_by(pids: Iterable[int], is_wanted: Callable[[str], bool]) -> set[str]:
    """Returns the paths of the files that the processes `pids`, and those below them, have open for
    writing now, if the path `is_wanted`. A process that may not be looked at has none."""
    processes = {*pids}
    for pid in tuple(processes):
        processes.update(child for child, _ in tree.descendants(pid, frozenset()))
    found: set[str] = set()
    for pid in islice(processes, _MAX_PROCESSES):
        with suppress(OSError):  # it has ended, or belongs to another user
            found.update(_written_by(pid, is_wanted))
    return found


def _written_by(pid: int, is_wanted: Callable[[str], bool]) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    with os.scandir(folder) as descriptors:
        names = [entry.name for entry in islice(descriptors, _MAX_FILES)]
    for name in names:
        with suppress(OSError):  # it was closed meanwhile
            target = os.readlink(f"{folder}/{name}")  # noqa: PTH115 (not always a path)
            is_file = target.startswith("/") and not target.startswith(_ELSEWHERE)
            is_there = is_file and not target.endswith(_DELETED)
            if is_there and is_wanted(target) and _is_written(pid, name):
                yield target


def _descriptors_of(pid: int, files: Collection[Identity]) -> Iterator[str]:
    """Yields the descriptors of a process that are open on one of `files`."""
    with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as descriptors:
        for entry in descriptors:
            with suppress(OSError):  # it was closed meanwhile
                seen = entry.stat()
                if (seen.st_dev, seen.st_ino) in files:
                    yield entry.name


def _is_written(pid: int, descriptor: str) -> bool:
    try:
        told = read(Path(f"/proc/{pid}/fdinfo/{descriptor}"), _MAX_BYTES)
    except OSError:  # it was closed meanwhile
        return False
    flags = told.partition(b"flags:")[2].split(maxsplit=1)
    return bool(flags) and bool(int(flags[0], 8) & (os.O_WRONLY | os.O_RDWR))
