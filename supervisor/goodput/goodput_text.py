"""The goodput of a job in words, and as JSON."""

from __future__ import annotations

from typing import Any

from supervisor.goodput.wall_time import Goodput, Part
from supervisor.narrative.durations import duration

_SMALL = 0.0005
"""The smallest share of the time that is told: 0.1%, rounded."""


def goodput_text(it: Goodput) -> str:
    """Returns the goodput in one line: the share, and the rest of the time, the longest first."""
    if it.share is None:
        return "goodput: not known, because no time has passed"
    text = f"goodput {it.share:.1%} of {duration(it.running)}"
    rest = [
        f"{part.replace('_', ' ')} {seconds / it.running:.1%} ({duration(seconds)})"
        for part, seconds in _badput(it)
        if seconds / it.running >= _SMALL
    ]
    text += f": {', '.join(rest)}" if rest else ""
    if it.uncommitted > 0:
        text += f"; {duration(it.uncommitted)} of it not committed yet"
    stopped = it.parts.get(Part.NOT_RUNNING, 0.0)
    return f"{text}; not running for {duration(stopped)} between runs" if stopped else text


def goodput_record(it: Goodput) -> dict[str, Any]:
    """Returns the goodput as JSON. Times are in seconds."""
    return {
        "goodput": it.share,
        "seconds": it.running,
        "not_running": it.parts.get(Part.NOT_RUNNING, 0.0),
        "uncommitted": it.uncommitted,
        "parts": {part: it.parts[part] for part in it.parts if part is not Part.NOT_RUNNING},
    }


def _badput(it: Goodput) -> list[tuple[Part, float]]:
    kept = (Part.PRODUCTIVE, Part.NOT_RUNNING)
    parts = [(part, seconds) for part, seconds in it.parts.items() if part not in kept]
    return sorted(parts, key=lambda each: -each[1])
