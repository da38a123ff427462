"""A TPU host of eight chips, as far as processes meet there: for tests on a machine without any.

What each process asks for is written down. A chip is had by one process at a time. As the real
libtpu (openxla, tpu_initialize_util.cc: TryAcquireTpuLock) a process takes a lock of the whole host
if its bounds are empty or 2,2,1, unless ALLOW_MULTIPLE_LIBTPU_LOAD is set. The files of the host
are in the folder FAKE_TPU_HOST; the chips in its file `lost` halt, and are
found no more.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import TextIO

HOST = "FAKE_TPU_HOST"
ALL = tuple("01234567")
TOLD = (
    "TPU_VISIBLE_CHIPS",
    "TPU_PROCESS_BOUNDS",
    "TPU_CHIPS_PER_PROCESS_BOUNDS",
    "ALLOW_MULTIPLE_LIBTPU_LOAD",
)
_held: list[TextIO] = []


def take(who: str) -> tuple[str, ...]:
    """Take the chips that the environment shows, until the process ends.

    Raises:
        RuntimeError: as libtpu does, where they cannot be had.
    """
    host = Path(os.environ[HOST])
    told = {name: os.environ[name] for name in TOLD if name in os.environ}
    shown = told.get("TPU_VISIBLE_CHIPS")
    chips = tuple(shown.split(",")) if shown else ALL
    with (host / "asked.jsonl").open("a") as file:
        file.write(json.dumps({"who": who, "chips": chips, "told": told}) + "\n")
    is_whole = told.get("TPU_CHIPS_PER_PROCESS_BOUNDS", "") in ("", "2,2,1")
    if is_whole and "ALLOW_MULTIPLE_LIBTPU_LOAD" not in told:
        _lock(host / "lock", "ABORTED: The TPU is already in use by process with pid 1.")
    for chip in chips:
        _lock(host / f"chip{chip}", f"UNAVAILABLE: /dev/vfio/{chip}: Device or resource busy")
    return chips


def found(chips: tuple[str, ...]) -> list[str]:
    """Those of the chips that are there.

    Raises:
        RuntimeError: none of them is.
    """
    there = [chip for chip in chips if chip not in _lost()]
    if not there:
        raise RuntimeError("NOT_FOUND: TPU initialization failed: No chips")
    return there


def fail_if_halted(chips: tuple[str, ...]) -> None:
    """Fail as a program does on a chip that halts.

    Raises:
        RuntimeError: one of the chips is lost.
    """
    for chip in _lost().intersection(chips):
        raise RuntimeError(f"INTERNAL: Core halted unexpectedly: chip {chip}")


def _lost() -> set[str]:
    return set(Path(os.environ[HOST], "lost").read_text().split())


def _lock(path: Path, otherwise: str) -> None:
    file = path.open("a")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise RuntimeError(otherwise) from error
    _held.append(file)
