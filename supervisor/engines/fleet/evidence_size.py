"""Bounds what travels of a rank's end: a digest of each rank, the whole evidence of a few.

Texts are cut at words (`protocol.shortening`), so the leader, which redacts them, meets no half
secret.
"""

from __future__ import annotations

from dataclasses import replace

from supervisor.diagnosis.failure import RankEvidence
from supervisor.engines.fleet.fleet_messages import MAX_DIGEST, MAX_EVIDENCE
from supervisor.protocol.failure_record import FailureRecord
from supervisor.protocol.shortening import keep_beginning, keep_end

_MAX_EXCEPTIONS = 8
_MAX_BASES = 16
_MAX_NAME = 128


def digest_of(evidence: RankEvidence) -> str:
    """Returns the error of a rank in at most `MAX_DIGEST` characters: that of its failure record if
    there is one, else the end of its output."""
    record = evidence.record
    if record is None or not record.exceptions:
        return keep_end(evidence.output, MAX_DIGEST)
    raised = record.exceptions[0]
    return keep_beginning(f"{raised.type}: {raised.message}", MAX_DIGEST)


def bounded(evidence: RankEvidence) -> RankEvidence:
    """Returns the evidence with all texts together in at most `MAX_EVIDENCE` characters."""
    record = evidence.record
    return replace(
        evidence,
        record=_bounded_record(record) if record is not None else None,
        output=keep_end(evidence.output, MAX_EVIDENCE // 4),
        stacks=keep_beginning(evidence.stacks, MAX_EVIDENCE // 8),
    )


def _bounded_record(record: FailureRecord) -> FailureRecord:
    share = MAX_EVIDENCE // 4 // _MAX_EXCEPTIONS
    exceptions = tuple(
        replace(
            raised,
            type=raised.type[:_MAX_NAME],
            bases=tuple(name[:_MAX_NAME] for name in raised.bases[:_MAX_BASES]),
            message=keep_beginning(raised.message, share),
        )
        for raised in record.exceptions[:_MAX_EXCEPTIONS]
    )
    text = keep_end(record.traceback, MAX_EVIDENCE // 8)
    return replace(record, exceptions=exceptions, traceback=text)
