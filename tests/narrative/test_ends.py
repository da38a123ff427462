"""What is told of the end of an attempt is about that attempt, and never about an earlier one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from supervisor.adapters.stores.storage import LocalStorage
from supervisor.adapters.telling.summary import Summary
from supervisor.core.decisions import KillWorkers
from supervisor.core.events import DeadlineReached, WorkerReported, WorkersGone
from supervisor.core.liveness import Silence
from supervisor.core.policy import PhasePolicy
from supervisor.core.state import Status
from supervisor.diagnosis.failure import WorkerExit
from supervisor.protocol.messages import (
    NoticeCode,
    NoticeMessage,
    Stage,
    StageMessage,
    StepMessage,
)
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


def test_a_new_supervisor_tells_of_no_kill_where_nobody_is_known_to_live() -> None:
    history = started()
    history.runs()
    (kill,) = history.starts()
    assert isinstance(kill, KillWorkers)
    assert "supervisor-lost" in events(history)
    assert "workers-killed" not in events(history)


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


@pytest.mark.parametrize(
    ("ended", "level"),
    [
        (WorkerExit(0, signal="SIGTERM"), "info"),
        (WorkerExit(0, code=128 + 15), "info"),
        (WorkerExit(0, signal="SIGTERM", told_to_stop=True), "warning"),
        (WorkerExit(0, signal="SIGSEGV"), "warning"),
    ],
    ids=str,
)
def test_a_worker_that_ended_as_it_was_asked_to_is_no_warning(
    ended: WorkerExit, level: str
) -> None:
    history = started()
    history.runs()
    history.stops()
    history.ends(ended)
    (line,) = (line for line in history.told if line.event == "rank-ended")
    assert line.level == level


def test_a_hung_worker_that_ends_before_it_is_asked_to_is_a_warning() -> None:
    history = started()
    history.runs()
    history.happens(DeadlineReached(history.now, Silence(1, Stage.TRAINING, 9.0)))
    history.ends(WorkerExit(0, signal="SIGTERM"))
    (line,) = (line for line in history.told if line.event == "rank-ended")
    assert line.level == "warning"


@pytest.mark.parametrize(
    ("step", "where"),
    [
        (StepMessage(8), "in stage TRAINING after step 8"),
        (StepMessage(8, in_output=True), "in stage TRAINING after step 8 or later"),
        (StepMessage(8, recognised=True), "in stage TRAINING after step 8 or later"),
    ],
    ids=["reported", "found by the config's pattern", "recognised"],
)
def test_a_step_that_was_read_from_the_output_need_not_be_the_last(
    step: StepMessage, where: str
) -> None:
    history = started()
    history.runs()
    for message in (StageMessage(Stage.TRAINING), step):
        history.happens(WorkerReported(history.now, 1, 0, message))
    history.ends(WorkerExit(0, code=1))
    (line,) = (line for line in history.told if line.event == "rank-ended")
    assert line.text == f"rank 0 ended: exit code 1 {where}"


def test_a_supervisor_that_left_no_record_of_its_end_need_not_have_been_killed() -> None:
    history = started()
    history.runs()
    history.starts()
    (line,) = (line for line in history.told if line.event == "supervisor-lost")
    assert line.text.endswith("or it could not write")


def test_what_was_not_seen_closed_may_be_where_the_next_attempt_goes_on() -> None:
    history = started()
    history.runs()
    history.commits(10)
    history.ends(WorkerExit(0, signal="SIGKILL"))
    attempt = history.state.attempt
    gone = WorkersGone(history.now, attempt, RETRY, None, 25, committed=10, unproven=20)
    history.happens(gone)
    told = {line.event: line.text for line in history.told}
    kept = "newest checkpoint: step 10; step 20 is complete, but was not seen closed"
    assert told["attempt-ended"].endswith(kept)
    assert told["attempt-started"].startswith("starting attempt 2 from committed step 10 or later")


def test_a_checkpoint_that_is_not_there_any_more_is_told_as_such() -> None:
    history = started()
    history.runs()
    history.commits(10)
    history.gone(RETRY)
    told = {line.event: line.text for line in history.told}
    assert told["attempt-ended"].endswith("no checkpoint is there now; the newest was of step 10")
