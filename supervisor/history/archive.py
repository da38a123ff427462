"""Names the segments that older records of a journal move to.

The name of a segment contains a checksum of its content, and the record after a segment contains
its name. So a reader sees whether a segment was changed.
"""

from __future__ import annotations

import hashlib
import re

from supervisor.files.segments import ARCHIVE
from supervisor.history.fold import History
from supervisor.history.record import DamagedJournalError

_NAME = re.compile(r"\d{12}-[0-9a-f]{8}\.jsonl")


def archived_name(history: History, data: bytes) -> str:
    """Returns the name of the segment for `data`, the lines that lead to `history`.

    It has the number of the last record, so that later segments sort later, and a checksum.
    """
    return f"{ARCHIVE}/{history.number:012d}-{checksum(data)}.jsonl"


def is_segment(name: str) -> bool:
    """True if a segment can have this name, which is without its folder."""
    return _NAME.fullmatch(name) is not None


def check_unchanged(name: str, data: bytes) -> None:
    """Check `data` against the checksum in the segment's `name`.

    Raises:
        DamagedJournalError: it does not match.
    """
    if not name.endswith(f"-{checksum(data)}.jsonl"):
        raise DamagedJournalError(
            f"{name} is damaged or was changed: its checksum is not the one in its name"
        )


def checksum(data: bytes) -> str:
    """Returns a checksum of eight digits: against damage, not against an attacker."""
    return hashlib.sha256(data).hexdigest()[:8]
