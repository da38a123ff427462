"""Compares the stacks of all ranks of a hang, and names the ranks that stand elsewhere.

Ranks that wait in a collective wait for the one that has not come. Its own stack tells why, and
among hundreds of others nobody finds it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from supervisor.diagnosis.frames import Frame, place

_THREAD = re.compile(r"(?:Current t|T)hread 0x[0-9a-fA-F]+ .*\(most recent call first\):")
_CALL = re.compile(r'  File "([^"]*)", line (\d+) in (.*)')
_PROCESS_OF_PY_SPY = re.compile(r"Process (\d+): .*")
_THREAD_OF_PY_SPY = re.compile(r"Thread (\d+) \(.*")
_CALL_OF_PY_SPY = re.compile(r" +(.+?) \((.*\.py|<.*>):(\d+)\)")
"""Calls of native code have no place, or one in a file of another kind."""
_CRASH = "Fatal Python error: "
_MOST_FRAMES = 12
"""How many of the innermost frames must be alike."""
_MOST_GROUPS = 4
"""How many places a sentence names."""


@dataclass(frozen=True, slots=True)
class StackGroup:
    """Ranks whose main threads stand at one place."""

    ranks: tuple[int, ...]
    frames: tuple[Frame, ...]
    """The innermost frames of all of them, the innermost last."""

    @property
    def place(self) -> str:
        """The innermost place in the user's own code, and the innermost of all if that is another
        one."""
        own, innermost = place(self.frames), str(self.frames[-1])
        return own if own == innermost else f"{own}, which waits in {innermost}"


def main_stack(dump: str) -> tuple[Frame, ...]:
    """Returns the innermost frames of the main thread in the last dump that `faulthandler` wrote on
    request, or in the dump of py-spy, the innermost last; empty: there is none, or it shows a
    crash.

    `faulthandler` writes the newest thread first, so the main thread comes last.
    """
    lines = dump.splitlines()
    if lines and (process := _PROCESS_OF_PY_SPY.fullmatch(lines[0])):
        return _main_of_py_spy(lines, process[1])
    if any(line.startswith(_CRASH) for line in lines):
        return ()
    start = max((n for n, line in enumerate(lines) if _THREAD.fullmatch(line)), default=len(lines))
    calls = (_CALL.fullmatch(line) for line in lines[start + 1 :])
    frames = [Frame(call[1], call[2], call[3]) for call in calls if call is not None]
    return tuple(reversed(frames[:_MOST_FRAMES]))


def _main_of_py_spy(lines: Sequence[str], pid: str) -> tuple[Frame, ...]:
    threads = map(_THREAD_OF_PY_SPY.fullmatch, lines)
    start = next((n for n, one in enumerate(threads, 1) if one and one[1] == pid), len(lines))
    below = takewhile(lambda line: line.startswith(" "), lines[start:])
    calls = map(_CALL_OF_PY_SPY.fullmatch, below)
    frames = [Frame(call[2], call[3], call[1]) for call in calls if call is not None]
    return tuple(reversed(frames[:_MOST_FRAMES]))


def grouped(dumps: Mapping[int, str]) -> tuple[StackGroup, ...]:
    """Returns the groups of ranks with like stacks, the largest first. Ranks whose dump (by rank)
    shows no stack are in none."""
    found: defaultdict[tuple[Frame, ...], list[int]] = defaultdict(list)
    for rank in sorted(dumps):
        if frames := main_stack(dumps[rank]):
            found[frames].append(rank)
    groups = (StackGroup(tuple(ranks), frames) for frames, ranks in found.items())
    return tuple(sorted(groups, key=lambda group: (-len(group.ranks), group.ranks)))


def odd_ranks(groups: Sequence[StackGroup]) -> tuple[int, ...]:
    """Returns the ranks that stand elsewhere than most do; empty: there is no such majority."""
    total = sum(len(group.ranks) for group in groups)
    if not groups or 2 * len(groups[0].ranks) <= total:
        return ()
    return tuple(sorted(rank for group in groups[1:] for rank in group.ranks))


def standing_place(groups: Sequence[StackGroup]) -> str:
    """Returns where to look first: where the ranks stand that have not come, else where most do;
    empty: no group is known."""
    odd = odd_ranks(groups)
    return next((each.place for each in groups if not odd or each.ranks[0] in odd), "")


def in_words(groups: Sequence[StackGroup]) -> str:
    """Returns the sentence that tells people where the ranks stand; there is at least one group."""
    if len(groups) == 1:
        return f"all {len(groups[0].ranks)} ranks stand at {groups[0].place}"
    told = [f"{_named(group.ranks)} at {group.place}" for group in groups[:_MOST_GROUPS]]
    more = len(groups) - _MOST_GROUPS
    text = f"the ranks do not stand at one place: {'; '.join(told)}"
    text += f"; and {more} more places" if more > 0 else ""
    odd = odd_ranks(groups)
    return f"{text}. Look at {_named(odd)} first" if odd else text


def ranges(ranks: Iterable[int]) -> str:
    """Returns ascending ranks as numbers and ranges, such as `0-2, 4-63`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    return ", ".join("-".join(map(str, run)) for run in runs)


def _named(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {ranges(ranks)} ({len(ranks)})"
