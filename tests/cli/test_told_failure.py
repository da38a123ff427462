"""What `supervise status` says first of a job that has ended by a failure."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.cli.explain import explained
from supervisor.cli.explain_text import account_lines
from supervisor.cli.job_view import view
from supervisor.cli.status import show_status
from supervisor.cli.told_failure import sized
from supervisor.core.events import (
    DeadlineReached,
    DevicesProbed,
    PhaseBegun,
    StopRequested,
    StopSource,
    SupervisorStarted,
    WorkersGone,
    WorkersObserved,
    WorkersStarted,
)
from supervisor.diagnosis.failure import Failure, Verdict
from supervisor.files.live_status import STATUS
from supervisor.host.invocation import own_invocation
from tests.adapters.test_journal import EXITS, KILLED, POLICY, STORY, tell
from tests.adapters.test_live_status import write

FATAL = replace(
    KILLED,
    cause="it is wrong",
    verdict=Verdict.FATAL,
    certain=True,
    root_cause="ValueError: no",
    where="/a/train.py:6 in step",
    traceback='Traceback (most recent call last):\n  File "/a/train.py", line 6, in step\n'
    '    return x @ W\n  File "/lib/python3.11/site-packages/jax/numpy.py", line 9, in dot\n'
    "    return lax.dot()\nValueError: no\n",
)
RANK_LOG = "20250304_050607_restartable/attempts/0001/rank0.log"


def ended(place: Path, failure: Failure, capsys: pytest.CaptureFixture[str]) -> Sequence[str]:
    """The status of a job that `failure` has ended."""
    gone = WorkersGone(4.2, 1, failure, None, 6, 5)
    tell(place, *STORY[:3], WorkersObserved(4.1, 1, (7,), EXITS), gone)
    show_status(place)
    return capsys.readouterr().out.splitlines()


def test_the_first_lines_are_the_cause_the_code_the_advice_and_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, command="supervise run a.yaml", directory="/jobs of mine")
    lines = ended(tmp_path, FATAL, capsys)
    assert lines[:3] == [
        "FAILED: it is wrong: ValueError: no, at /a/train.py:6 in step, after step 6",
        "  | in /a/train.py:6 in step: return x @ W",
        f"what to do: {FATAL.advice}",
    ]
    assert lines[3].endswith(
        "once the cause is mended, this goes on from the checkpoint of step 5, with a full "
        "budget of restarts:"
    )
    assert lines[4] == "  cd '/jobs of mine' && supervise run a.yaml"
    assert lines[6].startswith("attempt 1 was pid 7 on ")
    assert not any(line.startswith("verdict") for line in lines)


def test_the_hosts_of_a_cluster_are_told_and_not_that_of_the_supervisor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, command="supervise run a.yaml", directory="/jobs")
    (phase,) = POLICY.phases
    hosts = replace(phase, rungs=(2,), num_hosts=2, workers_are_units=True)
    policy = replace(POLICY, phases=(hosts,))
    tell(
        tmp_path,
        SupervisorStarted(0.0, "job", policy, None),
        PhaseBegun(0.1, 0, "20250304_050607_restartable", None),
        DevicesProbed(0.2, 1, ("n0", "n1"), ()),
        WorkersStarted(0.3, 1, (7, 8)),
        WorkersObserved(4.1, 1, (7, 8), EXITS),
        DeadlineReached(5.2),
        WorkersGone(5.3, 1, replace(FATAL, rank=1), None, 6, 5),
        policy=policy,
    )
    show_status(tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert "ValueError: no (rank 1 on host n1), at /a/train.py:6" in lines[0]
    assert any(line.startswith("attempt 1 was pids 7 on n0, 8 on n1, and ended") for line in lines)
    told = "\n".join(account_lines(explained(view(tmp_path), tmp_path, None)))
    assert "root cause (rank 1 on host n1): ValueError: no, at" in told


@pytest.mark.parametrize("rule", ["not-finite", "rule"])
def test_after_nan_our_trainer_can_run_the_step_again(
    rule: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (more,) = [
        line
        for line in ended(tmp_path, replace(FATAL, rule=rule), capsys)
        if line.startswith("more: ")
    ]
    assert (f"supervise replay {tmp_path}; " in more) == (rule == "not-finite")


def test_a_job_that_succeeded_needs_no_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, command="supervise run a.yaml", directory="/jobs")
    gone = WorkersGone(4.2, 1, None, None, 6, 5)
    tell(tmp_path, *STORY[:3], WorkersObserved(4.1, 1, (7,), EXITS), gone)
    show_status(tmp_path)
    assert "supervise run" not in capsys.readouterr().out


def test_a_job_that_was_stopped_did_not_end_by_its_last_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = WorkersGone(4.2, 1, KILLED, None, 6, 5)
    again = (WorkersStarted(5.0, 2, (8,)), StopRequested(5.1, StopSource.PERSON))
    other = replace(KILLED, root_cause="ValueError: in its handler")
    ended = (WorkersObserved(6.1, 2, (8,), EXITS), WorkersGone(6.2, 2, other, None, 6, 5))
    tell(tmp_path, *STORY[:3], WorkersObserved(4.1, 1, (7,), EXITS), failed, *again, *ended)
    show_status(tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("job ")
    assert any("with supervise's exit code 79" in line for line in lines)
    assert any(line.startswith("last failure: ") for line in lines)


def test_in_the_folder_of_the_command_nothing_but_the_command_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, command="supervise run a.yaml", directory=str(tmp_path))
    assert "  supervise run a.yaml" in ended(tmp_path, FATAL, capsys)


def test_where_another_program_ran_the_job_no_command_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ended(tmp_path, FATAL, capsys)
    assert not (tmp_path / STATUS).exists()
    assert any("the same command goes on from the checkpoint of step 5" in line for line in lines)


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_hang_is_told_with_the_calls_it_stood_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_changed: bool
) -> None:
    program, stacks = tmp_path / "train.py", (tmp_path / RANK_LOG).with_suffix(".stacks.txt")
    program.write_text("lock.acquire()\n")
    stacks.parent.mkdir(parents=True)
    (tmp_path / RANK_LOG).touch()
    stacks.write_text(
        f'Thread 0x00007f22ab1beb80 (most recent call first):\n  File "{program}", line 1 in wait\n'
        '  File "/src/supervisor/bootstrap/start.py", line 61 in <module>\n'
        '  File "/lib/python3.11/threading.py", line 5 in run\n'
    )
    os.utime(program, (1, 1) if not is_changed else None)
    os.utime(stacks, (2, 2))
    hang = replace(FATAL, rule="hang")
    lines = ended(tmp_path, hang, capsys)
    code = "" if is_changed else ": lock.acquire()"
    assert lines[1] == f"  | in {program}:1 in wait{code}"
    assert lines[2].startswith("what to do")


def test_the_last_output_is_told_without_secrets_and_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB_PASSWORD", "half-of-it\rother-half")
    log = tmp_path / RANK_LOG
    log.parent.mkdir(parents=True)
    log.write_bytes(b"x" * 70_000 + b" half-of-it\rother-half\n")
    failure = replace(KILLED, verdict=Verdict.FATAL, certain=True, exit=KILLED.root_cause)
    lines = ended(tmp_path, failure, capsys)
    assert lines[1].startswith("what to do: "), "its begin is not known"
    log.write_bytes(b"begin\nkey half-of-it\rother-half\n")
    show_status(tmp_path)
    assert capsys.readouterr().out.splitlines()[1] == "  | last output: key [redacted]"


MAKE = b"make: *** [Makefile:2: build] Error 1\n"


@pytest.mark.parametrize(
    ("output", "told"),
    [
        (b"begin\n" * 2000 + b"step 2\x1b[2J loss 1.0\n\n", "step 2\\x1b[2J loss 1.0"),
        (b"begin\ncc: broken\n" + MAKE, "cc: broken"),
        (MAKE, MAKE.decode().strip()),
    ],
)
def test_where_no_code_is_known_the_last_output_is_told(
    output: bytes, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / RANK_LOG
    log.parent.mkdir(parents=True)
    log.write_bytes(output)
    failure = replace(KILLED, verdict=Verdict.FATAL, certain=True, exit=KILLED.root_cause)
    lines = ended(tmp_path, failure, capsys)
    assert lines[1] == f"  | last output: {told}"


def test_numbers_of_bytes_get_a_unit() -> None:
    text = "Out of memory allocating 70368744177664 bytes."
    assert sized(text) == "Out of memory allocating 70368744177664 bytes (64 TiB)."
    assert sized("512 bytes of 10") == "512 bytes of 10"


@pytest.mark.parametrize(
    ("argv", "begins"),
    [
        (["/a/bin/supervise", "run", "a b.yaml"], "/a/bin/supervise run 'a b.yaml'"),
        (["/a/supervisor/__main__.py", "run"], f"{sys.executable} -m supervisor run"),
        (["/a/own.py"], None),
        (["/a/bin/supervise", "x" * 5000], None),
    ],
)
def test_a_command_is_told_as_one_types_it(
    argv: list[str], begins: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    found = own_invocation()
    assert (None if found is None else found.command) == begins
    assert found is None or found.directory == str(Path.cwd())


def test_what_a_shell_finds_is_told_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "supervise"
    program.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [str(program), "run"])
    found = own_invocation()
    assert found is not None
    assert found.command == "supervise run"
