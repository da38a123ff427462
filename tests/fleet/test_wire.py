"""What leader and agents say to each other survives the wire, and nothing else gets through."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.events import WorkerReported
from supervisor.diagnosis.failure import RankEvidence, WorkerExit
from supervisor.engines.fleet.fleet_messages import (
    VERSION,
    Evidences,
    Gone,
    GroupSeen,
    Hello,
    KillRanks,
    Lead,
    MessageError,
    Observed,
    RankDigest,
    RankEnd,
    Told,
    ToldNotice,
    command_of,
    encoded,
    report_of,
)
from supervisor.engines.fleet.payload_frames import MAX_PAYLOAD, FrameError, Frames, framed
from supervisor.host.identity import Identity
from supervisor.protocol.failure_record import ExceptionInfo, FailureRecord
from supervisor.protocol.messages import StepMessage

_END = RankEnd(WorkerExit(37, signal="SIGSEGV"), ago=0.25)
_RECORD = FailureRecord(
    37, 12.5, "TRAINING", 7, (ExceptionInfo("m.E", ("m.E",), "no \ud800", "raised"),), "Traceback"
)
REPORTS = (
    Hello(3, "1.0", Identity.of_this_process(), token=None),
    Observed(2, (_END,)),
    Told(
        2,
        (
            WorkerReported(1.0, 2, 0, StepMessage(7, {"loss": 0.5})),
            ToldNotice("drill-armed", "DRILL", '{"rank": 3}', routine=True),
        ),
    ),
    Gone(
        2,
        (RankDigest(_END, "TRAINING", ended_before_kill=True, has_record=True, digest="é"),),
        GroupSeen(step=7),
    ),
    Evidences(
        2, 99.5, (RankEvidence(_END.exit, _RECORD, "output", "TRAINING", ended_before_kill=True),)
    ),
)


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: type(report).__name__)
def test_what_an_agent_says_arrives_as_it_was(report: object) -> None:
    assert repr(report_of(encoded(report))) == repr(report).replace("\\ud800", "?")  # type: ignore[arg-type]


def test_what_a_leader_says_is_no_agents_message() -> None:
    said = encoded(Lead(4, "1.0", 10.0, "/m/owner"))
    assert command_of(said) == Lead(4, "1.0", 10.0, "/m/owner")
    with pytest.raises(MessageError, match="not understood"):
        report_of(said)


@pytest.mark.parametrize(
    "payload", [b"", b"{", b"[]", b"{}", b'{"v":1}', b'{"v":1,"kind":"KillRanks"}', b"[" * 99999]
)
def test_what_is_no_message_is_refused(payload: bytes) -> None:
    with pytest.raises(MessageError):
        command_of(payload)


def test_another_version_is_named() -> None:
    body = json.loads(encoded(KillRanks(1, 2))) | {"v": VERSION + 1}
    with pytest.raises(MessageError, match=f"version {VERSION + 1}"):
        command_of(json.dumps(body).encode())


@given(st.lists(st.binary(max_size=50)), st.integers(1, 20))
def test_payloads_come_as_they_were_however_the_stream_is_cut(
    payloads: list[bytes], size: int
) -> None:
    stream = b"".join(map(framed, payloads))
    frames, found = Frames(), []
    for start in range(0, len(stream), size):
        found += frames.feed(stream[start : start + size])
    assert found == payloads


def test_no_frame_is_longer_than_allowed() -> None:
    with pytest.raises(FrameError):
        framed(bytes(MAX_PAYLOAD + 1))
    with pytest.raises(FrameError):
        Frames().feed(b"\xff\xff\xff\xff")
