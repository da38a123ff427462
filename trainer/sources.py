"""Which files a data path means. Without jax or grain: the configuration check asks too."""

from __future__ import annotations

import glob
import sysconfig
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
        return _files(pattern)
    library = glob.escape(sysconfig.get_paths()["stdlib"])
    return _bounded(_files(f"{library}/{below or '*.py'}"))


def _files(pattern: str) -> list[Path]:
    # Not Path.glob: it raises on some patterns, and this one comes from a config.
    found = map(Path, glob.glob(pattern, recursive=True))  # noqa: PTH207
    return sorted(path for path in found if path.is_file())


def _bounded(files: list[Path]) -> list[Path]:
    kept: list[Path] = []
    total = 0
    for file in files:
        total += file.stat().st_size
        if kept and total > _STDLIB_BYTES:
            break
        kept.append(file)
    return kept
