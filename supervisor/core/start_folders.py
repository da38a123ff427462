"""Folders that a program makes at each of its starts (`runs/2026-11-29_01-04-21/ckpt`).

What an attempt saves in such a folder, the next one restores only if somebody names it to the
program. All functions are pure.
"""

from __future__ import annotations

import re

_TIME = re.compile(r"\d{2,4}([-_.:]\d{2}){2}|\d{8}[-_T]\d{4,6}|\d{10,}")
"""A date, a time of day or a Unix time, as programs write them in the names of folders."""
_RANDOM = re.compile(r"(?=.*\d)(?=.*[a-f])[0-9a-f-]{8,36}")
_COUNTED = re.compile(r"(version|run|exp|experiment|train|attempt|try|job|session)[_-]?\d*")
"""A name with what stands before the number of the start."""


def is_of_one_start(directory: str) -> bool:
    """Whether a part of the path is a time: that of a start of the program, as a rule."""
    return any(map(_TIME.search, directory.split("/")))


def are_of_two_starts(one: str, other: str) -> bool:
    """Whether two paths differ in nothing but a part that is another one for each start: a time, a
    random number, or the number of a run (`version_0`)."""
    parts, others = one.split("/"), other.split("/")
    if len(parts) != len(others) or parts == others:
        return False
    pairs = zip(parts, others, strict=True)
    return all(part == another or _are_alike(part, another) for part, another in pairs)


def _are_alike(one: str, other: str) -> bool:
    if _TIME.search(one) and _TIME.search(other):
        return True
    if _RANDOM.fullmatch(one) and _RANDOM.fullmatch(other):
        return True
    run, next_run = _COUNTED.fullmatch(one), _COUNTED.fullmatch(other)
    return run is not None and next_run is not None and run[1] == next_run[1]
