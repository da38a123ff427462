"""The lines of the event log: a name and keys for tools, and a sentence for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from supervisor.core.policy import RestartPolicy
from supervisor.core.state import JobState

Level = Literal["info", "warning", "error"]
MAIN = "main"


@dataclass(frozen=True, slots=True)
class Line:
    """One event of the log, which is one line of run.log."""

    event: str
    """Its stable name, from `narrative.catalogue`."""
    source: str
    """`main` for the job, or the attempt: `attempt 2`."""
    text: str
    """The sentence for people; tools read the name and the keys."""
    level: Level = "info"
    keys: Mapping[str, Any] = field(default_factory=dict)
    """The facts of the sentence, as JSON values."""
    quotes: str | None = None
    """The line of rank 0's traceback that this line repeats; None: it repeats none."""


def job_event(event: str, text: str, level: Level = "info", **keys: object) -> Line:
    """Returns an event of the job."""
    return Line(event, MAIN, text, level, keys)


def attempt_event(
    event: str,
    attempt: int,
    text: str,
    level: Level = "info",
    *,
    quotes: str | None = None,
    **keys: object,
) -> Line:
    """Returns an event of an attempt."""
    return Line(event, attempt_source(attempt), text, level, {"attempt": attempt, **keys}, quotes)


def attempt_source(attempt: int) -> str:
    """Returns the `source` of an attempt's events."""
    return f"attempt {attempt}"


def count(number: int, thing: str) -> str:
    """Returns the number with its noun: `1 step`, `2 steps`, `2 losses`."""
    ending = "" if number == 1 else "es" if thing.endswith("s") else "s"
    return f"{number} {thing}{ending}"


def budget_used(state: JobState, policy: RestartPolicy, *, with_preemptions: bool = False) -> str:
    """Returns, in words, what the phase has spent since its last progress, and in all.

    `with_preemptions`: name the preemptions also where there were none.
    """
    limits = policy.phases[state.phase]
    text = f"{state.budget.restarts} of {limits.max_num_restarts} restarts"
    if state.budget.preemptions or with_preemptions:
        text += f" and {state.budget.preemptions} of {limits.max_num_preemptions} preemptions"
    text += " used since the last progress"
    if limits.max_total_restarts is not None:
        return f"{text}, {state.budget.total} of {limits.max_total_restarts} in all"
    return f"{text}, {state.budget.total} in all" if state.budget.total else text


def budget_keys(state: JobState, policy: RestartPolicy) -> dict[str, Any]:
    """Returns the numbers of `budget_used` as keys of an event."""
    limits = policy.phases[state.phase]
    return {
        "restarts": state.budget.restarts,
        "max_num_restarts": limits.max_num_restarts,
        "preemptions": state.budget.preemptions,
        "max_num_preemptions": limits.max_num_preemptions,
        "restarts_in_all": state.budget.total,
        "max_total_restarts": limits.max_total_restarts,
    }
