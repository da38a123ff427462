"""The report of a job: each moment in one lane, each attempt with its end, each failure decided."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.core.decisions import Decision
from supervisor.core.events import SupervisorStarted, WorkersGone
from supervisor.core.policy import RestartPolicy
from supervisor.protocol.messages import Stage, StageMessage, StepMessage
from supervisor.report.job_fold import report_of_transitions
from supervisor.report.job_report import Head, Lane, Report
from tests.core.history import SAME, History, policy
from tests.core.test_capacity_check import EIGHT, HARDWARE, Devices
from tests.goodput.test_wall_time import KILLED, NAMED, Job, of_a_simulated_job, trains

HEAD = Head("job", "run", 0.0, "FAILED", "it failed", None, 70, "", "", "", "", "")
RUNS = replace(HEAD, exit_code=None)


class TimedJob(Job):
    """A job at a Unix time."""

    def starts(self, committed: int | None = None, *, once: bool = True) -> tuple[Decision, ...]:
        """A supervisor starts at a known time of day."""
        event = SupervisorStarted(self.now, "job", self.policy, committed, 1000.0)
        decisions = self.happens(event)
        return self.begins() if self.state.directory is None else decisions


def timed(given: RestartPolicy = NAMED) -> TimedJob:
    """A job whose first attempt runs from 1001.0 on."""
    told = TimedJob(given)
    told.starts()
    told.at(1.0).runs()
    return told


def of(it: History, head: Head = HEAD, until: float | None = None) -> Report:
    """The report of a job."""
    return report_of_transitions(it.turns, None, head, until)


def lanes(report: Report) -> list[tuple[Lane, float, float]]:
    return [(each.lane, each.start - 1000, each.end - 1000) for each in report.spans]


def test_each_stage_is_a_span_and_the_end_of_an_attempt_too() -> None:
    it = timed()
    trains(it, 1.0, 1)
    it.at(15.0).says(StepMessage(10), StageMessage(Stage.SAVING))
    it.at(16.0).commits(10)
    it.says(StageMessage(Stage.TRAINING))
    it.at(20.0).ends(KILLED)
    it.at(21.0).happens(WorkersGone(21.0, 1, SAME, None, 14, 10, exits=(KILLED,)))
    report = of(it)
    assert lanes(report) == [
        (Lane.STARTING, 0.0, 3.0),
        (Lane.RESTORING, 3.0, 4.0),
        (Lane.COMPILING, 4.0, 5.0),
        (Lane.TRAINING, 5.0, 15.0),
        (Lane.SAVING, 15.0, 16.0),
        (Lane.TRAINING, 16.0, 20.0),
        (Lane.STOPPING, 20.0, 21.0),
    ]
    assert (report.began, report.until) == (1000.0, 1021.0)


def test_a_failure_has_its_evidence_and_the_decision() -> None:
    it = timed()
    trains(it, 1.0, 1)
    it.at(20.0).ends(KILLED)
    it.happens(WorkersGone(20.0, 1, SAME, None, 14, None, exits=(KILLED,)))
    report = of(it)
    (failed,) = report.failures
    assert (failed.attempt, failed.time, failed.phase) == (1, 1020.0, "only")
    assert failed.exits == ("rank 0: killed by SIGKILL",)
    assert (failed.stage, failed.step, failed.committed) == ("TRAINING", 14, None)
    assert (failed.code, failed.verdict, failed.root_cause) == ("sigkill", "RESTART", "SIGKILL")
    assert failed.decision == "attempt 2 starts at once"
    assert failed.restarts == "1 charged: 1 of 3 used"
    assert failed.files == "phase0/attempts/0001"
    first, second = report.attempts
    assert (first.end, first.code, first.last_step) == ("FAILED", "sigkill", 14)
    assert (first.started, first.ended) == (1000.0, 1020.0)
    assert (second.number, second.ended, second.end) == (2, None, "UNKNOWN")


def test_a_job_that_lives_goes_on_until_now() -> None:
    it = timed()
    trains(it, 1.0, 1)
    report = of(it, RUNS, until=1100.0)
    assert lanes(report)[-1] == (Lane.TRAINING, 5.0, 100.0)
    assert report.attempts[-1].end == "RUNNING"
    assert report.until == 1100.0


def test_the_time_between_two_supervisors_is_told_apart_and_is_no_age_of_a_checkpoint() -> None:
    it = timed()
    trains(it, 1.0, 1)
    it.at(10.0).commits(5)
    it.at(500.0).starts(committed=5)
    it.gone(committed=5)
    it.at(501.0).runs()
    trains(it, 501.0, 6, restored=5)
    it.at(510.0).commits(10)
    report = of(it)
    assert (Lane.NOT_RUNNING, 10.0, 500.0) in lanes(report)
    assert [(each.step, each.age) for each in report.commits] == [(5, 10.0), (10, 10.0)]
    assert report.attempts[0].end == "LOST"


def test_a_program_that_names_no_stage_is_told_apart() -> None:
    it = timed(policy())
    it.at(9.0).dies()
    assert lanes(of(it)) == [(Lane.STARTING, 0.0, 1.0), (Lane.UNNAMED, 1.0, 9.0)]


def test_the_rungs_are_those_of_the_attempts() -> None:
    it = Devices(policy(EIGHT))
    it.starts()
    it.lost = frozenset("3")
    it.fails(HARDWARE)
    it.looks()
    report = of(it)
    assert [each.num_devices for each in report.rungs] == [8, 4]
    assert report.full_rung == 8


@pytest.mark.parametrize("seed", [1, 4, 9, 16, 25, 36])
def test_every_moment_of_a_simulated_job_is_in_one_lane(seed: int, tmp_path: Path) -> None:
    transitions = of_a_simulated_job(seed, tmp_path)
    report = report_of_transitions(transitions, None, HEAD)
    at = report.began
    for each in report.spans:
        assert (each.start, each.start < each.end) == (at, True)
        at = each.end
    assert at == report.until
    numbers = [each.number for each in report.attempts]
    assert numbers == sorted(set(numbers))
    failed = [each.number for each in report.attempts if each.end == "FAILED"]
    assert [each.attempt for each in report.failures] == failed
    assert json.loads(json.dumps(report.as_json(), allow_nan=False))["v"] == 1
