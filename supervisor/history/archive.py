"""Names the segments that older records of a journal move to.

The name has a sum of the content, and whatever comes behind a segment names it: who reads one sees
whether somebody has changed it.
"""

from __future__ import annotations

import hashlib
import re

from supervisor.files.segments import ARCHIVE
from supervisor.history.fold import History
from supervisor.history.record import DamagedJournalError

_NAME = re.compile(r"\d{12}-[0-9a-f]{8}\.jsonl")


def archived_name(history: History, data: bytes) -> str:
    """The segment that holds `data`, all lines that led to `history`: its last record, so that
    later segments have later names, and a sum of the content."""
    return f"{ARCHIVE}/{history.number:012d}-{checksum(data)}.jsonl"


def is_segment(name: str) -> bool:
    """Whether a segment can have this name, in its folder."""
    return _NAME.fullmatch(name) is not None


def check_unchanged(name: str, data: bytes) -> None:
    """See to it that `data` is what the segment `name` was written with.

    Raises:
        DamagedJournalError: it is not.
    """
    if not name.endswith(f"-{checksum(data)}.jsonl"):
        raise DamagedJournalError(f"{name} was changed, or is damaged: its name has another sum")


def checksum(data: bytes) -> str:
    """Eight digits that tell apart what is different by chance."""
    return hashlib.sha256(data).hexdigest()[:8]
