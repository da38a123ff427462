"""What a person asks of a job: heard once, by whichever supervisor there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.adapters.requests import ask_to_clear, taken


def test_a_request_is_heard_once_and_nothing_is_nothing(tmp_path: Path) -> None:
    assert list(taken(tmp_path)) == []
    ask_to_clear(tmp_path, ("host2", "5"))
    ask_to_clear(tmp_path, ())
    assert sorted(taken(tmp_path)) == [(), ("host2", "5")]
    assert list(taken(tmp_path)) == []


def test_what_is_no_request_stays_where_it_is(tmp_path: Path) -> None:
    ask_to_clear(tmp_path, ("5",))
    (request,) = (tmp_path / "requests").iterdir()
    request.write_text("{")
    with pytest.raises(ValueError, match="Expecting"):
        list(taken(tmp_path))
    assert request.exists()
