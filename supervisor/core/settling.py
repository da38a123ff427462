"""When an attempt has recovered: until then nothing is prepared for the one after it.

What prepares takes processor time from the recovery itself. So it begins at the attempt's first
step, at its first commit, or after a minute of training, whichever comes first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from supervisor.protocol.messages import Stage

TRAINS_FOR = 60.0
"""Seconds of TRAINING after which a program that tells neither steps nor commits has recovered."""


@dataclass(frozen=True, slots=True)
class Settling:
    """How far an attempt has come. Times are seconds on the supervisor's clock."""

    since: float
    """When the present stage began."""
    stage: Stage | None = None
    """None: the program has named no stage yet. If it never does, it trains from its start on, as
    far as anyone can tell."""
    trained: float = 0.0
    """Seconds of TRAINING in the stages before the present one."""

    def entered(self, stage: Stage, at: float) -> Settling:
        """The worker named a stage. What came before the first one was no training."""
        trained = self.trained if self.stage is None else self._trained(at)
        return replace(self, since=at, stage=stage, trained=trained)

    def is_over(self, at: float, *, has_stepped: bool, has_committed: bool) -> bool:
        """Whether the attempt has recovered by the time `at`."""
        return has_stepped or has_committed or self._trained(at) >= TRAINS_FOR

    def _trained(self, at: float) -> float:
        trains = self.stage in (None, Stage.TRAINING)
        return self.trained + (max(0.0, at - self.since) if trains else 0.0)
