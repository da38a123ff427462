"""The end of an allocation is announced when a save still fits, whatever is done to the clock."""

from __future__ import annotations

import pytest

from supervisor.adapters.platforms.allocation_end import AllocationEnd, slurm_end

NOW = 1_800_000_000.0


class Clocks:
    """A clock that people set, and one that nobody sets."""

    def __init__(self) -> None:
        self.wall = NOW
        self.boot = 50.0

    def advance(self, seconds: float) -> None:
        self.wall += seconds
        self.boot += seconds

    def end(self, seconds: float, needed: float = 30.0) -> AllocationEnd:
        return AllocationEnd(
            NOW + seconds, "the allocation", lambda: needed, lambda: self.wall, lambda: self.boot
        )


def test_it_is_announced_when_the_save_must_begin() -> None:
    clocks = Clocks()
    end = clocks.end(3600)
    assert end.look() is None
    clocks.advance(3569)
    assert end.look() is None
    clocks.advance(1)
    found = end.look()
    assert found is not None
    assert found.ends_machine
    assert found.text == "the allocation ends at 2027-01-15 09:00:00 UTC"
    assert found.notice == 30


def test_a_save_that_takes_longer_begins_earlier() -> None:
    clocks = Clocks()
    clocks.advance(3300)
    assert clocks.end(3600, needed=305).look() is not None
    assert clocks.end(3600, needed=295).look() is None


@pytest.mark.parametrize("jump", [-7200.0, 7200.0])
def test_a_clock_that_is_set_never_delays_it(jump: float) -> None:
    clocks = Clocks()
    end = clocks.end(3600)
    clocks.wall += jump
    assert (end.look() is not None) == (jump > 0)
    clocks.advance(3571)
    assert end.look() is not None


def test_what_is_over_has_no_time_left() -> None:
    found = Clocks().end(-5).look()
    assert found is not None
    assert found.notice == 0


@pytest.mark.parametrize(
    ("environ", "end"),
    [
        ({}, None),
        ({"SLURM_JOB_END_TIME": ""}, None),
        ({"SLURM_JOB_END_TIME": "0"}, None),
        ({"SLURM_JOB_END_TIME": "9" * 18}, None),
        ({"SLURM_JOB_END_TIME": "1800000060"}, (NOW + 60, "the Slurm allocation")),
        (
            {"SLURM_JOB_END_TIME": "1800000060", "SLURM_JOB_ID": "77"},
            (NOW + 60, "the allocation of Slurm job 77"),
        ),
    ],
)
def test_slurm_names_the_end(environ: dict[str, str], end: tuple[float, str] | None) -> None:
    told: list[str] = []
    assert slurm_end(environ, NOW, lambda notice: told.append(str(notice))) == end
    assert told == []


@pytest.mark.parametrize(
    ("text", "why"), [("Unknown", "which is no Unix time"), ("1799999999", "that has passed")]
)
def test_an_end_that_cannot_be_is_told_and_ignored(text: str, why: str) -> None:
    told: list[str] = []
    environ = {"SLURM_JOB_END_TIME": text}
    assert slurm_end(environ, NOW, lambda notice: told.append(str(notice))) is None
    assert [why in each and "preemption.until" in each for each in told] == [True]
