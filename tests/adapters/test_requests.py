"""What a person asks of a job: heard once, by whichever supervisor there is."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Sequence
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

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
SOMEBODY = 65533
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


def python(source: str, cwd: Path, prefix: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own."""
    return subprocess.run(
        [*prefix, sys.executable, "-c", source],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )


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


def test_much_that_is_no_request_holds_up_none(tmp_path: Path) -> None:
    write_clear_request(tmp_path, ("5",))
    assert heard(tmp_path) == ([("5",)], [])
    for number in range(200):
        junk = tmp_path / "requests" / f"{number}.clear-quarantine.json"
        junk.touch()
        os.utime(junk, (1, 1))
    write_clear_request(tmp_path, ("6",))
    requests, refused = heard(tmp_path)
    assert (requests, len(refused)) == ([("6",)], 99)


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


@pytest.mark.parametrize("mode", [0o700, 0o2775])
def test_who_may_change_the_job_may_remove_a_request(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    write_clear_request(tmp_path, ("5",))
    (request,) = (tmp_path / "requests").iterdir()
    assert stat.S_IMODE((tmp_path / "requests").stat().st_mode) == mode
    assert stat.S_IMODE(request.stat().st_mode) == mode & 0o666


@AS_ROOT
def test_what_root_asks_of_another_users_job_is_that_users(tmp_path: Path) -> None:
    os.chown(tmp_path, SOMEBODY, SOMEBODY)
    write_clear_request(tmp_path, ("5",))
    (request,) = (tmp_path / "requests").iterdir()
    for path in (tmp_path / "requests", request):
        assert (path.stat().st_uid, path.stat().st_gid) == (SOMEBODY, SOMEBODY)


SETPRIV = ["setpriv", "--reuid", str(SOMEBODY), "--clear-groups"]
SETPRIV += ["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"]
"""Becomes somebody who may read what is root's, as the interpreter may be, and not more."""
TAKES = """
from pathlib import Path
from supervisor.adapters.stores.requests import take_requests
from supervisor.host.identity import Identity

us = Identity("here", "boot", "ns", 7, 100)
print(list(take_requests(Path(), lambda text: print("refused:", text), us)))
"""


@AS_ROOT
def test_a_request_that_cannot_be_removed_is_not_heeded_and_holds_up_no_other(
    tmp_path: Path,
) -> None:
    write_clear_request(tmp_path, ("5",))
    write_clear_request(tmp_path, ("6",))
    for path in (tmp_path / "requests", *(tmp_path / "requests").iterdir()):
        path.chmod(0o755)
    done = python(TAKES, tmp_path, SETPRIV)
    assert done.returncode == 0, done.stderr
    *refused, taken = done.stdout.splitlines()
    assert taken == "[]"
    assert len(refused) == 2
    assert refused[0] == refused[1]
    assert refused[0].startswith("refused: a request in requests cannot be removed, so it is not")


def test_a_request_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    source = """
import resource, signal
from pathlib import Path
from supervisor.adapters.stores.requests import ClearQuarantine, write_request

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (3, 3))
write_request(Path(), ClearQuarantine(("5",)))
"""
    done = python(source, tmp_path)
    assert "File too large" in done.stderr
    assert not list((tmp_path / "requests").iterdir())


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
