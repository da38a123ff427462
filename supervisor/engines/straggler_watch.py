"""Finds the worker whose host keeps the others waiting.

Workers that train together take the same time for a step, because each collective waits for the
slowest. What a host does before the first collective (wait for data, prepare the batch) is its own
time: our trainer measures it (`HostTimeMessage`).
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from supervisor.host.notice import Notice
from supervisor.protocol.messages import HostTimeMessage

_REPORTS = 5
"""How many reports in a row must say so; each is an average over seconds."""
_TIMES = 2.0
"""A straggler's host needs more than so many times the time of its peers ..."""
_SHARE = 0.2
"""... and what it needs more is a greater part than this of the whole step."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that is behind its peers. Times are seconds of a step."""

    rank: int
    seconds: float
    """Its host's part."""
    peers: float
    """The median of the other hosts' parts."""
    step_seconds: float
    """The whole step."""

    def notice(self, host: str) -> Notice:
        """Returns what people should know; `host` is the rank's."""
        text = (
            f"rank {self.rank} on {host} keeps the others waiting: of a step of "
            f"{self.step_seconds:.2g} s it needs {self.seconds:.2g} s before its devices begin "
            f"(data and host work), the others {self.peers:.2g} s; look at its data, CPU and disk"
        )
        return Notice(
            "straggler",
            text,
            rank=self.rank,
            host=host,
            seconds=self.seconds,
            peers=self.peers,
            step_seconds=self.step_seconds,
        )


class StragglerWatch:
    """The hosts' times of the present attempt."""

    def __init__(self) -> None:
        self._attempt: int | None = None
        self._latest: dict[int, float] = {}
        self._behind: dict[int, int] = {}
        """How many reports in a row said that a rank is behind."""

    def hear(self, attempt: int, rank: int, message: HostTimeMessage) -> Straggler | None:
        """Take note of a host's time; returns a straggler once, when it is found."""
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
