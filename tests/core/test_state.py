"""The state of a job as data: it comes back from JSON as it was, whatever the job does."""

from __future__ import annotations

from typing import get_args

from pydantic import TypeAdapter

from supervisor.core.doing import Doing, New
from supervisor.core.state import JobState
from supervisor.ports import Transition
from tests.simulation.simulation import Simulation

_SEEDS = 60
"""Simulated histories in which a job does everything that it can."""


def test_a_state_comes_back_from_json_as_it_was() -> None:
    adapter, done = TypeAdapter(JobState), set[type]()
    for state in _states():
        done.add(type(state.doing))
        assert adapter.validate_json(adapter.dump_json(state)) == state
    assert done == {*get_args(Doing)} - {New}


def _states() -> list[JobState]:
    """The durable states of simulated histories, each once."""
    found: dict[str, JobState] = {}
    for seed in range(_SEEDS):
        simulation = Simulation(seed)
        simulation.run()
        for moment in simulation.moments:
            if isinstance(moment.what, Transition):
                state = moment.what.after.durable()
                found[repr(state)] = state
    return list(found.values())
