"""Finds the worker whose host keeps the others waiting.

Workers that train together take the same time for a step, because each collective waits for the
slowest. What a host does before the first collective (wait for data, prepare the batch) is its own
time: our trainer measures it (`HostTimeMessage`).
"""

from __future__ import annotations

from statistics import median

from supervisor.core.events import Straggler
from supervisor.protocol.messages import HostTimeMessage

_REPORTS = 5
"""How many reports in a row must say so; each is an average over seconds."""
_TIMES = 2.0
"""A straggler's host needs more than so many times the time of its peers ..."""
_SHARE = 0.2
"""... and what it needs more is a greater part than this of the whole step."""


class StragglerWatch:
    """The hosts' times of the present attempt."""

    def __init__(self) -> None:
        self._attempt: int | None = None
        self._latest: dict[int, float] = {}
        self._behind: dict[int, int] = {}
        """How many reports in a row said that a rank is behind."""

    def hear(self, attempt: int, rank: int, message: HostTimeMessage) -> Straggler | None:
        """Take note of a host's time; returns a straggler once, when it is found. Its host is not
        known here."""
        if attempt != self._attempt:
            self._attempt = attempt
            self._latest.clear()
            self._behind.clear()
        self._latest[rank] = message.seconds
        others = [seconds for other, seconds in self._latest.items() if other != rank]
        if not others:
            return None
        peers = median(others)
        more = message.seconds - peers
        if more <= _SHARE * message.step_seconds or message.seconds <= _TIMES * peers:
            self._behind[rank] = 0
            return None
        self._behind[rank] = self._behind.get(rank, 0) + 1
        if self._behind[rank] != _REPORTS:
            return None
        return Straggler(rank, message.seconds, peers, message.step_seconds)
