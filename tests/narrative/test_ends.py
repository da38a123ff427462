"""What is told of the end of an attempt is about that attempt, and never about an earlier one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from supervisor.adapters.stores.storage import LocalStorage
from supervisor.adapters.telling.summary import Summary
from supervisor.core.events import DeadlineReached, WorkerReported, WorkersGone
from supervisor.core.liveness import Silence
from supervisor.core.policy import PhasePolicy
from supervisor.core.state import Status
from supervisor.diagnosis.failure import WorkerExit
from supervisor.protocol.messages import NoticeCode, NoticeMessage, Stage
from tests.adapters.test_hostile_worker import PLAN
from tests.core.history import RETRY, History, policy, started
from tests.core.test_capacity_check import HARDWARE, growing

BY_OURS = replace(RETRY, root_cause="died of SIGTERM", rule="sigterm")
"""How a program may end that was asked to stop."""


def events(history: History) -> list[str]:
    return [line.event for line in history.told]


def ends(history: History, place: Path) -> list[tuple[str, Any]]:
    """How each attempt ended, by summary.json, and its root cause if it has one."""
    storage = LocalStorage(place)
    storage.make_directory("phase0")
    summary = Summary(storage, [PLAN], history.policy, lambda notice: None)
    for turn in history.turns:
        summary.observe(turn)
    attempts = json.loads((place / "phase0" / "summary.json").read_text())["attempts"]
    return [
        (record["status"], (record.get("failure") or {}).get("root_cause")) for record in attempts
    ]


def test_an_attempt_that_made_way_has_not_failed(tmp_path: Path) -> None:
    history = growing()
    history.now += 60.0
    history.commits(20)
    history.ends(WorkerExit(0, signal="SIGTERM"))
    history.gone(BY_OURS, committed=21)
    assert events(history) == [
        "attempt-ended",
        "checkpoint-committed",
        "attempt-stopped",
        "devices-probing",
    ]
    assert ends(history, tmp_path) == [("FAILED", HARDWARE.root_cause), ("MADE_WAY", None)]


def test_nor_has_one_that_had_no_failure_before_it(tmp_path: Path) -> None:
    history = growing()
    history.state = replace(history.state, last_failure=None)  # as in the next phase
    history.now += 60.0
    history.commits(20)
    history.ends(WorkerExit(0, signal="SIGTERM"))
    history.gone(BY_OURS, committed=20)
    assert "attempt-failed" not in events(history)
    assert ends(history, tmp_path)[-1] == ("MADE_WAY", None)


def test_a_launch_that_fails_while_the_job_stops_is_told_as_what_it_was(tmp_path: Path) -> None:
    history = started()
    history.stops()
    history.cannot_launch()
    assert history.state.status is Status.DRAINED
    (failed,) = (line for line in history.told if line.event == "attempt-failed")
    assert failed.keys["root_cause"] == RETRY.root_cause
    assert ends(history, tmp_path) == [("FAILED", RETRY.root_cause)]


def test_a_hang_is_told_although_the_worker_ended_well_once_it_was_asked_to(tmp_path: Path) -> None:
    history = started(policy(PhasePolicy("only", 3)))
    history.runs()
    history.happens(DeadlineReached(history.now, Silence(1, Stage.TRAINING, 9.0)))
    history.ends(WorkerExit(0, code=0))
    history.happens(WorkersGone(history.now, 1, None, None, 7, 5))
    (failed,) = (line for line in history.told if line.event == "attempt-failed")
    assert failed.keys["code"] == "hang"
    ((status, cause),) = ends(history, tmp_path)
    assert status == "FAILED"
    assert cause.startswith("silent for 9.0 s in stage TRAINING")


@pytest.mark.parametrize(
    ("code", "event"),
    [
        (NoticeCode.BATCH_SKIPPED, "batch-skipped"),
        ("my-word", "worker-notice"),
        ("", "worker-notice"),
    ],
)
def test_what_a_worker_tells_has_the_name_of_its_code_if_it_is_one_of_ours(
    code: str, event: str
) -> None:
    history = started()
    history.runs()
    history.happens(WorkerReported(history.now, 1, 0, NoticeMessage("odd", code, 7)))
    (line,) = history.told
    assert (line.event, line.text, line.level) == (event, "odd", "warning")
    assert line.keys == {"attempt": 1, "rank": 0, "code": code or None, "step": 7}


def test_workers_that_are_killed_because_another_failed_are_told_like_it() -> None:
    history = started()
    history.runs(workers=3)
    crashed, killed = WorkerExit(1, signal="SIGSEGV"), WorkerExit(0, signal="SIGKILL")
    history.ends(crashed)
    history.waits()
    (kill,) = (line for line in history.told if line.event == "workers-killed")
    assert kill.keys["pids"] == [1000, 1002]
    exits = (crashed, killed, replace(killed, rank=2))
    history.happens(WorkersGone(history.now, 1, RETRY, None, 7, None, exits=exits))
    ended = [line for line in history.told if line.event == "rank-ended"]
    assert [(line.keys["rank"], line.keys["signal"], line.level) for line in ended] == [
        (0, "SIGKILL", "info"),
        (2, "SIGKILL", "info"),
    ]


def test_an_end_that_was_seen_while_the_group_was_killed_is_told_once() -> None:
    history = started()
    history.runs(workers=2)
    both = WorkerExit(1, code=1), WorkerExit(0, signal="SIGKILL")
    history.ends(both[0])
    history.waits()
    history.ends(*both)
    history.happens(WorkersGone(history.now, 1, RETRY, None, None, None, exits=both))
    lines = [line for turn in history.turns for line in turn.lines]
    ended = [line.keys["rank"] for line in lines if line.event == "rank-ended"]
    assert ended == [1, 0]


def test_a_failure_has_the_last_step_that_was_reported() -> None:
    history = started()
    history.runs()
    history.ends(WorkerExit(0, code=1))
    history.happens(WorkersGone(history.now, 1, RETRY, None, 7, None))
    (failed,) = (line for line in history.told if line.event == "attempt-failed")
    assert failed.keys["step"] == 7


@pytest.mark.parametrize(("lost", "progressed"), [(False, 0), (True, None)])
def test_the_progress_of_an_attempt_whose_supervisor_was_killed_is_not_known(
    lost: bool, progressed: int | None
) -> None:
    history = started()
    history.runs()
    if lost:
        history.starts()
    else:
        history.ends(WorkerExit(0, code=1))
    history.happens(WorkersGone(history.now, 1, RETRY, None, None, None))
    (ended,) = (line for line in history.told if line.event == "attempt-ended")
    assert ended.keys["steps_progressed"] == progressed
