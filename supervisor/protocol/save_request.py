"""How a program is asked for a checkpoint while it trains: by a file in the attempt's folder.

The program knows the path from `environment.SAVE_REQUEST`, and has told the supervisor that it
looks there (`messages.SavesOnRequestMessage`). Each request replaces the file, so a reader need not
remove it. What is in the file is for people.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from supervisor.protocol import environment

NAME = "save-request.json"
INTERVAL = 0.25
"""Seconds between two looks of a program: a step may take a millisecond, and a look some
microseconds."""


def content(who: str) -> bytes:
    """Return the content of the file; `who` asks."""
    return json.dumps({"v": 1, "who": who}).encode() + b"\n"


class SaveRequests:
    """Looks for requests to save, at most every `INTERVAL` seconds."""

    def __init__(
        self,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """What is there already was asked of this attempt, too: perhaps while it started."""
        self._path = environ.get(environment.SAVE_REQUEST, "")
        self._clock = clock
        self._answered: tuple[int, int] | None = None
        self._next_look = 0.0

    @property
    def can_come(self) -> bool:
        """Whether there is a supervisor that could ask."""
        return bool(self._path)

    def is_asked(self) -> bool:
        """Whether a person wants a checkpoint, until `answered` is called."""
        return self.can_come and self._seen() != self._answered

    def is_asked_now_and_then(self) -> bool:
        """As `is_asked`, but False without a look where the last one was a moment ago."""
        if not self.can_come or self._clock() < self._next_look:
            return False
        self._next_look = self._clock() + INTERVAL
        return self.is_asked()

    def answered(self) -> None:
        """Take all requests until now for answered, by a save that begins now."""
        self._answered = self._seen()

    def _seen(self) -> tuple[int, int] | None:
        """Return what tells one request from the next; None: there is none yet."""
        try:
            found = Path(self._path).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns
