"""Keeps the parts of a log that may show the root cause. Pure: the log is fed in chunks.

The log may be far larger than memory, and a root cause can be anywhere in it: a trainer that failed
at noon may print teardown noise until evening. So the digest keeps each place that looks like an
error, with its surroundings; if there are too many, it keeps the first and the last places. It
always keeps the end of the log. Of places that differ only in digits it keeps the first: noise
repeats thousands of times.

It searches for plain strings, because that takes seconds for a gigabyte: a regular expression with
as many alternatives is many times slower.

A cut may go through a secret, and redaction recognises only a whole secret. So the digest leaves
out the word at each cut.
"""

from __future__ import annotations

import codecs
import re
from collections import deque

from supervisor.diagnosis.line_forms import GAP

_ANCHORS = (
    b"Traceback (most recent",
    b"SyntaxError: ",
    b"IndentationError: ",
    b"\nF0",  # glog's fatal lines: F, month, day
    b"\nF1",
    b": F external/",  # the same from XLA's own logger (jax 0.4 to 0.6)
    b"Fatal Python error",
    b"Check failed: ",
    b"RESOURCE_EXHAUSTED",
    b"terminate called ",
    b"LLVM ERROR",
)
_BEFORE = 2 * 1024
_AFTER = 32 * 1024
_MAX_PLACE = 128 * 1024
_MAX_PLACES = 256 * 1024
"""Bytes that are kept of the first places, and as many of the last places."""
_TAIL = 64 * 1024
_FINGERPRINT = 1024
_MAX_FINGERPRINTS = 10_000
_GAP = f"\n{GAP}\n".encode()
_HEAD = 4096
"""Bytes at the beginning of a log that show its encoding."""
_SURE = 16
"""Bytes: zeros in a shorter log prove no encoding."""
_LOOKED_AT = 2 * 1024
"""Bytes of each chunk that are searched for the prefix of a launcher."""
_PREFIXED_GLOG = re.compile(rb"[^\n]([^\n]{2})[IWE]\d{4} \d\d:\d\d:\d\d\.")
"""A line of glog after the prefix of a launcher; the group matches the end of the prefix."""


class LogDigest:
    """The parts of a log that may show why it ends. Its memory is bounded for any log."""

    def __init__(self) -> None:
        self._head: bytes | None = b""
        """The first bytes; None: the encoding is known, so they were taken."""
        self._decoder: codecs.IncrementalDecoder | None = None
        """Decodes a log in UTF-16; None: the log has another encoding."""
        self._anchors: tuple[bytes, ...] = _ANCHORS
        self._offset = 0
        """The offset of `_recent` in the log."""
        self._recent = b""
        """The last part of the log: places are cut out of it, and in the end it holds the tail."""
        self._searched = 0
        """The offset up to which anchors were searched."""
        self._open: list[int] | None = None
        """Start and end offset of the place that is not complete yet; None: there is none."""
        self._first: list[tuple[int, bytes]] = []
        self._first_size = 0
        self._last: deque[tuple[int, bytes]] = deque()
        self._last_size = 0
        self._seen: set[int] = set()

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the log."""
        if self._head is not None:
            self._head += chunk
            if len(self._head) < _HEAD:
                return
            chunk = self._begun()
        if self._decoder is not None:
            chunk = self._decoder.decode(chunk).encode()
        self._take(chunk)

    def _begun(self) -> bytes:
        """Detects the encoding, and returns the first bytes."""
        head, self._head = self._head or b"", None
        coding = _coding(head)
        if coding is not None:
            self._decoder = codecs.getincrementaldecoder(coding)("replace")
        return head

    def _take(self, chunk: bytes) -> None:
        if len(self._anchors) == len(_ANCHORS) and (
            found := _PREFIXED_GLOG.search(chunk, 0, _LOOKED_AT)
        ):
            self._anchors = (*_ANCHORS, found[1] + b"F0", found[1] + b"F1")
        self._recent += chunk
        self._search(self._offset + len(self._recent) - len(_ANCHORS[0]))
        keep = self._open[0] if self._open is not None else self._searched - _BEFORE
        keep = min(keep, self._offset + len(self._recent) - _TAIL)
        if keep > self._offset:
            self._recent = self._recent[keep - self._offset :]
            self._offset = keep

    def text(self) -> str:
        """Returns the parts that were kept, in the order of the log; `GAP` marks each gap."""
        if self._head is not None:
            head = self._begun()
            self._take(head if self._decoder is None else self._decoder.decode(head).encode())
        end = self._offset + len(self._recent)
        self._search(end)
        places = [*self._first, *self._last]
        if self._open is not None:
            places.append((self._open[0], self._cut(self._open[0], min(self._open[1], end))))
        pieces: list[bytes] = []
        reached = 0
        tail = max(0, end - _TAIL)
        for start, data in [*places, (tail, self._cut(tail, end))]:
            if start > reached:
                pieces = [*_without_last_word(pieces), _GAP, _without_first_word(data)]
            else:
                pieces.append(data[reached - start :])
            reached = max(reached, start + len(data))
        return b"".join(pieces).decode("utf-8", "replace")

    def _search(self, until: int) -> None:
        """Find the anchors that begin before `until`; close the open place if it is complete."""
        base = self._offset
        begin, end = max(self._searched, base), max(until, self._searched)
        hits = []
        for anchor in self._anchors:
            at = self._recent.find(anchor, begin - base, end - base + len(anchor))
            while at >= 0:
                hits.append(base + at)
                at = self._recent.find(anchor, at + _BEFORE, end - base + len(anchor))
        for at in sorted(hits):
            self._hit(at)
        if self._open is not None and self._open[1] <= end:
            self._close()
        self._searched = end

    def _hit(self, at: int) -> None:
        if self._open is not None:
            start, end = self._open
            if at <= end and at - start < _MAX_PLACE:
                self._open[1] = at + _AFTER
                return
            self._open[1] = min(end, at)
            self._close()
        fingerprint = self._fingerprint(at)
        if fingerprint in self._seen:
            return
        if len(self._seen) < _MAX_FINGERPRINTS:
            self._seen.add(fingerprint)
        line = max(0, self._recent.rfind(b"\n", 0, max(0, at - self._offset - _BEFORE)))
        self._open = [max(self._offset + line, at - _BEFORE - 512), at + _AFTER]

    def _fingerprint(self, at: int) -> int:
        begin = at - self._offset
        return hash(self._recent[begin : begin + _FINGERPRINT].translate(None, b"0123456789"))

    def _close(self) -> None:
        assert self._open is not None
        start, end = self._open
        self._open = None
        data = self._cut(start, end)
        if self._first_size < _MAX_PLACES:
            self._first.append((start, data))
            self._first_size += len(data)
            return
        self._last.append((start, data))
        self._last_size += len(data)
        while self._last_size > _MAX_PLACES:
            self._last_size -= len(self._last.popleft()[1])

    def _cut(self, start: int, end: int) -> bytes:
        return self._recent[max(0, start - self._offset) : max(0, end - self._offset)]


def _without_first_word(data: bytes) -> bytes:
    """Returns `data` without the part of a word, or the one blank or line end, at its beginning."""
    if not data or data[:1].isspace():
        return data[1:]
    return data[len(data.split(maxsplit=1)[0]) :]


def _without_last_word(pieces: list[bytes]) -> list[bytes]:
    """Returns the pieces of a text without the part of a word at the end of the text."""
    if not pieces or pieces[-1][-1:].isspace():
        return pieces
    *before, data = pieces
    words = data.rsplit(maxsplit=1)
    kept = data[: len(data) - len(words[-1])] if words else b""
    return [*before, kept] if kept else _without_last_word(before)


def _coding(head: bytes) -> str | None:
    """Returns the codec of a log in UTF-16, which its mark or its zero bytes show; None: any other
    encoding."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    for name, text, zeros in (("utf-16-le", 0, 1), ("utf-16-be", 1, 0)):
        high, low = head[zeros::2], head[text::2]
        if len(head) >= _SURE and high.count(0) > 0.1 * len(high) and not low.count(0):
            return name
    return None
