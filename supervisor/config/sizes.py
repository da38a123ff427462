"""Sizes as people write them in a config: `500MiB`, `10GiB`, `1.5TB`."""

from __future__ import annotations

import re

_PREFIXES = "KMGT"
_UNITS = {
    "B": 1,
    **{f"{prefix}B": 1000 ** (n + 1) for n, prefix in enumerate(_PREFIXES)},
    **{f"{prefix}iB": 1024 ** (n + 1) for n, prefix in enumerate(_PREFIXES)},
}
_SIZE = re.compile(rf"(\d{{1,12}}(?:\.\d{{1,6}})?)\s*({'|'.join(_UNITS)})", re.ASCII)


def parse_size(text: str) -> int:
    """The bytes in `text`.

    Raises:
        ValueError: not a number followed by B, KB, MB, GB, TB, KiB, MiB, GiB or TiB.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size such as 500MiB or 10GiB")
    return int(float(match[1]) * _UNITS[match[2]])


def size_text(size: int) -> str:
    """`size` in bytes as a person reads it: 1.5 GiB."""
    for prefix in reversed(_PREFIXES):
        if size >= _UNITS[f"{prefix}iB"]:
            return f"{size / _UNITS[f'{prefix}iB']:.1f}".removesuffix(".0") + f" {prefix}iB"
    return f"{size} B"
