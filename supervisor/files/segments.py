"""Keeps a file that grows as segments in an object store, where no object can be appended to.

`run.log` is stored as objects `run.log.parts/<epoch>-<start>-<end>`, each with these bytes of the
file. The epoch is that of the lease under which the object was written. A supervisor that takes the
job over first writes the whole file again under its own epoch. So what the owner before it may
still write belongs to an epoch that nobody reads any more.

A new segment includes the segments before it as long as they are no longer than itself. So a file
of n bytes has at most log2(n) segments, and each byte is written at most log2(n) times (as in a
log-structured merge tree). Segments that were included are deleted afterwards. If one is left over,
it does no harm, because another one contains its bytes.

The journal is also replaced as a whole, when it is compacted. Each such replacement is a
generation, whose number follows the epoch (`<epoch>.<generation>-<start>-<end>`). Epochs are
compared first, so a generation of an earlier owner never counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

JOURNAL = "journal.jsonl"
"""Name of the journal in the job's folder."""
ARCHIVE = "journal"
"""Name of the folder beside the journal, which holds its older records in segments."""
DAMAGED = "journal.damaged-"
"""Prefix of the copy of a journal as it was before its repair."""
TORN = "journal.torn-"
"""Prefix of a file with the incomplete line that was cut off the end of the journal."""
METRICS = "metrics.jsonl"
"""`protocol.metrics_file.NAME`. A cut makes it a new file, which is another generation."""
RUN_LOG = "run.log"
ATTEMPTS_FILE = "attempts.jsonl"
PHASE_FILES = (RUN_LOG, ATTEMPTS_FILE)
"""The files in the folder of each phase that grow."""
SUFFIX = ".parts"
_NAME = re.compile(r"(\d{8})(?:\.(\d{8}))?-(\d{12})-(\d{12})")


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """Bytes `start` to `end` (not included) of a file, written under the lease's epoch `epoch`."""

    epoch: int
    start: int
    end: int
    generation: int = 0
    """How often the file had been replaced under this epoch."""

    @property
    def size(self) -> int:
        """Number of bytes."""
        return self.end - self.start

    @property
    def name(self) -> str:
        """Name of the segment's object, in the folder of the file's segments. Within one epoch and
        generation, the names sort by `start`."""
        generation = f".{self.generation:08d}" if self.generation else ""
        return f"{self.epoch:08d}{generation}-{self.start:012d}-{self.end:012d}"

    @property
    def version(self) -> tuple[int, int]:
        """Epoch and generation, which all segments of one version of the file share."""
        return self.epoch, self.generation

    @classmethod
    def parse(cls, name: str) -> Segment | None:
        """Returns the segment whose object has this name; None: it is no name of a segment."""
        match = _NAME.fullmatch(name)
        if match is None or int(match[3]) >= int(match[4]):
            return None
        epoch, generation, start, end = (int(number or 0) for number in match.groups())
        return cls(epoch, start, end, generation)


def next_segment(
    segments: tuple[Segment, ...], epoch: int, size: int, generation: int = 0
) -> tuple[Segment, tuple[Segment, ...]] | None:
    """Returns the segment to write when a file has grown to `size` bytes, and those of `segments`
    that stay; None: the file has not grown.

    `segments` are all segments of the file so far, in order. Those that do not stay have to be
    deleted after the new one is written.
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
    """The content of a file, as found in its objects."""

    chain: tuple[Segment, ...] = ()
    """The segments to read: the first begins at byte 0, each other where the one before it ends."""
    beyond: tuple[Segment, ...] = ()
    """Segments of the same epoch and generation that come after a gap."""
    torn: tuple[str, ...] = ()
    """Names of objects whose size is not the one in their name."""

    @property
    def end(self) -> int:
        """How many bytes, from the first one on, can be read without a gap."""
        return self.chain[-1].end if self.chain else 0


def merge_objects(objects: Mapping[str, int]) -> Merge:
    """Returns what to read of `objects`, given as name and size in bytes.

    It is the newest generation of the newest epoch for which there is a segment from byte 0 on.
    """
    found = {name: segment for name in objects if (segment := Segment.parse(name)) is not None}
    torn = tuple(sorted(name for name, one in found.items() if objects[name] != one.size))
    whole = [segment for name, segment in found.items() if name not in torn]
    for version in sorted({segment.version for segment in whole}, reverse=True):
        written = [segment for segment in whole if segment.version == version]
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
