"""Find the survivors of an attempt that end by themselves when their input ends."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HeldPipes:
    """The pipes that a process reads its input from and writes its output to."""

    reads: frozenset[str]
    writes: frozenset[str]


def left_alone(found: Mapping[int, HeldPipes], handling: Container[int]) -> set[int]:
    """Returns the processes that get no SIGTERM yet, because they end with their input.

    An example is `tee` behind a trainer: if `tee` ended first, the trainer could not print while it
    saves. In a cycle of processes that feed each other (a program and a coprocess), those that are
    `handling` SIGTERM get it first, or all of them if none does.
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


def _reached(pid: int, feeds: Mapping[int, set[int]]) -> set[int]:
    """Returns all processes that `pid` feeds, directly or through others."""
    reached: set[int] = set()
    new = feeds[pid]
    while new:
        reached |= new
        new = set().union(*(feeds[each] for each in new)) - reached
    return reached
