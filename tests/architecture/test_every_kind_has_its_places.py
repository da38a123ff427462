"""Each place that must know every event knows every event: who adds one and forgets it is told."""

from __future__ import annotations

from typing import get_args

from supervisor.core.events import (
    DeadlineReached,
    Event,
    HostsLeaving,
    LaunchCancelled,
    NativeStacks,
    SaveMeasured,
    WorkersIdle,
)
from supervisor.core.machine import _HANDLERS, step
from supervisor.core.state import JobState
from supervisor.narrative import _TELLERS
from tests.core.test_properties import drawn
from tests.simulation import table

EVENTS = frozenset(get_args(Event))
UNTOLD = {
    DeadlineReached: "the decisions that follow from it are told",
    SaveMeasured: "it decides when a save must begin, which is told then",
    NativeStacks: "it decides when a hung group is asked to stop, which is told then",
    WorkersIdle: "the decision that follows from it is told",
    HostsLeaving: "the decision that follows from it is told",
    LaunchCancelled: "the decision that follows from it is told",
}


def names(kinds: object) -> set[str]:
    assert isinstance(kinds, set | frozenset | dict | tuple)
    return {kind.__name__ for kind in kinds}


def test_every_event_has_a_handler() -> None:
    assert names(_HANDLERS) == names(EVENTS), "supervisor/core/machine.py:_HANDLERS"


def test_every_event_is_told_or_says_why_not() -> None:
    assert names(_TELLERS).isdisjoint(names(UNTOLD))
    told = names(_TELLERS) | names(UNTOLD)
    assert told == names(EVENTS), "supervisor/narrative/__init__.py:_TELLERS"


def test_every_event_is_in_the_table_of_states() -> None:
    first = table._events(JobState(), 0.0)
    running, _ = step(JobState(), next(first), table._POLICY)
    found = {type(event) for event in table._events(running, 0.0)}
    assert names(found) == names(EVENTS), "tests/simulation/table.py:_events"


def test_every_event_is_drawn_by_the_properties() -> None:
    assert names(drawn) == names(EVENTS), "tests/core/test_properties.py:drawn"
