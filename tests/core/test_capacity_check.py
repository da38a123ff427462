"""What the next attempt runs on: histories of devices and hosts that are lost and come back."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from supervisor.config.judgement import Remedy
from supervisor.core.decisions import (
    Decision,
    FinishJob,
    ProbeDevices,
    SignalWorkers,
    StartWorkers,
    Wait,
)
from supervisor.core.events import (
    BadUnit,
    DeadlineReached,
    DeviceFoundWrong,
    DevicesProbed,
    QuarantineCleared,
    RungCompileFailed,
    SupervisorStarted,
)
from supervisor.core.exit_codes import ExitCode
from supervisor.core.ladder import Ladder, Placement
from supervisor.core.machine import step
from supervisor.core.policy import PhasePolicy, RestartPolicy
from supervisor.core.state import Status
from supervisor.diagnosis.failure import Verdict, WorkerExit
from supervisor.diagnosis.success import Success
from supervisor.narrative import render
from supervisor.ports import Transition
from supervisor.protocol.adjustments import ACCUMULATION, Adjustments
from tests.core.history import FATAL, RETRY, History

HARDWARE = replace(RETRY, rule="hardware", hardware=True)
TOO_SMALL = replace(FATAL, rule="compile", cause="compilation failed", per_rung=True)
EIGHT = PhasePolicy(
    "only",
    3,
    2,
    Success(step=100),
    rungs=(8, 4, 2),
    units=tuple("01234567"),
)
HOSTS = replace(
    EIGHT, rungs=(8, 6, 4), units=("host0", "host1", "host2", "host3"), workers_are_units=True
)
TWO_PHASES = RestartPolicy(phases=(EIGHT, replace(EIGHT, name="next")))


CORRUPTION = replace(RETRY, rule="silent-corruption", cause="it computed wrongly", hardware=True)


class Devices(History):
    """A job on devices; `lost` and `wrong` are true of them now."""

    lost: frozenset[str] = frozenset()
    wrong: frozenset[str] = frozenset()

    def looks(self) -> tuple[Decision, ...]:
        """The devices asked for last are looked at."""
        asked = next(d for d in reversed(self.decided) if isinstance(d, ProbeDevices))
        phase = self.policy.phases[asked.phase]
        units = phase.units if asked.units is None else asked.units
        bad = [BadUnit(unit, "not found", found=False) for unit in units if unit in self.lost]
        bad += [BadUnit(unit, "it computes wrongly") for unit in units if unit in self.wrong]
        well = tuple(unit for unit in units if unit not in self.lost | self.wrong)
        return self.happens(DevicesProbed(self.now, asked.number, well, tuple(bad)))

    def cannot_look(self) -> tuple[Decision, ...]:
        """Nothing is found out."""
        number = self.state.looks
        return self.happens(DevicesProbed(self.now, number, (), (), problem="it hung"))


def job(phase: PhasePolicy = EIGHT, **policy: object) -> Devices:
    history = Devices(replace(RestartPolicy(phases=(phase,)), **policy))  # type: ignore[arg-type]
    history.starts()
    return history


def shrunk(**policy: object) -> Devices:
    """A job that goes on with four of its eight devices."""
    history = job(**policy)  # type: ignore[arg-type]
    history.lost = frozenset("3")
    history.fails(HARDWARE)
    history.looks()
    assert history.state.ladder.placement == Placement(4, tuple("0124"))
    return history


def start(decisions: tuple[Decision, ...]) -> StartWorkers:
    (decision,) = decisions
    assert isinstance(decision, StartWorkers)
    return decision


def test_it_shrinks_to_the_largest_rung_that_is_there_and_nothing_is_charged() -> None:
    history = job()
    history.lost = frozenset("3")
    (look,) = history.fails(HARDWARE)
    assert isinstance(look, ProbeDevices)
    assert (look.units, history.state.status) == (None, Status.PROBING)
    begun = start(history.looks())
    assert (begun.num_devices, begun.units) == (4, tuple("0124"))
    assert "nothing is charged" in begun.reason
    assert history.state.budget.restarts == 0


def test_devices_that_prove_to_be_well_cost_a_restart_and_no_rung() -> None:
    history = job()
    history.fails(HARDWARE)
    assert start(history.looks()).num_devices == 8
    assert history.state.budget.restarts == 1
    for _ in range(3):
        history.fails(HARDWARE)
        history.looks()
        if history.state.backoff is not None:
            history.waits()
    assert history.finish is not None
    assert history.finish.exit_code == ExitCode.BUDGET_SPENT


def test_a_failure_that_does_not_point_at_devices_looks_at_nothing() -> None:
    history = job()
    assert start(history.fails(RETRY)).num_devices is None


def test_a_look_that_finds_nothing_out_changes_nothing() -> None:
    history = job()
    history.fails(HARDWARE)
    assert start(history.cannot_look()).num_devices == 8
    assert history.state.budget.restarts == 1

    history = shrunk()
    history.fails(RETRY)
    assert start(history.cannot_look()).units == tuple("0124")


@pytest.mark.parametrize(
    ("problem", "told"),
    [
        (
            None,
            "the probe found the devices healthy, so the failure is charged: 1 of 3 restarts used",
        ),
        ("it hung", "the probe failed, so the failure is charged: 1 of 3 restarts"),
    ],
)
def test_devices_are_called_well_only_where_they_were_seen(problem: str | None, told: str) -> None:
    history = job()
    history.fails(HARDWARE)
    before = history.state
    healthy = () if problem else EIGHT.units
    event = DevicesProbed(history.now, before.looks, healthy, (), problem)
    after, decisions = step(before, event, history.policy)
    transition = Transition(event, before, after, decisions, datetime(2026, 1, 1, tzinfo=UTC))
    text = [line.text for line in render(transition, history.policy)]
    assert any(line.startswith(told) for line in text)
    assert problem is None or not any("found the devices healthy" in line for line in text)


def test_no_host_is_to_be_replaced_whose_devices_could_not_be_probed() -> None:
    history = job(replace(EIGHT, max_num_restarts=0))
    advice = "If it comes back, have the host replaced."
    history.fails(replace(HARDWARE, advice=advice))
    history.cannot_look()
    assert history.finish is not None
    (told,) = (line for line in history.told if line.event == "advice")
    assert "could not be probed (it hung): nothing shows that they are at fault" in told.text
    assert advice not in told.text


def test_a_job_that_has_shrunk_grows_back_at_its_next_restart() -> None:
    history = shrunk()
    history.lost = frozenset()
    (look,) = history.fails(RETRY)
    assert isinstance(look, ProbeDevices)
    begun = start(history.looks())
    assert (begun.num_devices, begun.units) == (8, tuple("01234567"))


def test_too_few_devices_are_waited_for_and_in_the_end_the_job_stops_unharmed() -> None:
    history = job(wait_for_capacity=25.0, look_interval=10.0)
    history.lost = frozenset("1234567")
    history.fails(HARDWARE)
    waited = []
    while history.finish is None:
        (decision,) = history.looks()
        if isinstance(decision, Wait):
            waited.append(decision.seconds)
            assert history.state.status is Status.WAITING
            assert history.waits()
    assert waited == [10.0, 10.0, 5.0]
    assert history.finish.exit_code == ExitCode.NO_CAPACITY
    assert "1 of 8 devices is usable, and the smallest rung needs 2" in history.finish.reason
    assert history.state.budget.restarts == 0

    history.lost = frozenset("1")
    history.starts()
    history.fails(HARDWARE)
    assert start(history.looks()).num_devices == 4


@given(st.floats(1.0, 1e9), st.booleans())
@example(2047.948347974467, True)
def test_a_wait_ends_whatever_the_clock_shows(now: float, whole: bool) -> None:
    """What is left of it may be less than the clock can tell."""
    limit = "wait_for_capacity" if whole else "wait_for_replacement"
    history = job(EIGHT, look_interval=10.0, **{limit: 60.0})
    history.now = now
    history.lost = frozenset("1234567" if whole else "1")
    history.fails(HARDWARE)
    for _ in range(8):
        (decision,) = history.looks()
        if not isinstance(decision, Wait):
            break
        assert history.waits()
    assert isinstance(decision, FinishJob if whole else StartWorkers)


def test_capacity_that_returns_in_time_is_taken() -> None:
    history = job()
    history.lost = frozenset("1234567")
    history.fails(HARDWARE)
    history.looks()
    history.waits()
    history.lost = frozenset("1")
    assert start(history.looks()).num_devices == 4


@pytest.mark.parametrize(("returns", "rung"), [(True, 8), (False, 4)])
def test_a_replacement_is_waited_for_before_the_job_shrinks(returns: bool, rung: int) -> None:
    history = job(wait_for_replacement=15.0)
    history.now = 50.0
    history.lost = frozenset("5")
    history.fails(HARDWARE)
    (decision,) = history.looks()
    assert isinstance(decision, Wait)
    assert "waiting for a replacement" in decision.reason
    if returns:
        history.lost = frozenset()
    history.waits()
    decisions = history.looks()
    if not returns:
        assert isinstance(decisions[0], Wait)
        history.waits()
        decisions = history.looks()
    assert start(decisions).num_devices == rung


def test_wrong_results_put_a_device_into_quarantine_until_its_time_is_over() -> None:
    history = job(quarantine_for=100.0)
    history.wrong = frozenset("0")
    history.fails(HARDWARE)
    assert start(history.looks()).units == tuple("1234")
    (entry,) = history.state.quarantine.entries
    assert (entry.unit, entry.reason, entry.until) == ("0", "it computes wrongly", 100.0)
    history.wrong = frozenset()
    history.fails(RETRY)
    assert start(history.looks()).units == tuple("1234"), "it may be well now, but is not trusted"
    history.now = 101.0
    history.fails(RETRY)
    assert start(history.looks()).num_devices == 8


def test_a_quarantine_outlives_the_supervisor_by_the_time_of_day() -> None:
    history = job(quarantine_for=100.0)
    history.wrong = frozenset("0")
    history.fails(HARDWARE)
    history.looks()
    event = SupervisorStarted(1000.0, "job", history.policy, None, epoch=-960.0)
    history.happens(event)
    (entry,) = history.state.quarantine.entries
    assert entry.until - 1000.0 == pytest.approx(100.0 - 40.0)
    history.happens(replace(event, at=2000.0, epoch=-5000.0))  # somebody set the clock back
    (entry,) = history.state.quarantine.entries
    assert entry.until - 2000.0 == 100.0


def test_a_quarantine_that_is_over_is_no_reason_to_look() -> None:
    history = job()
    kept = history.state.quarantine.add({"3": "it computes wrongly"}, until=5.0)
    history.state = replace(history.state, quarantine=kept)
    history.now = 5.0
    assert start(history.fails(RETRY)).num_devices is None
    assert history.state.quarantine.units == frozenset()


def test_what_workers_can_adjust_is_known_after_a_look_too() -> None:
    memory = replace(HARDWARE, verdict=Verdict.POLICY, remedy=Remedy.LESS_AT_ONCE)
    history = job()
    for _ in range(2):
        history.fails(memory, adjustable=(ACCUMULATION,))
        history.looks()
    assert history.state.remediation.adjustments == Adjustments(accumulation=2)


def test_a_person_can_end_a_quarantine() -> None:
    history = job()
    history.wrong = frozenset("01")
    history.fails(HARDWARE)
    history.looks()
    history.happens(QuarantineCleared(history.now, ("1",)))
    assert history.state.quarantine.units == {"0"}
    history.happens(QuarantineCleared(history.now, ()))
    assert history.state.quarantine.units == frozenset()


def test_a_host_that_is_the_root_cause_too_often_is_left_out() -> None:
    history = job(HOSTS, blame_limit=2)
    guilty = replace(RETRY, rank=2, blames_host=True)
    assert start(history.fails(guilty)).num_devices is None
    (look,) = history.fails(guilty)
    assert isinstance(look, ProbeDevices)
    lines = (line for turn in history.turns for line in turn.lines)
    (told,) = (line for line in lines if line.event == "device-bad")
    why = f"root cause of 2 failures, the last: {guilty.cause}"
    assert told.text == (
        f"host host2: {why}; in quarantine for 60 min, or until `supervise quarantine clear "
        "MODEL_DIR`"
    )
    begun = start(history.looks())
    assert "4 of 4 hosts are healthy, but host host2 is in quarantine" in [
        each.text for each in history.told
    ]
    assert (begun.num_devices, begun.units) == (6, ("host0", "host1", "host3"))
    assert history.state.quarantine.units == {"host2"}
    assert history.state.budget.restarts == 2
    # Rank 2 is another host now.
    history.fails(guilty)
    history.looks()
    assert history.state.quarantine.times_blamed("host3") == 1


def test_a_host_without_which_nothing_runs_is_kept_whatever_is_said_of_it() -> None:
    history = job(replace(HOSTS, rungs=(8,)), blame_limit=2)
    for _ in range(3):
        history.fails(replace(RETRY, rank=2, blames_host=True))
    assert history.state.quarantine.entries == ()


def test_a_worker_that_is_struck_may_have_lost_its_host_and_is_looked_for() -> None:
    struck = replace(RETRY, rank=1, struck=True)
    history = job(HOSTS)
    history.lost = frozenset({"host1"})
    (look,) = history.fails(struck)
    assert isinstance(look, ProbeDevices)
    assert start(history.looks()).units == ("host0", "host2", "host3")
    assert history.state.budget.restarts == 0
    assert start(job().fails(struck)).num_devices is None, "a device does not go like that"


def test_blame_is_forgotten_with_time() -> None:
    history = job(HOSTS, blame_limit=2, blame_window=50.0)
    guilty = replace(RETRY, rank=2, blames_host=True)
    history.fails(guilty, committed=1)
    history.now += 51.0
    history.fails(guilty, committed=2)
    assert history.state.quarantine.units == frozenset()


def test_a_rung_that_cannot_be_compiled_for_is_struck_and_the_full_one_is_fatal() -> None:
    history = shrunk()
    (look,) = history.fails(TOO_SMALL)
    assert isinstance(look, ProbeDevices)
    assert start(history.looks()).num_devices == 2
    assert history.state.budget.restarts == 0
    history.lost = frozenset()
    history.fails(RETRY)
    assert start(history.looks()).num_devices == 8
    history.fails(TOO_SMALL)
    assert history.finish is not None
    assert history.finish.exit_code == ExitCode.FAILED


def test_what_a_prefetch_finds_out_strikes_a_smaller_rung_only() -> None:
    history = job()
    history.runs()
    for rung in (8, 4, 3):
        history.happens(RungCompileFailed(history.now, 0, rung, "it does not fit"))
    assert [struck.num_devices for struck in history.state.ladder.struck] == [4]
    history.lost = frozenset("7")
    history.ends(WorkerExit(0, code=1))
    history.gone(HARDWARE)
    assert start(history.looks()).num_devices == 2


def test_a_rung_that_is_out_of_use_is_not_said_to_be_missing() -> None:
    history = job()
    history.runs()
    history.happens(RungCompileFailed(history.now, 0, 4, "it does not fit"))
    history.lost = frozenset("4567")
    history.ends(WorkerExit(0, code=1))
    history.gone(HARDWARE)
    history.looks()
    (told,) = (line for line in history.told if line.event == "rung-changed")
    assert told.text == (
        "the job shrinks from 8 to 2 devices, as 4 are out of use: it does not fit"
    )


def test_nothing_is_left_when_every_rung_that_is_there_is_struck() -> None:
    history = shrunk(wait_for_capacity=0.0)
    history.fails(TOO_SMALL)
    history.looks()
    history.fails(TOO_SMALL)
    (end,) = history.looks()
    assert isinstance(end, FinishJob)
    assert end.exit_code == ExitCode.NO_CAPACITY


def growing(**policy: object) -> Devices:
    """A job that has shrunk, runs, and sees the lost device again."""
    history = shrunk(regrow_at_checkpoint=True, regrow_after=60.0, **policy)
    history.runs()
    history.lost = frozenset()
    (look,) = history.waits()
    assert isinstance(look, ProbeDevices)
    assert look.units == tuple("3567")
    history.looks()
    return history


def test_it_makes_way_after_a_commit_once_the_larger_rung_has_been_well_for_a_while() -> None:
    history = growing()
    assert history.commits(10) == ()
    history.now += 60.0
    (signal,) = history.commits(20)
    assert isinstance(signal, SignalWorkers)
    history.ends(WorkerExit(0, code=0))
    (look,) = history.gone(RETRY, committed=21)
    assert isinstance(look, ProbeDevices)
    begun = start(history.looks())
    assert (begun.num_devices, "nothing is charged" in begun.reason) == (8, True)
    assert history.state.budget.restarts == 0


def test_a_device_that_comes_and_goes_is_not_waited_for_with_a_running_job() -> None:
    history = growing()
    history.lost = frozenset("6")
    history.waits()
    history.looks()
    assert history.state.ladder.larger_since is None
    history.now += 1000.0
    assert history.commits(20) == ()


def test_the_job_makes_way_later_each_time_that_it_did_not_last() -> None:
    history = growing()
    history.now += 60.0
    history.commits(20)
    history.ends(WorkerExit(0, code=0))
    history.gone(RETRY, committed=20)
    history.looks()
    history.lost = frozenset("3")
    history.fails(HARDWARE, committed=20)
    history.looks()
    assert history.state.ladder.flaps == 1
    history.runs()
    history.lost = frozenset()
    history.waits()
    history.looks()
    history.now += 60.0
    assert history.commits(30) == ()
    history.now += 60.0
    assert isinstance(history.commits(40)[0], SignalWorkers)


def test_work_that_is_done_is_done_although_it_was_asked_to_make_way() -> None:
    history = growing()
    history.now += 60.0
    history.commits(20)
    history.ends(WorkerExit(0, code=0))
    history.gone(None, committed=100)
    assert history.state.status is Status.SUCCEEDED


def test_what_is_missing_is_missing_in_the_next_phase_too() -> None:
    history = Devices(TWO_PHASES)
    history.starts()
    history.lost = frozenset("3")
    history.fails(HARDWARE)
    history.looks()
    history.succeeds()
    (look,) = history.begins()
    assert isinstance(look, ProbeDevices)
    assert start(history.looks()).num_devices == 4


def test_a_supervisor_that_dies_while_it_waits_looks_again() -> None:
    history = job()
    history.lost = frozenset("1234567")
    history.fails(HARDWARE)
    history.starts()
    history.looks()
    (look,) = history.starts()
    assert isinstance(look, ProbeDevices)
    history.lost = frozenset("1")
    assert start(history.looks()).num_devices == 4
    assert history.state.budget.restarts == 0


def test_an_unanswered_look_is_repeated_and_a_stop_ends_it() -> None:
    history = job()
    history.fails(HARDWARE)
    (look,) = history.waits()
    assert isinstance(look, ProbeDevices)
    (end,) = history.stops()
    assert isinstance(end, FinishJob)
    assert end.exit_code == ExitCode.DRAINED
    assert history.happens(DeadlineReached(history.now + 1000.0)) == ()


def test_the_answer_to_another_look_is_not_taken_for_this_one() -> None:
    history = growing()
    history.now += 60.0
    spare = history.state.looks
    history.commits(20)
    history.ends(WorkerExit(0, code=0))
    history.gone(RETRY, committed=20)
    late = DevicesProbed(history.now, spare, tuple("3567"), ())
    assert history.happens(late) == ()
    assert start(history.looks()).num_devices == 8


def test_other_devices_on_the_same_rung_are_neither_growth_nor_flap() -> None:
    before = Ladder(Placement(4, tuple("0124")), grown_at=5.0, flaps=1)
    after = before.moved(EIGHT, Placement(4, tuple("1245")), at=6.0, soon=60.0)
    assert (after.grown_at, after.flaps) == (5.0, 1)


def test_neighbours_are_taken_where_a_rung_needs_them() -> None:
    phase = replace(EIGHT, side_by_side=True)
    assert Ladder().place(phase, set("0124567")) == Placement(4, tuple("4567"))
    assert Ladder().place(phase, set("012567")) == Placement(2, tuple("01"))
    assert Ladder().place(phase, set("0246")) is None


def test_a_ladder_that_the_config_no_longer_has_is_forgotten_but_not_what_was_missing() -> None:
    history = shrunk()
    history.succeeds()
    smaller = replace(EIGHT, rungs=(6, 3), units=tuple("012345"), success=Success(step=200))
    history.policy = RestartPolicy(phases=(smaller,))
    (look,) = history.starts()
    assert isinstance(look, ProbeDevices)
    assert start(history.looks()).num_devices == 3


@given(
    st.sampled_from([(8, 4, 2, 1), (8, 6, 3), (4,), (8, 2)]),
    st.sets(st.sampled_from("01234567")),
    st.sets(st.sampled_from([8, 4, 2])),
    st.booleans(),
)
def test_the_largest_rung_that_fits_is_taken(
    rungs: tuple[int, ...], usable: set[str], struck: set[int], side_by_side: bool
) -> None:
    """Against a search through all rungs and their places."""
    phase = replace(EIGHT, rungs=rungs, side_by_side=side_by_side)
    ladder = Ladder()
    for num_devices in struck:
        ladder = ladder.strike(num_devices, "it cannot be compiled")
    fit = []
    for num_devices in set(rungs) - struck:
        size = num_devices * 8 // rungs[0]
        usual = [tuple(unit for unit in phase.units if unit in usable)[:size]]
        runs = [phase.units[at : at + size] for at in range(0, 8, size)]
        for run in runs if side_by_side else usual:
            if len(run) == size and usable.issuperset(run):
                fit.append(Placement(num_devices, run))
                break
    assert ladder.place(phase, usable) == max(fit, key=lambda each: each.num_devices, default=None)


def test_a_device_that_the_workers_found_wrong_is_left_out_though_a_probe_finds_it_well() -> None:
    history = job()
    assert history.happens(DeviceFoundWrong(history.now, 1, "3", 500, "wrong gradients")) == ()
    (told,) = history.told
    assert told.event == "device-bad"
    assert told.text == (
        "device 3: wrong gradients; in quarantine for 60 min, or until `supervise quarantine clear "
        "MODEL_DIR`"
    )
    (look,) = history.fails(CORRUPTION)
    assert isinstance(look, ProbeDevices)
    assert look.left_out == ("3",)
    begun = start(history.looks())
    (told,) = (line for line in history.told if line.event == "rung-changed")
    assert told.text == (
        "the job shrinks from 8 to 4 devices, as its ladder has no 7 (only 8, 4, 2; "
        "`supervise validate` says why)"
    )
    assert (begun.num_devices, begun.units) == (4, tuple("0124"))
    assert "not the program, but a device: nothing is charged" in begun.reason
    assert history.state.budget.restarts == 0


def test_corruption_that_names_no_device_is_charged_after_a_probe() -> None:
    history = job()
    history.fails(CORRUPTION)
    begun = start(history.looks())
    assert begun.num_devices == 8
    assert history.state.budget.restarts == 1


@pytest.mark.parametrize(("attempt", "unit"), [(2, "3"), (1, "host7"), (1, "9")])
def test_what_is_not_of_this_attempt_is_not_put_into_quarantine(attempt: int, unit: str) -> None:
    history = job()
    history.happens(DeviceFoundWrong(history.now, attempt, unit, 500, "wrong gradients"))
    assert history.state.quarantine.units == frozenset()
