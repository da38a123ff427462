"""How a file that is appended to is kept in an object store, where nothing can be appended to.

`run.log` is there as objects `run.log.parts/<epoch>-<start>-<end>`, each with those bytes of it.
The epoch is that of the lease under which it was written. Who takes the job over writes the whole
file anew under an epoch of its own before anything else; so what the one before may still write
belongs to an epoch that nobody reads any more.

What is added takes the segments before it along as long as they are no longer than itself: a file
of n bytes has at most log2(n) segments, and each byte is written log2(n) times at most. (Log
structured merge trees merge so.) Those that were taken along are deleted afterwards; one that is
left over is contained in another, and does no harm.

The journal is also replaced, when it is compacted: each time is a generation, whose segments have
it behind the epoch (`<epoch>.<generation>-<start>-<end>`). Epochs come first: an owner of the past
makes no generation that counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

JOURNAL = "journal.jsonl"
"""In the job's folder."""
ARCHIVE = "journal"
"""The folder beside it: the segments that older records of the journal move to."""
DAMAGED = "journal.damaged-"
"""How the name of a journal begins that was repaired, and is kept as it was."""
TORN = "journal.torn-"
"""How the name of what was cut off the journal begins: a part of a line."""
RUN_LOG = "run.log"
ATTEMPTS = "attempts.jsonl"
OF_A_PHASE = (RUN_LOG, ATTEMPTS)
"""In the folder of each phase."""
SUFFIX = ".parts"
_NAME = re.compile(r"(\d{8})(?:\.(\d{8}))?-(\d{12})-(\d{12})")


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """Bytes `start` to `end` (not included) of a file, written under an epoch."""

    epoch: int
    start: int
    end: int
    generation: int = 0
    """How often the file was replaced under this epoch."""

    @property
    def size(self) -> int:
        """In bytes."""
        return self.end - self.start

    @property
    def name(self) -> str:
        """Of its object, in the folder of the file's segments; in order of the bytes."""
        generation = f".{self.generation:08d}" if self.generation else ""
        return f"{self.epoch:08d}{generation}-{self.start:012d}-{self.end:012d}"

    @property
    def writing(self) -> tuple[int, int]:
        """What the segments of one file have in common: its epoch and generation."""
        return self.epoch, self.generation

    @classmethod
    def parse(cls, name: str) -> Segment | None:
        """The segment of that name; None: it is none."""
        match = _NAME.fullmatch(name)
        if match is None or int(match[3]) >= int(match[4]):
            return None
        epoch, generation, start, end = (int(number or 0) for number in match.groups())
        return cls(epoch, start, end, generation)


def extended(
    segments: tuple[Segment, ...], epoch: int, size: int, generation: int = 0
) -> tuple[Segment, tuple[Segment, ...]] | None:
    """The segment to write when a file has grown to `size` bytes, and those of `segments` (all of
    it so far, in order) that stay as they are; the others are to be deleted once it is written.

    None where nothing is new.
    """
    end = segments[-1].end if segments else 0
    if size <= end:
        return None
    kept, start = list(segments), end
    while kept and kept[-1].size <= size - start:
        start = kept.pop().start
    return Segment(epoch, start, size, generation), tuple(kept)


@dataclass(frozen=True, slots=True)
class Merge:
    """What the objects of a file come to."""

    chain: tuple[Segment, ...] = ()
    """Each begins where the one before it ends, from the first byte on."""
    beyond: tuple[Segment, ...] = ()
    """Those of the same epoch and generation behind a gap."""
    torn: tuple[str, ...] = ()
    """Names of objects that do not hold as many bytes as they should."""

    @property
    def end(self) -> int:
        """Bytes that are whole."""
        return self.chain[-1].end if self.chain else 0


def merged(objects: Mapping[str, int]) -> Merge:
    """What to read of these objects (by name, with their sizes in bytes): all of the newest
    generation, of the newest epoch, that has a beginning."""
    found = {name: segment for name in objects if (segment := Segment.parse(name)) is not None}
    torn = tuple(sorted(name for name, one in found.items() if objects[name] != one.size))
    whole = [segment for name, segment in found.items() if name not in torn]
    for writing in sorted({segment.writing for segment in whole}, reverse=True):
        written = [segment for segment in whole if segment.writing == writing]
        if chain := _chain(written):
            beyond = tuple(sorted(one for one in written if one.end > chain[-1].end))
            return Merge(chain, beyond, torn)
    return Merge(torn=torn)


def _chain(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    longest: dict[int, Segment] = {}
    for segment in sorted(segments):
        longest[segment.start] = segment
    chain: list[Segment] = []
    while (following := longest.get(chain[-1].end if chain else 0)) is not None:
        chain.append(following)
    return tuple(chain)
