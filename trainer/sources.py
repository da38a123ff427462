"""Which files a data path means. Without jax or grain: the configuration check asks too."""

from __future__ import annotations

import glob
import sysconfig
from collections.abc import Iterable
from pathlib import Path

STDLIB = "stdlib"
"""The path that stands for Python's own library: text that is on every machine that trains."""

_STDLIB_BYTES = 2 * 1024 * 1024


def matching_files(pattern: str) -> list[Path]:
    """The files that `pattern` (a path or a glob, `**` included) names, sorted by path.

    `stdlib` names the sources at the top of Python's library, whole files up to 2 MiB in all, and
    `stdlib/PATTERN` what matches below it.
    """
    root, _, below = pattern.partition("/")
    if root != STDLIB:
        return sorted(_files(glob.glob(pattern, recursive=True)))
    library = sysconfig.get_paths()["stdlib"]
    found = glob.glob(below or "*.py", root_dir=library, recursive=True)
    return _bounded(sorted(_files(f"{library}/{name}" for name in found)))


def _files(names: Iterable[str]) -> list[Path]:
    return [path for name in names if (path := Path(name)).is_file()]


def _bounded(files: list[Path]) -> list[Path]:
    kept, total = [], 0
    for file in files:
        total += file.stat().st_size
        if kept and total > _STDLIB_BYTES:
            break
        kept.append(file)
    return kept
