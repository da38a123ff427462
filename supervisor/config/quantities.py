"""Parses the durations and sizes of a config: `30s`, `1.5h`, `10GiB`."""

from __future__ import annotations

import re
from typing import Any

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
DURATION_SCHEMA: dict[str, Any] = {
    "type": "string",
    "pattern": r"^\s*\d+(\.\d+)?\s*(ms|s|m|h|d)\s*$",
}
POSITIVE_DURATION_SCHEMA = {**DURATION_SCHEMA, "not": {"pattern": r"^[\s0.]*[a-z]"}}

_PREFIXES = "KMGT"
_BYTES = {
    "B": 1,
    **{f"{prefix}B": 1000 ** (n + 1) for n, prefix in enumerate(_PREFIXES)},
    **{f"{prefix}iB": 1024 ** (n + 1) for n, prefix in enumerate(_PREFIXES)},
}
_SIZE = re.compile(rf"(\d{{1,12}}(?:\.\d{{1,6}})?)\s*({'|'.join(_BYTES)})", re.ASCII)
SIZE_SCHEMA: dict[str, Any] = {
    "type": "string",
    "pattern": r"^\s*\d{1,12}(\.\d{1,6})?\s*([KMGT]i?)?B\s*$",
}


def parse_duration(text: str) -> float:
    """Returns the duration `text` in seconds.

    Raises:
        ValueError: `text` is not a number followed by ms, s, m, h or d.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a duration such as 30s, 5m or 1.5h")
    return float(match[1]) * _SECONDS[match[2]]


def parse_size(text: str) -> int:
    """Returns the size `text` in bytes.

    Raises:
        ValueError: `text` is not a number followed by B, KB, MB, GB, TB, KiB, MiB, GiB or TiB.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size such as 500MiB or 10GiB")
    return int(float(match[1]) * _BYTES[match[2]])


def size_text(size: int) -> str:
    """Returns a size in bytes as text for people: 1.5 GiB."""
    for prefix in reversed(_PREFIXES):
        if size >= _BYTES[f"{prefix}iB"]:
            return f"{size / _BYTES[f'{prefix}iB']:.1f}".removesuffix(".0") + f" {prefix}iB"
    return f"{size} B"
