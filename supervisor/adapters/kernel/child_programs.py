"""Finds the programs that a program has started, from /proc.

A launcher is told by a config where its program is to save, and tells it on the command line.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from supervisor.host import tree
from supervisor.protocol.reading import read

_MAX_PROCESSES = 200
"""The most processes below one that are looked at."""
_MAX_BYTES = 1 << 20
_HELPER = b"multiprocessing"
"""In the command line of a process that does a part of its parent's work."""


def child_programs(pids: Iterable[int]) -> Iterator[tuple[list[str], Path]]:
    """Yields the command line of each program that runs below one of the processes `pids`.

    It comes with each working directory that it may have begun in: its own, and that of its parent,
    because it may have changed its own since. A process that was only forked is no program of its
    own. A process that may not be looked at is left out.
    """
    for pid in pids:
        for child, seen in islice(tree.descendants(pid, frozenset()), _MAX_PROCESSES):
            with suppress(OSError):  # it has ended, or belongs to another user
                line = _command_line(child)
                if line and _HELPER not in line and line != _command_line(seen.parent):
                    words = line.removesuffix(b"\0").split(b"\0")
                    for process in (child, seen.parent):
                        here = os.readlink(f"/proc/{process}/cwd")  # noqa: PTH115 (as text)
                        yield [os.fsdecode(word) for word in words], Path(here)


def _command_line(pid: int) -> bytes:
    return read(Path(f"/proc/{pid}/cmdline"), _MAX_BYTES)
