"""Histories of the simulation, rendered: no tool needs to read a sentence, and whoever folds the
events gets the same records."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from supervisor.adapters.stores.journal import FileJournal
from supervisor.core.policy import RestartPolicy
from supervisor.narrative.attempt_records import AttemptRecords
from supervisor.narrative.event_line import Line
from supervisor.narrative.rendered import RenderedTransition, render_history
from supervisor.ports import Transition
from tests.simulation.simulation import Simulation

SEEDS = range(16)
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?")
UNITS = (1.0, 1 / 60, 100.0, 1e-6, 2.0**-20)
"""What a number of a key may be multiplied by in a sentence: as minutes, per cent, megabytes."""
WORDS = {
    "advice": "what a person should do; it quotes the failure",
    "traceback": "a line of the program's",
    "worker-notice": "the program's own words",
}
"""Events whose sentences may hold numbers that no key has, and why."""


@dataclass(frozen=True)
class Played:
    """A history: what was told, and what its journal keeps."""

    told: list[RenderedTransition]
    kept: list[Transition]
    policy: RestartPolicy


@pytest.fixture(scope="module")
def histories() -> dict[int, Played]:
    return {seed: played(Simulation(seed)) for seed in SEEDS}


def played(simulation: Simulation) -> Played:
    simulation.run()
    turns = [moment.what for moment in simulation.moments if not isinstance(moment.what, str)]
    journal, policy = FileJournal(simulation.disk), simulation.scenario.policy
    kept = list(journal.all_transitions(journal.read()))
    return Played(list(render_history(turns, policy)), kept, policy)


def leaves(value: object) -> Iterator[object]:
    """What a key holds, and of each list how long it is."""
    match value:
        case Mapping():
            for name, each in value.items():
                yield name
                yield from leaves(each)
        case list() | tuple():
            yield len(value)
            for each in value:
                yield from leaves(each)
        case _:
            yield value


def unexplained(line: Line) -> list[str]:
    """The numbers in a sentence that no key of the event has, as they are rounded there."""
    found = list(leaves({"source": line.source, **line.keys}))
    text = line.text
    for words in sorted({each for each in found if isinstance(each, str)}, key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(words)}(?!\w)", "", text)
    known = [float(each) for each in found if isinstance(each, int | float)]
    return [number for number in NUMBER.findall(text) if not any(has(number, k) for k in known)]


def has(number: str, value: float) -> bool:
    rounding = 0.5 * 10.0 ** -len(number.partition(".")[2]) + 1e-9
    return any(abs(float(number) - value * unit) <= rounding for unit in UNITS)


def test_a_number_that_no_key_has_is_found() -> None:
    line = Line("backoff", "main", "waiting 1.5 s before attempt 3", keys={"seconds": 1.52})
    assert unexplained(line) == ["3"]


def test_every_number_of_a_sentence_is_in_the_keys_of_its_event(
    histories: dict[int, Played],
) -> None:
    lines = [line for one in histories.values() for turn in one.told for line in turn.lines]
    assert {line.event for line in lines} > {"attempt-ended", "device-bad", "stop-requested"}
    wrong = {
        line.event: (unexplained(line), line.text, line.keys)
        for line in lines
        if line.event not in WORDS and unexplained(line)
    }
    assert not wrong, "\n".join(f"{event}: {each}" for event, each in wrong.items())


def test_each_attempt_ends_once(histories: dict[int, Played]) -> None:
    for seed, one in histories.items():
        lines = [line for turn in render_history(one.kept, one.policy) for line in turn.lines]
        ended = [line.keys["attempt"] for line in lines if line.event == "attempt-ended"]
        assert len(ended) == len(set(ended)), f"seed {seed}"


def test_a_summary_that_goes_on_from_a_view_is_that_of_the_whole_journal(
    histories: dict[int, Played],
) -> None:
    """As it goes on after a restart, from the archives or from a snapshot."""
    for seed, one in histories.items():
        told = list(render_history(one.kept, one.policy))
        for at in (len(told) // 3, len(told) // 2):
            begun = folded(AttemptRecords(5), told[:at])
            again = AttemptRecords(5)
            assert again.restore(json.loads(json.dumps(begun.view())))
            assert as_json(folded(again, told[at:])) == as_json(folded(AttemptRecords(5), told)), (
                seed
            )


def folded(records: AttemptRecords, told: list[RenderedTransition]) -> AttemptRecords:
    for turn in told:
        for line in turn.lines:
            records.take(line, turn.wall.isoformat(), None)
    return records


def as_json(records: AttemptRecords) -> object:
    return json.loads(json.dumps(records.view()))


def test_what_is_no_view_is_not_taken_up() -> None:
    records = AttemptRecords(5)
    records.take(Line("phase-began", "main", "", keys={"directory": "p"}), wall(), None)
    before = as_json(records)
    for view in (None, {"v": 1}, {**records.view(), "ended": {"FAILED": -1}}):
        assert not records.restore(view)
        assert as_json(records) == before


def wall() -> str:
    return datetime(2026, 1, 1, tzinfo=UTC).isoformat()
