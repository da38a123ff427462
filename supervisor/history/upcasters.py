"""Converts records of older formats: one pure function for each step to the next format.

A record passes through all steps from its own format to the present one. So only this file knows
older formats, and an upgrade in the middle of a job needs nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

FORMAT = 2
"""The format that is written now."""

SINCE: Mapping[str, int] = {
    "TellStages": 2,
    "CheckpointsFound": 2,
    "CheckpointSetAside": 2,
    "WorkersIdle": 2,
    "NativeStacks": 2,
    "LossesNotFinite": 2,
    "CancelLaunch": 2,
    "LaunchCancelled": 2,
    "HostsLeaving": 2,
    "RestartRequested": 2,
    "SaveRequested": 2,
    "AskToSave": 2,
    "StragglerFound": 2,
    "DeviceFoundWrong": 2,
    "LossSpiked": 2,
}
"""The format in which a kind of event or decision was added; kinds not in it are in format 1."""

Record = dict[str, Any]
"""A line of the journal, as JSON."""


def from_1(record: Record) -> Record:
    """Convert format 1 to 2. Format 1 has no state, which is computed from the events, and it does
    not name the kind of a worker's message: it kept only completed steps."""
    event = record.get("event")
    if isinstance(event, dict) and isinstance(message := event.get("message"), dict):
        record = {**record, "event": {**event, "message": {"kind": "StepMessage", **message}}}
    return {**record, "v": 2, "by": "format 1"}


def _renamed(record: Record) -> Record:
    """Convert format 2 from before its release, when `remediation` was called `tactics`."""
    for holder in (record, record.get("snapshot")):
        state = holder.get("state") if isinstance(holder, dict) else None
        if isinstance(state, dict) and "tactics" in state:
            state["remediation"] = state.pop("tactics")
    return record


UPCASTERS: Mapping[int, Callable[[Record], Record]] = {1: from_1}
"""Each step, by the format that it converts from."""


def upcast(record: Record) -> Record:
    """Returns `record`, of a known format, in the newest one."""
    while (step := UPCASTERS.get(record["v"])) is not None:
        record = step(record)
    return _renamed(record)
