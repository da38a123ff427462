"""Durations as people write them in a config: `30s`, `5m`, `1.5h`."""

from __future__ import annotations

import re

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")


def parse_duration(text: str) -> float:
    """The seconds in `text`.

    Raises:
        ValueError: not a number followed by ms, s, m, h or d.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a duration such as 30s, 5m or 1.5h")
    return float(match[1]) * _UNITS[match[2]]
