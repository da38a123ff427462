"""Bounds what travels of a rank's end: a digest of each rank, the whole evidence of a few.

Texts are cut at words (`protocol.shortening`), so the leader, which redacts them, meets no half
secret. A size is that in a message, in bytes: a character takes up to six of them there.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from supervisor.diagnosis.failure import RankEvidence
from supervisor.engines.fleet.fleet_messages import MAX_DIGEST, MAX_EVIDENCE
from supervisor.protocol.failure_record import FailureRecord
from supervisor.protocol.shortening import keep_beginning, keep_end

_MAX_EXCEPTIONS = 8
_MAX_BASES = 14
_MAX_NAME = 128


def digest_of(evidence: RankEvidence) -> str:
    """Returns the error of a rank in at most `MAX_DIGEST` bytes: that of its failure record if it
    has one, else the end of its output."""
    record = evidence.record
    if record is None or not record.exceptions:
        return _within(evidence.output, MAX_DIGEST, keep_end)
    raised = record.exceptions[0]
    return _within(f"{raised.type}: {raised.message}", MAX_DIGEST, keep_beginning)


def bounded(evidence: RankEvidence) -> RankEvidence:
    """Returns the evidence with all texts together in at most `MAX_EVIDENCE` bytes."""
    record = evidence.record
    return replace(
        evidence,
        record=_bounded_record(record) if record is not None else None,
        output=_within(evidence.output, MAX_EVIDENCE // 4, keep_end),
        stacks=_within(evidence.stacks, MAX_EVIDENCE // 8, keep_beginning),
    )


def _bounded_record(record: FailureRecord) -> FailureRecord:
    share = MAX_EVIDENCE // 4 // _MAX_EXCEPTIONS
    exceptions = tuple(
        replace(
            raised,
            type=_within(raised.type, _MAX_NAME, keep_beginning),
            bases=tuple(
                _within(name, _MAX_NAME, keep_beginning) for name in raised.bases[:_MAX_BASES]
            ),
            message=_within(raised.message, share, keep_beginning),
        )
        for raised in record.exceptions[:_MAX_EXCEPTIONS]
    )
    text = _within(record.traceback, MAX_EVIDENCE // 8, keep_end)
    return replace(record, exceptions=exceptions, traceback=text)


def _within(text: str, size: int, keep: Callable[[str, int], str]) -> str:
    """Returns what `keep` leaves of a text, so that it takes at most `size` bytes in a message."""
    limit = size
    while (taken := _size(part := keep(text, limit))) > size:
        limit = limit * size // taken
    return part


def _size(text: str) -> int:
    """Returns how many bytes a text takes in a message, without its quotes."""
    return len(json.dumps(text, ensure_ascii=False).encode("utf-8", "replace")) - 2
