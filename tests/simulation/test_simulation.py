"""Plays hundreds of seeds in every run of the tests, and thousands in slow runs, in chunks that can
run in parallel."""

from __future__ import annotations

import pytest

from tests.simulation.__main__ import failures, replay_command
from tests.simulation.simulation import Simulation, history_checksum

_CHUNK = 125
_QUICK = 250
"""This number of seeds finds most of the planted bugs (see `test_planted_bugs`)."""


@pytest.mark.parametrize(
    "first",
    [*range(0, _QUICK, _CHUNK)]
    + [pytest.param(first, marks=pytest.mark.slow) for first in range(_QUICK, 2000, _CHUNK)],
)
def test_nothing_forbidden_happens_and_every_job_ends(first: int) -> None:
    found = failures(first, _CHUNK)
    told = [f"{result.violation!r}; replay it: {replay_command(result.seed)}" for result in found]
    assert not told, "\n".join(told)


def test_a_seed_is_one_history() -> None:
    one, again, other = Simulation(7), Simulation(7), Simulation(8)
    for simulation in (one, again, other):
        simulation.run()
    assert history_checksum(one) == history_checksum(again) != history_checksum(other)
