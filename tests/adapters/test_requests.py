"""What a person asks of a job: heard once, by whichever supervisor there is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.adapters.stores.requests import (
    ClearQuarantine,
    Request,
    RestartJob,
    SaveJob,
    StopJob,
    take_requests,
    write_request,
)
from supervisor.host.identity import Identity

US = Identity("here", "boot", "ns", 7, 100)


def write_clear_request(model_dir: Path, units: tuple[str, ...]) -> None:
    write_request(model_dir, ClearQuarantine(units))


def taken(model_dir: Path) -> tuple[list[Request], list[str]]:
    """The requests, and what was refused."""
    refused: list[str] = []
    return list(take_requests(model_dir, refused.append, US)), refused


def heard(model_dir: Path) -> tuple[list[tuple[str, ...]], list[str]]:
    """The units of the requests, and what was refused."""
    requests, refused = taken(model_dir)
    assert all(isinstance(each, ClearQuarantine) for each in requests)
    return [each.units for each in requests if isinstance(each, ClearQuarantine)], refused


def test_a_request_is_heard_once_and_nothing_is_nothing(tmp_path: Path) -> None:
    assert heard(tmp_path) == ([], [])
    write_clear_request(tmp_path, ("host2", "5"))
    write_clear_request(tmp_path, ())
    requests, refused = heard(tmp_path)
    assert (sorted(requests), refused) == ([(), ("host2", "5")], [])
    assert heard(tmp_path) == ([], [])


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "is not JSON"),
        ("[" * 60_000, "nested"),
        ("9" * 5000, "5000 digits"),
        ("{}", "not a list of names"),
        ("[1]", "not a list of names"),
        (" " * 100_000, "more than 65536"),
    ],
)
def test_what_is_no_request_stays_and_holds_up_no_other(
    tmp_path: Path, content: str, why: str
) -> None:
    write_clear_request(tmp_path, ("5",))
    (request,) = (tmp_path / "requests").iterdir()
    hostile = request.with_name(f"0{request.name}")
    hostile.write_text(content)
    requests, refused = heard(tmp_path)
    assert requests == [("5",)]
    assert [why in text and str(hostile) in text for text in refused] == [True]
    assert hostile.exists()


def test_what_is_no_file_is_no_request(tmp_path: Path) -> None:
    write_clear_request(tmp_path, ("5",))
    (request,) = (tmp_path / "requests").iterdir()
    os.mkfifo(request.with_name(f"0{request.name}"))
    request.with_name(f"1{request.name}").symlink_to("/dev/zero")
    request.with_name(f"2{request.name}").mkdir()
    requests, refused = heard(tmp_path)
    assert requests == [("5",)]
    assert len(refused) == 3


def test_a_folder_that_leads_elsewhere_is_not_read(tmp_path: Path) -> None:
    elsewhere, model_dir = tmp_path / "elsewhere", tmp_path / "job"
    elsewhere.mkdir()
    model_dir.mkdir()
    write_clear_request(elsewhere, ("5",))
    (model_dir / "requests").symlink_to(elsewhere / "requests")
    requests, refused = heard(model_dir)
    assert requests == []
    assert len(refused) == 1
    assert heard(elsewhere)[0] == [("5",)]


def test_names_are_bounded_and_printable(tmp_path: Path) -> None:
    write_clear_request(tmp_path, ("a\x1b[2J", "x" * 300))
    assert heard(tmp_path)[0] == [("a\\x1b[2J", "x" * 200)]


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (StopJob, "stop"),
        (RestartJob, "restart the attempt of"),
        (SaveJob, "save the job of"),
    ],
)
def test_only_the_supervisor_that_is_meant_is_asked(
    tmp_path: Path, kind: type[StopJob] | type[RestartJob] | type[SaveJob], what: str
) -> None:
    mine = kind("ann on here", US)
    write_request(tmp_path, kind("ann on here", Identity("here", "boot", "ns", 7, 99)))
    write_request(tmp_path, mine)
    requests, refused = taken(tmp_path)
    assert requests == [mine]
    (text,) = refused
    assert (
        text == f"the request of ann on here to {what} supervisor 7 on here came too late: "
        "it is dropped"
    )
    assert taken(tmp_path) == ([], [])


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("[]", "does not say who asks"),
        ('{"who": 1}', "does not say who asks"),
        ('{"who": "ann"}', "does not say whom it is for"),
        ('{"who": "ann", "to": {"pid": 7}}', "does not say whom it is for"),
    ],
)
def test_what_does_not_say_whom_to_stop_stays(tmp_path: Path, content: str, why: str) -> None:
    write_request(tmp_path, StopJob("ann", US))
    (request,) = (tmp_path / "requests").iterdir()
    request.write_text(content)
    requests, refused = taken(tmp_path)
    assert requests == []
    assert [why in text for text in refused] == [True]
    assert request.exists()
