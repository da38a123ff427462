"""What the kernel tells of a process that outlives its parent: its name, pipes and handlers."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from signal import SIGTERM

from supervisor.host.aside import aside
from supervisor.protocol.messages import printable
from supervisor.protocol.reading import read

_MAX_COMMAND = 120
_MAX_BYTES = 1 << 16
_READS, _WRITES = (0,), (1, 2)


class Reaction(StrEnum):
    """What SIGTERM does to a process."""

    HANDLED = "handles SIGTERM, so it can save and exit"
    DEFAULT = "has no handler for SIGTERM, so it ends at once and cannot save"
    IGNORED = "ignores SIGTERM, so it runs until SIGKILL"
    UNKNOWN = "has ended"


def reaction(pid: int) -> Reaction:
    """What SIGTERM would do to the process now."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return Reaction.UNKNOWN
    masks = dict(line.split(":\t", 1) for line in lines if line.startswith("Sig"))
    bit = 1 << (SIGTERM - 1)
    if int(masks["SigCgt"], 16) & bit:
        return Reaction.HANDLED
    return Reaction.IGNORED if int(masks["SigIgn"], 16) & bit else Reaction.DEFAULT


def command(pid: int, redact: Callable[[str], str]) -> str:
    """The command line of a process without its secrets, or its short name where only that can be
    had.

    The kernel reads the command line from the memory of the process, which may take for ever where
    that waits for a disk; the short name is always there.
    """
    place = Path(f"/proc/{pid}")
    name = ""
    with suppress(OSError):
        data = aside("/proc").ask(lambda: read(place / "cmdline", _MAX_BYTES))
        name = data.replace(b"\0", b" ").decode(errors="replace").strip()
    with suppress(OSError):
        name = name or (place / "comm").read_text(errors="replace").strip()
    name = redact(name)  # before it is cut: half a secret is not known as one
    return printable(name if len(name) <= _MAX_COMMAND else f"{name[:_MAX_COMMAND]}...")


@dataclass(frozen=True, slots=True)
class Pipes:
    """The pipes that a process reads its input from and writes its output to."""

    reads: frozenset[str]
    writes: frozenset[str]


def pipes(pid: int) -> Pipes:
    """Those of a process; none where it has ended."""
    return Pipes(_pipes(pid, _READS), _pipes(pid, _WRITES))


def _pipes(pid: int, descriptors: Iterable[int]) -> frozenset[str]:
    found = set()
    for descriptor in descriptors:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{descriptor}")  # noqa: PTH115 (it is no path)
        except OSError:
            continue
        if target.startswith("pipe:"):
            found.add(target)
    return frozenset(found)


def left_alone(found: dict[int, Pipes], handling: Container[int]) -> set[int]:
    """Which processes get no SIGTERM yet, because they end with their input, as `tee` does behind
    a trainer. A trainer whose `tee` ended first could not print while it saves.

    Of processes that feed each other, as a program and a coprocess do, each waits for the others:
    those that are `handling` SIGTERM get it first, or all of them where none does.
    """
    feeds = {
        pid: {to for to, its in found.items() if to != pid and own.writes & its.reads}
        for pid, own in found.items()
    }
    reached = {pid: _reached(pid, feeds) for pid in found}
    return {
        to
        for pid in found
        for to in reached[pid]
        if pid not in reached[to] or (pid in handling and to not in handling)
    }


def _reached(pid: int, feeds: dict[int, set[int]]) -> set[int]:
    """All that `pid` feeds, directly or through others."""
    reached: set[int] = set()
    new = feeds[pid]
    while new:
        reached |= new
        new = set().union(*(feeds[each] for each in new)) - reached
    return reached
