"""A pattern for steps that matches nothing is told: once, and not before there was time for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from supervisor.adapters.processes.output import OutputPatterns, OutputPump
from supervisor.config.patterns import Pattern
from supervisor.engines.launch import Launch
from supervisor.engines.pattern_warning import _FIRST_MINUTES, UnmatchedPatternWarning
from tests.running import eventually

PATTERN = r"step: (\d+)"


@dataclass
class Plan:
    progress_pattern: str | None = PATTERN


@dataclass
class Launched:
    """What is looked at of a launch."""

    attempt: int = 1
    phase: int = 0
    plan: Any = None


@pytest.fixture
def pump(tmp_path: Path) -> Iterator[OutputPump]:
    pump = OutputPump(tmp_path / "log", OutputPatterns(Pattern(PATTERN)), None, print)
    pump.worker = os.dup(pump.write_end)  # type: ignore[attr-defined]
    pump.start()
    yield pump
    os.close(pump.worker)  # type: ignore[attr-defined]
    assert pump.finish(20.0)


def say(pump: OutputPump, line: bytes) -> None:
    before = pump.reader.lines
    os.write(pump.worker, line)  # type: ignore[attr-defined]
    assert eventually(lambda: pump.reader.lines > before)


def launch(attempt: int = 1) -> Launch:
    return cast(Launch, Launched(attempt, plan=Plan()))


def test_it_is_told_once_after_the_first_minutes(pump: OutputPump) -> None:
    told: list[str] = []
    warning = UnmatchedPatternWarning(told.append, str)
    warning.look(launch(), [pump.reader], 0.0, over=True)
    say(pump, b"importing\n\nIteration 5, loss 0.1\n\n")
    warning.look(launch(), [pump.reader], 1000.0)
    warning.look(launch(), [pump.reader], 1000.0 + _FIRST_MINUTES - 1)
    assert told == []
    for now in (_FIRST_MINUTES, 900.0):
        warning.look(launch(), [pump.reader], 1000.0 + now)
    (text,) = told
    assert text.startswith(f"trainer.command.progress.pattern '{PATTERN}' matched none")
    assert "first 4 lines" in text
    assert text.endswith("The last line is 'Iteration 5, loss 0.1'")


def test_each_attempt_has_its_minutes_and_a_good_end_is_enough(pump: OutputPump) -> None:
    told: list[str] = []
    warning = UnmatchedPatternWarning(told.append, str)
    say(pump, b"importing\n")
    warning.look(launch(1), [pump.reader], 0.0)
    warning.look(launch(2), [pump.reader], _FIRST_MINUTES)
    assert told == []
    warning.look(launch(2), [pump.reader], _FIRST_MINUTES + 1, over=True)
    assert len(told) == 1


@pytest.mark.parametrize(("over", "times"), [(True, 0), (False, 1)])
def test_who_had_steps_before_and_has_none_left_to_do_is_no_mistake(
    pump: OutputPump, over: bool, times: int
) -> None:
    told: list[str] = []
    warning = UnmatchedPatternWarning(told.append, str, {0})
    say(pump, b"nothing left to do\n")
    warning.look(launch(), [pump.reader], 0.0)
    warning.look(launch(), [pump.reader], 0.0 if over else _FIRST_MINUTES, over=over)
    assert len(told) == times


def test_a_pattern_that_has_matched_once_is_right(pump: OutputPump) -> None:
    told: list[str] = []
    warning = UnmatchedPatternWarning(told.append, str)
    say(pump, b"step: 3\n")
    warning.look(launch(1), [pump.reader], 0.0)
    warning.look(launch(2), [pump.reader], 0.0, over=True)
    assert told == []
