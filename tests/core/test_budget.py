"""What a restart budget remembers of failures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.budget import Budget
from supervisor.core.policy import PhasePolicy
from supervisor.diagnosis.success import Success

LIMITED = PhasePolicy("p", 3, 3, Success())
UNLIMITED = PhasePolicy("p", 3, 3, Success(), repeated_failure_limit=0)


@pytest.mark.parametrize(("signature", "policy"), [(None, LIMITED), ("E-1", UNLIMITED)])
def test_what_can_never_end_the_job_is_not_remembered(
    signature: str | None, policy: PhasePolicy
) -> None:
    assert Budget().failed(signature, policy) == Budget()


def test_repetitions_are_counted_by_signature_until_there_is_progress() -> None:
    budget = Budget()
    for signature in ("E-1", "E-2", None, "E-1"):
        budget = budget.failed(signature, LIMITED)
    assert [budget.repetitions(one) for one in ("E-1", "E-2", "E-3", None)] == [2, 1, 0, 0]
    assert budget.committed(4).repetitions("E-1") == 0


def test_while_one_step_was_seen_a_lower_one_that_is_new_takes_its_place_once() -> None:
    base = Budget(restarts=1).committed(50000)
    assert base.is_lone
    assert base.committed(100) == base, "it was there before"
    own = replace(base, restarts=1).committed(100, new=True)
    assert (own.highest, own.restarts) == (100, 0)
    assert own.committed(50000) == own, "a base model's step does not count any more"
    assert own.own(50000) == 100
    assert own.own(90) == 90
    assert own.committed(90, new=True) == own, "this happens once"
    assert own.committed(60000).highest == 60000


def test_where_steps_rise_no_lower_one_takes_their_place() -> None:
    rising = Budget().committed(100).committed(200)
    assert not rising.is_lone
    assert rising.committed(50, new=True) == rising
    assert rising.committed(100, new=True) == rising


def test_a_step_that_the_program_has_reached_is_its_own() -> None:
    lone = Budget().committed(100)
    assert lone.told(None, trained=None).is_lone
    assert lone.told(99, trained=None).is_lone
    reached = lone.told(100, trained=False)
    assert not reached.is_lone
    assert reached.committed(50, new=True).highest == 100


def test_a_lone_step_completes_the_work_unless_the_program_went_on_below_it() -> None:
    lone = Budget().committed(101)
    assert lone.proves(101, 100, exited=True), "nothing else is known of a silent program"
    assert not lone.proves(101, 100, exited=False)
    assert not Budget().committed(102).proves(102, 100, exited=True)
    for trained in (True, False):
        known = lone.told(7, trained=trained)
        assert known.proves(101, 100, exited=True) is trained
        assert known.proves(101, 100, exited=False) is trained
        assert known.told(7, trained=None).fresh().trained is trained, "it is remembered"
        assert known.committed(110).proves(110, 100, exited=False)


def test_fresh_counts_remember_which_step_is_a_base_models() -> None:
    own = Budget().committed(50000).committed(100, new=True)
    assert own.fresh().committed(50000).highest == 100


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=30))
def test_the_highest_step_falls_once_at_most(commits: list[tuple[int, bool]]) -> None:
    budget, falls = Budget(), 0
    for step, new in commits:
        after = budget.committed(step, new=new)
        falls += budget.highest is not None and (after.highest or 0) < budget.highest
        budget = after
    assert falls <= 1
