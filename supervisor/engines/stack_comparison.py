"""Reads the stacks that the ranks of a hanging group left, and tells people where they stand."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.diagnosis.failure import WorkerExit
from supervisor.diagnosis.stack_groups import grouped, in_words, main_stack, odd_ranks, ranges
from supervisor.engines.host_port import HostFiles
from supervisor.engines.launch import Launch
from supervisor.host.notice import Notice

MAX_STACKS = 1 << 20
"""Bytes of a rank's stacks that are read: 100 threads of 100 frames each."""
_MOST_RANKS = 1024
"""How many ranks are compared: each is a file to read."""


def compared_stacks(files: HostFiles, launch: Launch, exits: Sequence[WorkerExit]) -> Notice | None:
    """Returns what to tell of an attempt that is gone; None: it has one rank, or did not hang."""
    ranks = sorted(ended.rank for ended in exits)[:_MOST_RANKS]
    if len(ranks) < 2 or not any(main_stack(_dump(files, launch, rank)) for rank in ranks[:2]):
        return None
    groups = grouped({rank: _dump(files, launch, rank) for rank in ranks})
    places = [f"{ranges(group.ranks)}: {group.place}" for group in groups]
    odd = ranges(odd_ranks(groups))
    return Notice("stacks-compared", in_words(groups), places=places, odd_ranks=odd)


def _dump(files: HostFiles, launch: Launch, rank: int) -> str:
    """Returns what a rank wrote; empty if it wrote nothing, or it cannot be read now."""
    try:
        data = files.read(launch.file(rank, "stacks.txt"), MAX_STACKS, launch.model_dir)
    except OSError:  # the evidence of the attempt's end tells of what cannot be read
        return ""
    return data.decode("utf-8", "replace")
