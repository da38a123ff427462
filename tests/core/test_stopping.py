"""Stops by histories: who asks, how long the workers get, and what is charged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core.decisions import (
    CancelLaunch,
    KillWorkers,
    SignalWorkers,
)
from supervisor.core.events import (
    DeadlineReached,
    LaunchCancelled,
    SaveMeasured,
    StopRequested,
    StopSource,
    SupervisorStarted,
)
from supervisor.core.exit_codes import ExitCode
from supervisor.core.liveness import Silence
from supervisor.core.policy import PhasePolicy
from supervisor.core.state import Status
from supervisor.diagnosis.failure import WorkerExit
from supervisor.diagnosis.success import Success
from supervisor.protocol.messages import Stage
from tests.core.history import PREEMPTED, RETRY, History, policy, started

KILLED = WorkerExit(0, signal="SIGKILL")


@pytest.mark.parametrize(
    ("source", "code"),
    [
        (StopSource.SIGTERM, ExitCode.DRAINED),
        (StopSource.SIGHUP, ExitCode.DRAINED),
        (StopSource.PERSON, ExitCode.STOPPED),
        (StopSource.PREEMPTION, ExitCode.DRAINED),
    ],
)
def test_a_stop_asks_waits_kills_and_can_be_resumed(source: StopSource, code: ExitCode) -> None:
    history = started()
    history.runs()
    assert [type(d) for d in history.stops(source)] == [SignalWorkers]
    assert history.state.deadline == history.policy.grace_period
    assert [type(d) for d in history.waits()] == [KillWorkers]
    history.gone(RETRY)
    assert history.finish is not None
    assert history.finish.exit_code == code
    history.starts()
    assert history.starts_decided == [1, 2]
    assert history.state.budget.restarts == 0, "a drain is not charged"


def test_a_second_request_shortens_the_grace_an_echo_does_not() -> None:
    history = started()
    history.runs()
    history.stops()
    history.now = 0.5
    history.stops()
    assert history.state.deadline == history.policy.grace_period
    history.now = 3.0
    history.stops()
    assert history.state.deadline == 3.0 + history.policy.impatient_grace_period


@pytest.mark.parametrize("is_second", [False, True])
def test_a_stop_at_once_has_the_short_grace_also_as_an_echo(is_second: bool) -> None:
    history = started()
    history.runs()
    if is_second:
        history.stops()
    history.happens(StopRequested(history.now, StopSource.PERSON, at_once=True))
    assert history.state.deadline == history.now + history.policy.impatient_grace_period


@pytest.mark.parametrize(("after", "shortens"), [(1.0, False), (1.5, True)])
def test_an_echo_comes_within_a_second(after: float, shortens: bool) -> None:
    history = started()
    history.runs()
    history.now = 10.0
    history.stops()
    patient = history.state.deadline
    history.now += after
    history.stops()
    assert (history.state.deadline != patient) == shortens


def test_an_announcement_of_what_has_come_shortens_nothing() -> None:
    history = started()
    history.runs()
    history.stops()
    patient = history.state.deadline
    history.now = 10.0
    history.stops(StopSource.PREEMPTION)
    assert history.state.deadline == patient
    assert history.state.drain is not None
    assert history.state.drain.source is StopSource.SIGTERM


def test_a_stop_leaves_a_group_that_is_dying_no_more_time() -> None:
    history = started()
    history.runs(workers=2)
    history.ends(WorkerExit(1, code=1))
    history.stops()
    assert history.state.deadline == history.policy.farewell


def test_how_an_attempt_failed_is_kept_when_the_job_was_stopped() -> None:
    history = started()
    history.runs()
    history.stops()
    history.ends(KILLED)
    history.gone(RETRY)
    assert history.state.last_failure == RETRY


def test_a_second_request_never_lengthens_the_grace() -> None:
    history = started()
    history.runs()
    history.stops()
    history.now = history.policy.grace_period - 1.0
    history.stops()
    assert history.state.deadline == history.policy.grace_period


def test_an_announced_preemption_is_announced_again_and_then_signalled_at_no_cost() -> None:
    history = started()
    history.runs()
    history.stops(StopSource.PREEMPTION)
    for source in (StopSource.PREEMPTION, StopSource.SIGTERM):
        history.now += 5.0
        assert history.stops(source) == ()
        assert history.state.deadline == history.policy.grace_period
    history.now += 5.0
    history.stops()
    assert history.state.deadline == history.now + history.policy.impatient_grace_period


@pytest.mark.parametrize(
    ("source", "saves", "grace"),
    [
        (StopSource.PREEMPTION, (3.0,), 25.0),
        (StopSource.PREEMPTION, (3.0, 40.0, 12.0), 120.0),
        (StopSource.PREEMPTION, (), 25.0),
        (StopSource.SIGTERM, (40.0,), 25.0),
    ],
)
def test_before_an_announced_preemption_a_save_gets_the_time_that_saves_take(
    source: StopSource, saves: tuple[float, ...], grace: float
) -> None:
    history = started()
    history.runs()
    for seconds in saves:
        history.happens(SaveMeasured(0.0, 1, seconds))
    history.stops(source)
    assert history.state.deadline == grace


def noticed(notice: float = 120.0, save: float = 10.0, workers: int = 1) -> History:
    """A job of which a save is known to take that long was told that its machine goes."""
    history = started(replace(policy(), preemption_notice=notice))
    history.runs(workers)
    history.happens(SaveMeasured(0.0, 1, save))
    history.stops(StopSource.PREEMPTION)
    return history


def test_the_time_that_a_save_takes_decides_when_it_begins() -> None:
    history = noticed()
    assert history.state.status is Status.RUNNING
    assert history.state.deadline == 120.0 - 3 * 10.0 - 5.0
    assert [type(d) for d in history.waits()] == [SignalWorkers]
    assert history.state.deadline == 120.0 - 3 * 10.0 - 5.0 + 30.0, "as long as a save may take"
    history.ends(WorkerExit(0, code=0))
    history.gone(RETRY, committed=50)
    assert history.finish is not None
    assert history.finish.exit_code == ExitCode.DRAINED
    assert history.state.budget.restarts == 0


@pytest.mark.parametrize("save", [39.0, 100.0])
def test_a_notice_that_is_too_short_for_waiting_begins_the_save_at_once(save: float) -> None:
    history = noticed(save=save)
    assert history.state.status is Status.STOPPING
    assert history.state.deadline == 3 * save


def test_without_a_save_measured_or_a_known_notice_it_is_begun_at_once() -> None:
    for given in (replace(policy(), preemption_notice=120.0), policy()):
        history = started(given)
        history.runs()
        assert [type(d) for d in history.stops(StopSource.PREEMPTION)] == [SignalWorkers]


def test_only_a_preemption_is_waited_out() -> None:
    history = started(replace(policy(), preemption_notice=120.0))
    history.runs()
    history.happens(SaveMeasured(0.0, 1, 10.0))
    assert [type(d) for d in history.stops(StopSource.SIGTERM)] == [SignalWorkers]


def test_the_signal_itself_ends_the_wait_for_the_end_of_the_notice() -> None:
    history = noticed()
    history.now = 20.0
    assert history.stops(StopSource.PREEMPTION) == (), "announced twice is announced once"
    assert [type(d) for d in history.stops()] == [SignalWorkers]
    assert history.state.drain is not None
    assert history.state.drain.source is StopSource.SIGTERM
    assert history.state.drains
    patient = history.state.deadline
    history.now += 0.5
    history.stops()
    assert history.state.deadline == patient, "an echo"


def test_a_group_that_is_being_killed_is_not_asked_anything() -> None:
    history = noticed(workers=2)
    history.ends(WorkerExit(1, code=1))
    history.waits()
    assert history.stops() == ()
    assert history.state.drains


def test_a_slower_save_meanwhile_makes_the_last_one_begin_sooner() -> None:
    history = noticed()
    history.now = 50.0
    history.happens(SaveMeasured(50.0, 1, 30.0))
    history.happens(SaveMeasured(51.0, 1, 1.0))
    assert history.state.deadline == 120.0 - 3 * 30.0 - 5.0
    assert [type(d) for d in history.waits()] == [SignalWorkers]


def test_what_was_committed_before_the_last_save_is_no_sign_that_it_fits() -> None:
    history = noticed()
    history.commits(50)
    history.waits()
    assert history.state.drain is not None
    assert history.state.drain.highest == 50


def test_a_hang_before_the_machine_goes_is_told_as_one() -> None:
    history = noticed()
    history.happens(DeadlineReached(60.0, Silence(1, Stage.TRAINING, 30.0)))
    history.now = 61.0
    history.ends(KILLED)
    history.gone(RETRY)
    assert history.state.last_failure is not None
    assert history.state.last_failure.rule == "hang"


def test_a_person_who_cannot_wait_gets_the_usual_grace() -> None:
    history = noticed(save=20.0)
    history.stops(StopSource.PERSON)
    assert history.state.deadline == history.policy.grace_period


def test_once_it_was_asked_exit_0_proves_nothing() -> None:
    unproven = policy(PhasePolicy("only", 1, 1, Success()))
    history = started(replace(unproven, preemption_notice=120.0))
    history.runs()
    history.happens(SaveMeasured(0.0, 1, 10.0))
    history.stops(StopSource.PREEMPTION)
    history.waits()
    assert history.state.drains
    history.ends(WorkerExit(0, code=0))
    history.gone(None)
    assert history.finish is not None
    assert history.finish.exit_code == ExitCode.DRAINED


def test_nothing_is_started_again_when_workers_fail_before_the_machine_goes() -> None:
    history = noticed(workers=2)
    history.ends(WorkerExit(1, code=1))
    assert history.state.deadline == history.now + history.policy.farewell, "the other one hangs"
    assert [type(d) for d in history.waits()] == [KillWorkers]
    history.gone(RETRY)
    assert history.starts_decided == [1]
    assert history.finish is not None
    assert history.finish.exit_code == ExitCode.DRAINED


def test_work_that_gets_done_before_the_machine_goes_is_done() -> None:
    history = noticed()
    history.ends(WorkerExit(0, code=0))
    history.gone(None)
    assert history.finish is not None
    assert history.finish.exit_code == ExitCode.SUCCEEDED


def test_the_longest_save_outlives_a_supervisor_but_not_its_phase() -> None:
    history = started(policy(PhasePolicy("a", 1), PhasePolicy("b", 1)))
    history.runs()
    for seconds in (3.0, 8.0, 5.0):
        history.happens(SaveMeasured(0.0, 1, seconds))
    history.starts()
    assert history.state.longest_save == 8.0
    history.gone()
    history.succeeds()
    assert history.state.phase == 1
    assert history.state.longest_save is None


def test_a_person_who_stops_a_job_that_is_being_preempted_has_stopped_it() -> None:
    history = started()
    history.runs()
    history.stops(StopSource.PREEMPTION)
    history.stops(StopSource.PERSON)
    history.ends(KILLED)
    history.gone()
    assert history.finish is not None
    assert history.finish.exit_code == ExitCode.STOPPED


@pytest.mark.parametrize("source", [StopSource.SIGTERM, StopSource.PREEMPTION])
def test_a_sigterm_to_the_worker_is_not_answered_before_ours_can_have_come(
    source: StopSource,
) -> None:
    history = started()
    history.runs()
    history.ends(WorkerExit(0, signal="SIGTERM"))
    history.gone(PREEMPTED)
    assert history.state.deadline == history.now + history.policy.corroboration
    history.stops(source)
    assert history.starts_decided == [1]
    assert history.finish is not None
    assert history.finish.exit_code == ExitCode.DRAINED


def test_a_stop_while_the_workers_are_being_started_reaches_them() -> None:
    history = started()
    assert [type(each) for each in history.stops()] == [CancelLaunch]
    assert [type(d) for d in history.runs()] == [SignalWorkers]


def test_a_stop_does_not_wait_for_a_start_longer_than_its_grace() -> None:
    history = started()
    history.now = 2.0
    history.stops()
    assert history.state.deadline == 2.0 + history.policy.grace_period
    assert [type(d) for d in history.waits()] == [KillWorkers]
    history.gone(RETRY)
    assert history.finish is not None
    assert history.finish.exit_code == ExitCode.DRAINED


def test_a_stop_before_the_phase_has_begun_starts_nothing() -> None:
    history = History(policy())
    history.happens(SupervisorStarted(0.0, "job", history.policy, None))
    history.stops()
    assert history.finish is None, "what is on its way is waited for"
    history.begins()
    assert history.starts_decided == []
    assert history.finish is not None
    assert history.finish.exit_code == ExitCode.DRAINED


def test_a_stop_during_backoff_ends_at_once() -> None:
    history = started()
    history.fails()
    history.runs()
    history.ends(KILLED)
    history.gone()
    assert history.state.status is Status.BACKOFF
    history.stops()
    assert history.state.deadline is None
    assert history.finish is not None
    assert history.finish.exit_code == ExitCode.DRAINED


def test_a_launch_that_is_cancelled_ends_at_once_and_charges_nothing() -> None:
    history = started()
    decided = history.stops()
    attempt = history.state.attempt
    assert [type(each) for each in decided] == [CancelLaunch]
    assert history.happens(LaunchCancelled(history.now, attempt + 1)) == ()
    killed = history.happens(LaunchCancelled(history.now, attempt))
    assert [type(each) for each in killed] == [KillWorkers]
    assert history.told == [], "there is nobody to kill"
    history.gone()
    assert history.finish is not None
    assert history.finish.exit_code == ExitCode.DRAINED
    assert history.state.budget.restarts == 0


def test_without_a_stop_no_launch_is_cancelled() -> None:
    history = started()
    assert history.happens(LaunchCancelled(history.now, history.state.attempt)) == ()


def test_a_launch_that_fails_while_stopping_is_not_charged() -> None:
    history = started()
    history.stops()
    history.cannot_launch()
    assert history.finish is not None
    assert history.finish.exit_code == ExitCode.DRAINED
    assert history.state.budget.restarts == 0


def test_work_finished_during_a_stop_is_a_success() -> None:
    history = started()
    history.runs()
    history.stops()
    history.ends(WorkerExit(0, code=0))
    history.gone(None)
    assert history.finish is not None
    assert history.finish.exit_code == ExitCode.SUCCEEDED


def test_exit_0_during_a_stop_proves_nothing_by_itself() -> None:
    """A trainer that saves and exits 0 when asked to would else be taken for finished."""
    history = started(policy(PhasePolicy("only", 1, 1, Success())))
    history.runs()
    history.stops()
    history.ends(WorkerExit(0, code=0))
    history.gone(None)
    assert history.finish is not None
    assert history.finish.exit_code == ExitCode.DRAINED


def test_a_deadline_that_has_not_come_is_nothing() -> None:
    history = started()
    history.fails()
    history.runs()
    history.ends(KILLED)
    history.gone()
    assert history.state.backoff is not None
    assert history.happens(DeadlineReached(history.state.backoff.until - 0.1)) == ()
