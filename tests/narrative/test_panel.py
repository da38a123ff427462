"""The panel tells how old its numbers are: it is drawn again while the program is silent."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from supervisor.core.policy import PhasePolicy, RestartPolicy
from supervisor.core.state import JobState
from supervisor.diagnosis.success import Success
from supervisor.narrative.pace import Pace
from supervisor.narrative.panel import PanelState, panel
from supervisor.narrative.standing import standing

EIGHT_STEPS_IN_FOUR_SECONDS = Pace(
    step=8, heard_at=104.0, loss=0.5, first=(100.0, 0), last=(104.0, 8), gaps=8
)


@pytest.mark.parametrize(
    ("now", "step", "rate"),
    [
        (104.0, "8 of 108", "2.00"),
        (113.9, "8 of 108", "0.65"),
        (145.0, "8 of 108 (41 s ago)", "0.20"),
        (164.5, "8 of 108 (1 min ago)", "-"),
    ],
)
def test_a_silent_program_has_an_old_step_and_a_falling_rate(
    now: float, step: str, rate: str
) -> None:
    policy = RestartPolicy((PhasePolicy("p", 3, 3, Success()),), 25.0, 0.0, 1.0)
    shown = io.StringIO()
    state = PanelState(
        standing(JobState(), policy), max_steps=108, pace=EIGHT_STEPS_IN_FOUR_SECONDS
    )
    Console(file=shown, width=100).print(panel(state, "", now, 100, 30, is_ascii=True))
    text = shown.getvalue()
    found = {word: re.search(rf"{word} +(\S.*?) +[│|]", text) for word in ("step ", "steps/s")}
    assert [match[1] for match in found.values() if match] == [step, rate]
