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


def after(*commits: tuple[int, int], before: Budget | None = None) -> Budget:
    """The budget after commits of (epoch, step)."""
    budget = Budget() if before is None else before
    for epoch, step in commits:
        budget = budget.committed(step, epochs=(epoch,))
    return budget


@pytest.mark.parametrize(
    ("commit", "is_progress"),
    [
        ((3, 5), True),
        ((3, 90), True),
        ((2, 91), True),
        ((2, 90), False),
        ((2, 5), False),
        ((1, 95), False),
        ((0, 5), False),
    ],
)
def test_a_later_epoch_is_progress_whatever_its_step(
    commit: tuple[int, int], is_progress: bool
) -> None:
    spent = replace(after((1, 90), (2, 90)), restarts=2)
    assert (after(commit, before=spent).restarts == 0) is is_progress
    assert (after(commit, before=spent).highest == commit[1]) is (is_progress or commit == (2, 90))


def test_the_steps_of_a_later_epoch_count_from_its_first_one() -> None:
    spent = replace(after((2, 90), (3, 5)), restarts=2)
    assert after((3, 6), before=spent).restarts == 0
    assert after((3, 5), (2, 95), (3, 4), before=spent) == spent


def test_where_names_have_no_epoch_or_a_going_count_nothing_changes() -> None:
    spent = replace(after((0, 100), (1, 200)), restarts=2)
    assert after((1, 200), before=spent) == spent
    assert after((2, 300), before=spent).restarts == 0
    assert spent.committed(150) == spent
    assert spent.committed(201).restarts == 0


def test_the_epoch_of_a_step_that_was_there_is_learned() -> None:
    """Whoever looks before the first attempt tells the number alone."""
    spent = replace(Budget().committed(90), restarts=2)
    known = after((2, 90), before=spent)
    assert (known.restarts, known.highest, known.is_lone) == (2, 90, True)
    assert after((3, 5), before=known).restarts == 0


def test_a_base_model_of_a_later_epoch_gives_way_once() -> None:
    base = after((9, 50))
    assert base.committed(50, epochs=(0,)) == base, "it is not known whether the program made it"
    own = base.committed(5, new=True, epochs=(0,))
    assert (own.highest, own.is_base(50)) == (5, True)
    spent = replace(after((0, 60), before=own), restarts=2)
    assert after((9, 50), before=spent) == spent
    assert spent.own(50) == 60
    assert after((0, 70), before=spent).restarts == 0
    assert after((1, 50), before=spent).restarts == 0, "a step with the number of the base model"


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=30))
def test_no_commit_refills_twice(commits: list[tuple[int, int]]) -> None:
    spent = replace(after(*commits), restarts=1)
    assert after(*commits, before=spent).restarts == 1


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=30))
def test_the_highest_step_falls_once_at_most(commits: list[tuple[int, bool]]) -> None:
    budget, falls = Budget(), 0
    for step, new in commits:
        after = budget.committed(step, new=new)
        falls += budget.highest is not None and (after.highest or 0) < budget.highest
        budget = after
    assert falls <= 1
