"""Which survivors of an attempt end by themselves, because their input does."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HeldPipes:
    """The pipes that a process reads its input from and writes its output to."""

    reads: frozenset[str]
    writes: frozenset[str]


def left_alone(found: Mapping[int, HeldPipes], handling: Container[int]) -> set[int]:
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


def _reached(pid: int, feeds: Mapping[int, set[int]]) -> set[int]:
    """All that `pid` feeds, directly or through others."""
    reached: set[int] = set()
    new = feeds[pid]
    while new:
        reached |= new
        new = set().union(*(feeds[each] for each in new)) - reached
    return reached
