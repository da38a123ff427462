"""What a line of run.log is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from supervisor.core.policy import RestartPolicy
from supervisor.core.state import JobState

Level = Literal["info", "warning", "error"]
MAIN = "main"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of run.log: who says it (`main`, `attempt 2`) and what."""

    source: str
    text: str
    level: Level = "info"
    quotes: str | None = None
    """The line of the traceback that rank 0 left, where this line repeats one."""


def attempt_source(attempt: int) -> str:
    """Who speaks for an attempt."""
    return f"attempt {attempt}"


def count(number: int, thing: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def budget_used(state: JobState, policy: RestartPolicy) -> str:
    """What the phase has spent since its last progress, and in all."""
    limits = policy.phases[state.phase]
    text = f"{state.budget.restarts} of {limits.max_num_restarts} restarts"
    if state.budget.preemptions:
        text += f" and {state.budget.preemptions} of {limits.max_num_preemptions} preemptions"
    text += " used since the last progress"
    if limits.max_total_restarts is not None:
        return f"{text}, {state.budget.total} of {limits.max_total_restarts} in all"
    return f"{text}, {state.budget.total} in all" if state.budget.total else text
