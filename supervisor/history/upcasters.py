"""Makes a record of an older format one of the next format: pure functions, one for each step.

A record is read as the format that it says, and passes through all steps from there to ours. So
what a format means is decided here alone, and an upgrade in the middle of a job is nothing special.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

FORMAT = 2
"""What is written now."""

SINCE: Mapping[str, int] = {"TellStages": 2}
"""The format in which kinds of events and decisions came; the others were in the first."""

Record = dict[str, Any]
"""A line of the journal, as JSON."""


def from_1(record: Record) -> Record:
    """Format 1 kept no state: it has to be folded from the events. It did not say what kind of
    message a worker had sent either; only completed steps were ever kept."""
    event = record.get("event")
    if isinstance(event, dict) and isinstance(message := event.get("message"), dict):
        record = {**record, "event": {**event, "message": {"kind": "StepMessage", **message}}}
    return {**record, "v": 2, "by": "format 1"}


def _renamed(record: Record) -> Record:
    """Format 2 before it was released: a state's `remediation` was called `tactics`."""
    for holder in (record, record.get("snapshot")):
        state = holder.get("state") if isinstance(holder, dict) else None
        if isinstance(state, dict) and "tactics" in state:
            state["remediation"] = state.pop("tactics")
    return record


UPCASTERS: Mapping[int, Callable[[Record], Record]] = {1: from_1}
"""By the format that they begin with."""


def upcast(record: Record) -> Record:
    """`record`, of a format of ours, in the newest one."""
    while (step := UPCASTERS.get(record["v"])) is not None:
        record = step(record)
    return _renamed(record)
