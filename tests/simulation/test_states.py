"""The states that simulated jobs go through: each comes back from JSON unchanged, and
docs/reference/states.md has every transition between them."""

from __future__ import annotations

from typing import get_args

import pytest
from pydantic import TypeAdapter

from supervisor.core.doing import Doing, New
from supervisor.core.events import (
    VOLATILE,
    DeviceFoundWrong,
    Event,
    HostsLeaving,
    LaunchCancelled,
    LossesNotFinite,
    LossSpiked,
    NativeStacks,
    QuarantineCleared,
    SaveRequested,
    StragglerFound,
    WorkersIdle,
)
from supervisor.core.state import JobState
from supervisor.ports import Transition
from tests.simulation.simulation import Simulation
from tests.simulation.table import PUBLISHED, UNEXPECTED, Table, cell, explore, page, result

_SEEDS = (54, *range(60, 140))  # in the first one, a prefetched program cannot be compiled
"""Seeds whose jobs together do everything that a job can do."""


@pytest.fixture(scope="module")
def transitions() -> list[Transition]:
    found = []
    for seed in _SEEDS:
        simulation = Simulation(seed)
        simulation.run()
        found += [moment.what for moment in simulation.moments]
    return [transition for transition in found if isinstance(transition, Transition)]


@pytest.fixture(scope="module")
def table() -> Table:
    return explore()


def test_a_state_comes_back_from_json_as_it_was(transitions: list[Transition]) -> None:
    adapter = TypeAdapter(JobState)
    states = {repr(state): state for state in (each.after.durable() for each in transitions)}
    for state in states.values():
        assert adapter.validate_json(adapter.dump_json(state)) == state
    assert {type(state.doing) for state in states.values()} == {*get_args(Doing)} - {New}


@pytest.mark.slow
def test_the_page_of_states_is_current(table: Table) -> None:
    told = PUBLISHED.read_text(encoding="utf-8")
    assert told == page(table), "write it again: python -m tests.simulation.table"


def test_the_page_of_states_has_every_transition(
    table: Table, transitions: list[Transition]
) -> None:
    untold = {
        (cell(t.before, t.event), result(t.after, t.decisions))
        for t in transitions
        if result(t.after, t.decisions)[1] or type(t.after.doing) is not type(t.before.doing)
        if result(t.after, t.decisions) not in table[cell(t.before, t.event)]
    }
    assert not untold


def test_what_is_called_unexpected_never_comes(transitions: list[Transition]) -> None:
    """In the simulation, what the engine posts may be lost, late and doubled."""
    seen = {cell(t.before, t.event) for t in transitions if t.before != t.after or t.decisions}
    assert not UNEXPECTED & seen


def test_what_changes_nothing_that_is_kept_is_volatile(transitions: list[Transition]) -> None:
    """The converse, that a volatile event changes nothing, is tested in
    `tests/core/test_properties.py`."""
    # Only a person clears a quarantine. Workers are seldom idle after a last commit, and the losses
    # of our trainer, which the simulation has, are its own affair. It verifies its checkpoints too,
    # so no launch waits for that. Its one host never leaves, and keeps no
    # other waiting, and its devices compute rightly. A request to save is kept for who asked. It
    # has no tool for native stacks.
    kept: set[type] = {
        QuarantineCleared,
        WorkersIdle,
        NativeStacks,
        LossesNotFinite,
        LaunchCancelled,
        HostsLeaving,
        StragglerFound,
        DeviceFoundWrong,
        LossSpiked,
        SaveRequested,
    }
    for t in transitions:
        if type(t.event) not in kept and t.after.durable() != t.before.durable():
            kept.add(type(t.event))
    assert {*get_args(Event)} - kept == {*VOLATILE}, "supervisor/core/events.py:VOLATILE"
