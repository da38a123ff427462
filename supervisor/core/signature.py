"""The fingerprint of a failure: the same when the same thing went wrong, however it is worded.

What changes from one attempt to the next (numbers, addresses, paths, times) is taken out of the
message; of the frames only those of the user's own code count, without line numbers, so that an
added comment or another version of a library is no new failure.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

_MAX_MESSAGE = 500
_FRAMES = 3
_VOLATILE = (
    (re.compile(r"\b0x[0-9a-fA-F]+\b"), "<address>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[.,]?\d*Z?"), "<time>"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f-]{20,27}\b|\b[0-9a-f]{12,}\b"), "<id>"),
    (re.compile(r"(?:\b[a-z]+://|/)[^\s'\",:;)\]]+"), "<path>"),
    (re.compile(r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"), "<n>"),
)
_FOREIGN = re.compile(
    r"(?:site|dist)-packages|/lib(?:64)?/(?:python|pypy)3|python3\d+\.zip/|\.egg/|^<|"
    r"(?:^|/)python/ray/|\.(?:pyx|pxd|pxi|so|c|cc|cpp|h)$"
)


def signature(
    kind: str,
    message: str,
    frames: Iterable[tuple[str, str]],
    stage: str | None,
    step: int | None,
) -> str:
    """A short name of the failure: its type, then a hash of all that identifies it."""
    own = [f"{path.rpartition('/')[2]}:{name}" for path, name in frames if is_own(path)]
    parts = (kind, normalised(message), *own[-_FRAMES:], stage or "", str(step))
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
    return f"{kind.rpartition('.')[2] or 'status'}-{digest}"


def is_own(path: str) -> bool:
    """Whether a file is the user's own code, and of no library."""
    return _FOREIGN.search(path) is None


def normalised(message: str) -> str:
    """The first part of `message` without what differs from one attempt to the next."""
    text = message[:_MAX_MESSAGE]
    for pattern, name in _VOLATILE:
        text = pattern.sub(name, text)
    return " ".join(text.split())
