"""Workers' ends in the journal: as many as there are, in little space, in the same order."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.diagnosis.failure import WorkerExit
from supervisor.history.encoding import EncodingError, decode, encode

EXITS = tuple[WorkerExit, ...]
ends = st.builds(
    WorkerExit,
    st.integers(0, 30) | st.integers(),
    st.sampled_from([None, 0, 1]),
    st.sampled_from([None, "SIGKILL"]),
    st.booleans(),
)


@given(st.lists(ends).map(tuple))
def test_every_end_is_read_back_in_its_place(exits: tuple[WorkerExit, ...]) -> None:
    assert decode(json.loads(json.dumps(encode(exits, EXITS))), EXITS) == exits


def test_thousands_that_end_alike_take_little_space() -> None:
    exits = tuple(WorkerExit(rank, signal="SIGKILL") for rank in range(10_000))
    assert encode(exits, EXITS) == [
        {"ranks": "0-9999", "code": None, "signal": "SIGKILL", "told_to_stop": False}
    ]


def test_older_records_have_an_object_for_each() -> None:
    body = [{"rank": 0, "code": 1}, {"rank": 1, "code": 1}]
    assert decode(body, EXITS) == (WorkerExit(0, code=1), WorkerExit(1, code=1))


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        (7, "is no text of ranks"),
        ("", "has '', which is no rank and no range"),
        ("1,x", "has 'x'"),
        ("1-2-3", "has '1-2-3'"),
        ("-4", "has '-4'"),
        ("0-99999999999", "has more than 1048576 ranks"),
        ("9" * 5000, "no rank"),
    ],
)
def test_a_damaged_range_is_refused(ranks: Any, said: str) -> None:
    with pytest.raises(EncodingError, match=r"ranks") as refused:
        decode([{"ranks": ranks, "code": 1}], EXITS)
    assert said in str(refused.value)
