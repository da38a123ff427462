"""The last output of rank 0 that people have been shown, so that what it says is not said again."""

from __future__ import annotations

import re
from collections.abc import Sequence

from supervisor.protocol.messages import printable

MAX_RECENT = 64 * 1024
"""Bytes that people still see above our own lines."""
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
"""Escape sequences: colours, movements of the cursor, titles and links."""


class RecentOutput:
    """The end of the output that was shown."""

    def __init__(self) -> None:
        self._bytes = b""

    def shown(self, chunk: bytes) -> None:
        """Take note of the next part that was shown."""
        self._bytes = (self._bytes + chunk)[-MAX_RECENT:]

    def has(self, lines: Sequence[str]) -> bool:
        """Returns whether all of `lines` are in it."""
        recent = {text_of(line).rstrip() for line in self._bytes.split(b"\n")}
        return all(text_of(line.encode("utf-8", "replace")).rstrip() in recent for line in lines)


def text_of(line: bytes) -> str:
    """Returns the text that a terminal shows in the end for a line of output: what follows the last
    carriage return, without escape sequences."""
    over = line.rstrip(b"\r").rpartition(b"\r")[2]
    text = _ESCAPE.sub("", over.decode("utf-8", "replace"))
    return printable(text.expandtabs())
