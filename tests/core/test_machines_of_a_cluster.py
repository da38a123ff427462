"""Units that only a probe can name: the machines of a cluster (`PhasePolicy.num_hosts`)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.decisions import Decision, ProbeDevices, StartWorkers
from supervisor.core.events import BadUnit, DevicesProbed, Obstacle, Unfit, WorkersStarted
from supervisor.core.exit_codes import ExitCode
from supervisor.core.ladder import Ladder, Placement
from supervisor.core.policy import PhasePolicy, RestartPolicy
from supervisor.core.state import Status
from supervisor.diagnosis.failure import WorkerExit
from supervisor.diagnosis.outcome import Charge
from supervisor.diagnosis.success import Success
from tests.core.history import RETRY, History

FOUR = PhasePolicy(
    "only", 3, 2, Success(step=100), rungs=(8, 6, 4), num_hosts=4, workers_are_units=True
)
LOST = replace(RETRY, rule="host-lost", struck=True, charge=Charge.NOTHING, compared=False)


class OnMachines(History):
    """A job on machines that a cluster has; `there` are up now."""

    there: tuple[str, ...] = ("a", "b", "c", "d")

    def looks(self) -> tuple[Decision, ...]:
        """The probe that was asked for is answered."""
        asked = next(each for each in reversed(self.decided) if isinstance(each, ProbeDevices))
        assert asked.units is None, "nobody can name them"
        used = self.state.ladder.units(FOUR)
        bad = tuple(BadUnit(one, "gone", found=False) for one in used if one not in self.there)
        return self.happens(DevicesProbed(self.now, asked.number, self.there, bad))


def job(**policy: object) -> OnMachines:
    history = OnMachines(replace(RestartPolicy(phases=(FOUR,)), **policy))  # type: ignore[arg-type]
    history.starts()
    return history


def begun(decisions: tuple[Decision, ...]) -> StartWorkers:
    (decision,) = decisions
    assert isinstance(decision, StartWorkers)
    return decision


def test_before_the_first_start_the_machines_are_looked_for() -> None:
    history = job()
    assert history.state.status is Status.PROBING
    history.there = ("c", "a", "d", "b")
    assert begun(history.looks()).units == history.there, "as the engine prefers them"


def test_a_lost_machine_is_replaced_in_its_rank_and_charges_nothing() -> None:
    history = job()
    begun(history.looks())
    history.there = ("a", "c", "d", "e")
    history.fails(LOST)
    start = begun(history.looks())
    assert (start.num_devices, start.units) == (8, ("a", "e", "c", "d"))
    assert history.state.budget.restarts == 0


def test_the_host_of_each_process_and_of_a_failure_is_told() -> None:
    history = job()
    begun(history.looks())
    history.happens(WorkersStarted(history.now, 1, (5, 6, 7, 8)))
    (begins, *_) = history.told
    assert begins.text.startswith("running as pid 5 on a, 6 on b, 7 on c, 8 on d; ")
    history.ends(WorkerExit(1, code=2))
    history.waits()
    history.gone(replace(RETRY, rank=1, root_cause="no such file"), None)
    (failed,) = [line.text for line in history.told if line.event == "attempt-failed"]
    assert "root cause: no such file (rank 1 on host b)" in failed


def test_without_a_spare_the_next_rung_is_used() -> None:
    history = job()
    begun(history.looks())
    history.there = ("a", "c", "d")
    history.fails(LOST)
    start = begun(history.looks())
    assert (start.num_devices, start.units) == (6, ("a", "d", "c"))


def test_a_machine_with_a_failure_of_its_own_is_kept() -> None:
    history = job()
    begun(history.looks())
    assert begun(history.fails(RETRY)).units == ("a", "b", "c", "d")


@pytest.mark.parametrize("has_spare", [True, False])
def test_a_machine_with_too_many_failures_of_its_own_gives_way_to_a_spare(has_spare: bool) -> None:
    """Its place goes to another machine of the cluster; without one it is kept."""
    phase = replace(FOUR, rungs=(8,), max_num_restarts=9)
    history = OnMachines(RestartPolicy(phases=(phase,), blame_limit=2))
    history.starts()
    history.there = ("a", "b", "c", "d", *(["e"] if has_spare else []))
    begun(history.looks())
    own = replace(RETRY, blames_host=True, rank=1, compared=False, signature=None)
    begun(history.fails(own))
    decided = history.fails(own)
    if not has_spare:
        assert begun(decided).units == ("a", "b", "c", "d")
        return
    (look,) = decided
    assert isinstance(look, ProbeDevices)
    assert look.left_out == ("b",)
    assert begun(history.looks()).units == ("a", "e", "c", "d")


def test_a_spare_is_told_beside_the_machines_that_are_wanted() -> None:
    history = job()
    history.there = ("a", "b", "c", "d", "e")
    history.looks()
    probed = [line.text for line in history.told if line.event == "devices-probed"]
    assert probed == ["4 of 4 hosts are healthy, and 1 more"]


def test_with_too_few_machines_the_job_waits_and_ends_with_69() -> None:
    history = job(wait_for_capacity=0.0)
    history.there = ("a",)
    history.looks()
    assert history.finish is not None
    assert history.finish.exit_code == ExitCode.NO_CAPACITY
    assert "1 of 4 hosts is usable" in history.finish.reason


def test_a_probe_that_finds_what_the_last_one_found_is_one_line() -> None:
    """A job may wait for hours."""
    history = job(wait_for_capacity=3600.0, look_interval=10.0)
    begun(history.looks())
    history.there = ("a",)
    history.fails(LOST)
    history.looks()
    bad = [line.keys["unit"] for line in history.told if line.event == "device-bad"]
    assert bad == ["b", "c", "d"]

    def repeats() -> list[str]:
        before = len(history.turns)
        history.waits()
        history.looks()
        return [line.event for turn in history.turns[before:] for line in turn.lines]

    assert repeats() == ["capacity-awaited"]
    history.there = ()
    assert repeats() == ["device-bad", "devices-probed", "capacity-awaited"]
    assert repeats() == ["capacity-awaited"]
    history.there = ("b",)
    assert repeats() == ["devices-probed", "capacity-awaited"]
    probed = [line.text for line in history.told if line.event == "devices-probed"]
    assert probed[-1] == "1 of 4 hosts is healthy"
    history.there = ()
    assert "device-bad" in repeats(), "it was there, and is lost again"
    history.there = ("a", "b")
    assert repeats()[-1] == "attempt-started"


AWAY = Obstacle("the cluster does not answer: it is away", "start a head again at 10.0.0.2:6379")


def test_without_a_cluster_the_job_waits_and_ends_with_69_and_says_what_to_start() -> None:
    history = job(wait_for_capacity=15.0, look_interval=10.0)
    hardware = replace(RETRY, hardware=True)
    begun(history.looks())
    history.fails(hardware)

    def looks() -> None:
        number = history.state.looks
        history.happens(DevicesProbed(history.now, number, (), (), obstacle=AWAY))

    looks()
    assert history.state.status is Status.WAITING, "the failure is not charged: no host was probed"
    while history.finish is None:
        history.waits()
        looks()
    assert history.state.budget.restarts == 0
    assert history.finish.exit_code == ExitCode.NO_CAPACITY
    assert (
        history.finish.reason == f"{AWAY.reason}; run the same command again once that has changed"
    )
    (advice,) = (line.text for line in history.told if line.event == "advice")
    assert advice == f"what to do: {AWAY.advice}"


def test_hosts_that_only_a_person_can_mend_end_the_job_with_78_at_once() -> None:
    history = job(wait_for_capacity=3600.0)
    unfit = Obstacle("no host can be used: n0: it has supervise 0.1", "install 0.2", lasts=True)
    history.happens(DevicesProbed(history.now, history.state.looks, (), (), obstacle=unfit))
    assert history.finish is not None
    assert history.finish.exit_code == ExitCode.INVALID_CONFIG
    assert history.finish.reason == unfit.reason
    assert "what to do: install 0.2" in [line.text for line in history.told]
    history.starts()
    assert begun(history.looks()).attempt == 1, "mended, the same job goes on"


@pytest.mark.parametrize(
    ("number", "code"), [(1, ExitCode.INVALID_CONFIG), (0, ExitCode.NO_CAPACITY)]
)
def test_if_hosts_that_a_person_can_mend_are_all_that_is_missing_the_wait_ends_with_78(
    number: int, code: ExitCode
) -> None:
    """Their problem is told again at the end: the first time may be hours ago."""
    history = job(wait_for_capacity=15.0, look_interval=10.0)
    unfit = Unfit(number, "host c: it does not see this model_dir", "share it")
    found = DevicesProbed(history.now, history.state.looks, ("a",), (), unfit=unfit)
    history.happens(found)
    assert history.finish is None
    while history.finish is None:
        history.waits()
        number_of_look = history.state.looks
        history.happens(replace(found, at=history.now, number=number_of_look))
    assert history.finish.exit_code == code
    assert "1 of 4 hosts is usable" in history.finish.reason
    assert "; host c: it does not see this model_dir; run the same" in history.finish.reason
    advice = "what to do: share it; then run the same command again"
    assert advice in [line.text for line in history.told]


_machines = st.lists(st.sampled_from("abcdefgh"), unique=True)


@given(_machines, st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=4))
def test_who_stays_keeps_its_rank_and_comes_before_spares(
    usable: list[str], before: list[str]
) -> None:
    ladder = Ladder(placement=Placement(8, tuple(before)))
    found = ladder.place(FOUR, usable)
    if len(usable) < 2:
        assert found is None
        return
    assert found is not None
    assert len(found.units) == min(4, len(usable)) == len(set(found.units))
    stay = [unit for unit in before if unit in usable]
    new = [unit for unit in usable if unit not in before]
    assert set(found.units) == set((stay + new)[: len(found.units)]), "in the order of preference"
    for rank, unit in enumerate(before[: len(found.units)]):
        assert unit not in found.units or found.units[rank] == unit


@pytest.mark.parametrize("struck", [8, 6])
def test_a_struck_rung_is_left_out(struck: int) -> None:
    ladder = Ladder().strike(struck, "too large")
    found = ladder.place(FOUR, frozenset("abcd"))
    assert found is not None
    assert found.num_devices == (6 if struck == 8 else 8)
