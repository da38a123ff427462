"""What is deleted for a limit: the oldest, no more than must be, and nothing that is in use."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.retention import Kept, excess, limit_told

kept = st.builds(
    Kept,
    name=st.text("abc", max_size=3),
    size=st.integers(0, 100),
    used=st.integers(0, 5),
    in_use=st.booleans(),
)
several = st.lists(kept, max_size=12, unique_by=lambda one: one.name)
limits = st.integers(0, 500)


def total(found: list[Kept]) -> int:
    return sum(one.size for one in found)


@given(several, limits)
def test_what_is_in_use_stays_and_the_rest_fits(found: list[Kept], limit: int) -> None:
    deleted = excess(found, limit)
    rest = [one for one in found if one not in deleted]
    assert not any(one.in_use for one in deleted)
    assert total(rest) <= limit or all(one.in_use or not one.size for one in rest)


@given(several, limits)
def test_no_more_is_deleted_than_must_be(found: list[Kept], limit: int) -> None:
    deleted = list(excess(found, limit))
    if deleted:
        assert total(found) - total(deleted[:-1]) > limit
        assert all(one.size for one in deleted)


@given(several, limits)
def test_the_oldest_go_first(found: list[Kept], limit: int) -> None:
    deleted = excess(found, limit)
    stays = [one for one in found if one not in deleted and not one.in_use and one.size]
    assert max((one.used for one in deleted), default=0) <= min(
        (one.used for one in stays), default=5
    )


@given(several, limits)
def test_the_order_of_the_list_does_not_matter(found: list[Kept], limit: int) -> None:
    shuffled = sorted(found, key=lambda one: one.name)
    assert excess(found, limit) == excess(shuffled, limit)


def test_it_is_told_with_the_key_that_raises_the_limit() -> None:
    assert limit_told("the outputs of attempt 1", 3 << 29, "outputs", 10 << 30) == (
        "deleted the outputs of attempt 1, 1.5 GiB: together they may take 10 GiB "
        "(trainer.init.limits.outputs)"
    )


def test_what_just_fits_stays() -> None:
    found = [Kept("a", 60, 1.0), Kept("b", 40, 2.0)]
    assert excess(found, 100) == ()
    assert excess(found, 99) == (found[0],)
