"""Changes a valid sample into something that none of our programs would write."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

DEEP = b"[" * 200_000
TOKENS = (
    b"", b"\0", b"\n", b"\r\n", b"\xff", b"\xfe\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"{", b"}",
    b"[", b"]", b'"', b"\\", b"\\ud800", b"null", b"true", b"NaN", b"-Infinity", b"1e999", b"-0",
    b"9" * 25, b"9" * 310, b"9" * 5000, b"1" + b"0" * 400, b"0x" + b"f" * 5000, b"../..",
    b"/dev/zero", b"%s", b"\x1b[2J", b"&a [*a]", b"*a", b"!!python/object:x", b"<<: ",
    b"- " * 500, b"? ", b"|\n", b"{a: " * 60,
)  # fmt: skip
"""Pieces of the formats, and input that parsers often fail on."""


def nest(depth: int) -> Any:
    """Return lists nested `depth` deep."""
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2**31, 2**53 + 1, 2**63, -(2**64), 10**25, 10**299,
    float("nan"), float("inf"), -0.0, 1e308, 1e-320, "", "\0", "\ud800", "\u202e\u2066",
    "\x1b]0;x\x07", "a\nb", "é" * 200, "A" * 70_000, "9" * 20, "9999-12-31T23:59:59",
    "../../etc", "/dev/zero", [], {}, [[]], [None] * 50, nest(30), nest(70),
    {"a": {"b": {"c": 1}}}, {"": 1}, {"kind": "Nonsense"},
)  # fmt: skip


def mutated(sample: bytes, rng: Random) -> bytes:
    """Return `sample` with one, two or four changes."""
    data = sample
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        data = rng.choice(_CHANGES)(data, rng)
    return data[: 4 << 20]


def _replaced(data: bytes, rng: Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    end = min(len(data), start + rng.choice((0, 1, 2, 8, 64)))
    return data[:start] + rng.choice(TOKENS) + data[end:]


def _flipped(data: bytes, rng: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 3, 10)) if changed else 0):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def _cut(data: bytes, rng: Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    return (
        data[:start]
        if rng.random() < 0.5
        else data[:start] + data[rng.randrange(start, len(data) + 1) :]
    )


def _repeated(data: bytes, rng: Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    piece = data[start : start + rng.choice((1, 10, 100, 1000))]
    return data[:start] + piece * rng.choice((2, 10, 1000)) + data[start:]


def _classic(data: bytes, rng: Random) -> bytes:
    wide = data.decode("utf-8", "replace").encode("utf-16")
    deep = b'{"a":' * 100_000
    bom = b"\xef\xbb\xbf" + data
    return rng.choice((b"", DEEP, deep, b"9" * 5000, b"\0" * 10_000, bom, wide, data + data))


def _of_its_structure(data: bytes, rng: Random) -> bytes:
    """Change one JSON value in `data`: its key is removed or renamed, or it gets another type or
    size."""
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    try:
        body = json.loads(lines[at] if len(lines) > 1 and lines[at] else data)
        places = list(_places(body))
        _change(*rng.choice(places), rng)
        written = json.dumps(body).encode()
    except (ValueError, RecursionError, IndexError):
        return _replaced(data, rng)
    if len(lines) > 1 and lines[at]:
        return b"\n".join((*lines[:at], written, *lines[at + 1 :]))
    return written


def _places(body: Any, depth: int = 0) -> list[tuple[Any, Any]]:
    """Return every value in `body`, as the object or list that holds it and its key there."""
    if depth > 20 or not isinstance(body, dict | list):
        return []
    found: list[tuple[Any, Any]] = []
    for key, value in body.items() if isinstance(body, dict) else enumerate(body):
        found += [(body, key), *_places(value, depth + 1)]
    return found


def _change(holder: Any, key: Any, rng: Random) -> None:
    choice = rng.random()
    if choice < 0.15:
        del holder[key]
    elif choice < 0.3 and isinstance(holder, dict):
        holder[rng.choice(("x", "", "v", "kind", "\ud800"))] = holder.pop(key)
    else:
        holder[key] = rng.choice(VALUES)


_CHANGES: tuple[Callable[[bytes, Random], bytes], ...] = (
    *[_of_its_structure] * 6,
    *[_replaced] * 4,
    _flipped,
    _cut,
    _repeated,
    _classic,
)
