"""Reads the stacks that the ranks of a hanging group left, and tells where they stood."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.diagnosis.failure import WorkerExit
from supervisor.diagnosis.stack_groups import (
    StackGroup,
    grouped,
    in_words,
    main_stack,
    odd_ranks,
    ranges,
)
from supervisor.engines.host_port import HostFiles
from supervisor.engines.launch import Launch
from supervisor.files.attempts import STACKS_TO_READ
from supervisor.host.notice import Notice

MAX_STACKS = 1 << 20
"""Bytes of a rank's stacks that are read: 100 threads of 100 frames each."""
_MOST_RANKS = 1024
"""How many ranks are compared: each is a file to read."""


def stacks_left(
    files: HostFiles, launch: Launch, exits: Sequence[WorkerExit]
) -> tuple[StackGroup, ...]:
    """Returns the groups of ranks with like stacks, the largest first; none if it did not hang."""
    ranks = sorted(ended.rank for ended in exits)[:_MOST_RANKS]
    if not any(main_stack(_dump(files, launch, rank)) for rank in ranks[:2]):
        return ()
    return grouped({rank: _dump(files, launch, rank) for rank in ranks})


def compared(groups: Sequence[StackGroup]) -> Notice:
    """Returns what to tell of the groups of several ranks."""
    places = [f"{ranges(group.ranks)}: {group.place}" for group in groups]
    odd = ranges(odd_ranks(groups))
    return Notice("stacks-compared", in_words(groups), places=places, odd_ranks=odd)


def _dump(files: HostFiles, launch: Launch, rank: int) -> str:
    """Returns the stacks that show where a rank stands; empty if there are none, or none can be
    read now."""
    for name in STACKS_TO_READ:
        try:
            data = files.read(launch.file(rank, name), MAX_STACKS, launch.model_dir)
        except OSError:  # the evidence of the attempt's end tells of what cannot be read
            continue
        dump = data.decode("utf-8", "replace")
        if main_stack(dump):
            return dump
    return ""
