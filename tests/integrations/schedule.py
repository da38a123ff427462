"""When a program is killed: pure, decided by what the supervisor has told.

A kill comes a drawn time after a fact: a new committed step, or the first step of an attempt that
goes on after a kill. So at most two kills come between two commits, on any machine. When all are
done, the supervisor itself gets SIGTERM, a drawn time after the next commit: once a standby was
seen, or where there can be none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

KILLS = 10
MOST_IN_A_ROW = 2
"""Kills between two commits; also the restarts that the job is allowed without progress."""


@dataclass(slots=True)
class Schedule:
    """The kills that are left, and what was told since the last one."""

    random: Random
    longest: float
    """Seconds of the longest wait after a fact."""
    last: int
    """The committed step from which the stop does not wait for a standby any more."""
    kills: int = KILLS
    """How many are left. Without any, the supervisor is asked to stop."""
    newest: int = 0
    """The newest committed step that was told."""
    in_a_row: int = 0
    """Kills since that commit."""
    is_alive: bool = False
    """Whether the program runs, and nobody has ended it."""
    knows_standby: bool = False
    """Whether a standby was ready, or it is known that there can be none."""

    def seen(self, event: Mapping[str, Any]) -> float | None:
        """Take note of an event; returns in how many seconds to strike, or None: not because of
        this event."""
        match event["event"]:
            case "workers-started":
                self.is_alive = True
            case "checkpoint-committed" if event["step"] > self.newest:
                self.newest = event["step"]
                # What is told after a kill was committed before it; the kill is charged after that.
                self.in_a_row = 0 if self.is_alive else 1
                return self._drawn() if self.is_alive and self._may_strike() else None
            case "standby-ready" | "standby-failed":
                self.knows_standby = True
            case "recovered" if self.is_alive and self.kills and self.in_a_row < MOST_IN_A_ROW:
                return self._drawn() if self.random.random() < 0.5 else None
        return None

    def killed(self) -> None:
        """Take note of a kill."""
        self.kills -= 1
        self.in_a_row += 1
        self.is_alive = False

    def stopped(self) -> None:
        """Take note that the supervisor was asked to stop."""
        self.is_alive = False

    def _may_strike(self) -> bool:
        return bool(self.kills) or self.knows_standby or self.newest >= self.last

    def _drawn(self) -> float:
        return self.random.uniform(0, self.longest)
