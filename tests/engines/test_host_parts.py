"""Which parts of a host are looked at, and what is concluded: on hosts that are made up."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.events import BadUnit
from supervisor.engines.probing.device_probe import ProbeLimits
from supervisor.engines.probing.host_parts import (
    Part,
    PartResult,
    faulty_units,
    first_parts,
    healthy_units,
    next_part,
    patience,
)

EIGHT = tuple("01234567")
STUCK = PartResult("stuck")


def looked(begin: tuple[Part, ...], stuck: frozenset[str]) -> Mapping[Part, PartResult]:
    """All parts that are tried on a host where a part with a `stuck` unit does not come up."""
    tried: dict[Part, PartResult] = {}
    while (part := next_part(begin, tried)) is not None:
        assert part not in tried
        tried[part] = STUCK if stuck.intersection(part) else PartResult()
    return tried


@given(wanted=st.sets(st.sampled_from(EIGHT)), stuck=st.frozensets(st.sampled_from(EIGHT)))
def test_just_the_stuck_units_are_told_and_each_was_looked_at_alone(
    wanted: set[str], stuck: frozenset[str]
) -> None:
    begin = first_parts(EIGHT, tuple(sorted(wanted)))
    tried = looked(begin, stuck)
    assert healthy_units(tried) == wanted - stuck
    bad = faulty_units(tuple(sorted(wanted)), tried)
    assert bad == tuple(BadUnit(unit, "stuck", found=False) for unit in sorted(wanted & stuck))
    assert all((each.unit,) in tried for each in bad)
    for part in tried:
        assert len(part) in (1, 2, 4, 8)
        assert EIGHT.index(part[0]) % len(part) == 0, "not aligned"


def test_a_host_that_is_well_is_looked_at_once_and_one_stuck_chip_costs_six_looks_more() -> None:
    assert list(looked(first_parts(EIGHT, EIGHT), frozenset())) == [EIGHT]
    parts = ["".join(part) for part in looked(first_parts(EIGHT, EIGHT), frozenset("5"))]
    assert parts == ["01234567", "0123", "4567", "45", "67", "4", "5"]


def in_time(stuck: frozenset[str], start: float) -> frozenset[str]:
    """The units that come out well before the time for all looks is over. A look at a part takes 6
    seconds more than its start."""
    limits, tried, now = ProbeLimits(), dict[Part, PartResult](), 0.0
    while (part := next_part((EIGHT,), tried)) is not None:
        limit = patience(tried, limits.start)
        hangs = bool(stuck.intersection(part)) or start > limit
        now += limit if hangs else start + 6
        if now > limits.all:
            break
        tried[part] = STUCK if hangs else PartResult(startup_seconds=start)
    return healthy_units(tried)


@given(stuck=st.frozensets(st.sampled_from(EIGHT), max_size=1), start=st.floats(1, 40))
def test_beside_one_stuck_chip_all_others_are_found_in_time(
    stuck: frozenset[str], start: float
) -> None:
    assert in_time(stuck, start) == set(EIGHT) - stuck


@given(stuck=st.frozensets(st.sampled_from(EIGHT), max_size=2), start=st.floats(1, 15))
def test_beside_two_stuck_chips_all_others_are_found_in_time(
    stuck: frozenset[str], start: float
) -> None:
    assert in_time(stuck, start) == set(EIGHT) - stuck


def test_the_spare_half_of_a_host_is_looked_at_as_it_is() -> None:
    assert first_parts(EIGHT, tuple("4567")) == (tuple("4567"),)
    assert first_parts(EIGHT, tuple("0567")) == (("0",), ("5",), ("6", "7"))


def test_who_was_not_looked_at_alone_is_not_blamed() -> None:
    tried = {EIGHT: STUCK, EIGHT[:4]: PartResult(), EIGHT[4:]: PartResult("wrong", found=True)}
    assert healthy_units(tried) == set(EIGHT[:4])
    bad = faulty_units(EIGHT, tried)
    assert [each.unit for each in bad] == list(EIGHT[4:])
    assert not any(each.found for each in bad), "none was seen, so none is in quarantine"
    assert {each.reason for each in bad} == {"not probed alone: no time was left"}
