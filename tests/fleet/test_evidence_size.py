"""What travels of a failure is bounded in bytes, whatever the ranks have printed."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from supervisor.diagnosis.failure import RankEvidence, WorkerExit
from supervisor.engines.fleet.evidence_size import bounded, digest_of
from supervisor.engines.fleet.fleet_messages import (
    MAX_DIGEST,
    MAX_EVIDENCE,
    Evidences,
    Gone,
    GroupSeen,
    RankDigest,
    RankEnd,
    encoded,
)
from supervisor.protocol.failure_record import ExceptionInfo, FailureRecord

ROOM = 1024
"""Bytes of a message beside the texts."""
_texts = st.builds(
    lambda piece, times: piece * times,
    st.text(st.characters(), min_size=1, max_size=9),
    st.integers(0, 40_000),
)


def evidence(text: str) -> RankEvidence:
    raised = ExceptionInfo(text, (text,) * 40, text, "raised")
    record = FailureRecord(0, 1.0, "TRAINING", 5, (raised,) * 20, text)
    return RankEvidence(WorkerExit(0, code=1), record, text, "TRAINING", stacks=text)


@given(_texts)
def test_a_rank_takes_64_kib_at_most_and_its_digest_2(text: str) -> None:
    whole = evidence(text)
    assert len(encoded(Evidences(1, 1.0, (bounded(whole),)))) <= MAX_EVIDENCE + ROOM
    for each in (whole, replace(whole, record=None)):
        digest = RankDigest(
            RankEnd(whole.exit, 0.0, False), "TRAINING", True, True, digest_of(each)
        )
        assert len(encoded(Gone(1, (digest,), GroupSeen()))) <= MAX_DIGEST + ROOM


def test_what_is_short_travels_whole_and_of_the_rest_what_tells_most() -> None:
    short = evidence("a short text")
    kept = bounded(short)
    assert (kept.output, kept.stacks) == (short.output, short.stacks)
    assert digest_of(short) == "a short text: a short text"
    long = evidence("first " + "\x00" * 100_000 + " last")
    assert bounded(long).output.endswith(" last"), "the end of the output tells why"
    assert bounded(long).stacks.startswith("first "), "the top of the stack tells where"
