"""Find out when an attempt has recovered. Nothing is prepared for the next attempt before that.

Preparation (standbys, prefetches) takes processor time from the recovery. So it begins at the
attempt's first step, at its first commit, or after a minute of training, whichever comes first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from supervisor.protocol.messages import Stage

TRAINS_FOR = 60.0
"""Seconds of TRAINING after which a program that reports neither steps nor commits has
recovered."""


@dataclass(frozen=True, slots=True)
class Settling:
    """How far an attempt has come. Times are seconds on the supervisor's clock."""

    since: float
    """When the present stage began."""
    stage: Stage | None = None
    """None: the program has named no stage yet; until it does, all time counts as training."""
    trained: float = 0.0
    """Seconds of TRAINING in the stages before the present one."""

    def entered(self, stage: Stage, at: float) -> Settling:
        """Returns the value after the worker named `stage`. Time before the first stage is no
        training."""
        trained = self.trained if self.stage is None else self._trained(at)
        return replace(self, since=at, stage=stage, trained=trained)

    def is_over(self, at: float, *, has_stepped: bool, has_committed: bool) -> bool:
        """Whether the attempt has recovered by the time `at`."""
        return has_stepped or has_committed or self._trained(at) >= TRAINS_FOR

    def _trained(self, at: float) -> float:
        trains = self.stage in (None, Stage.TRAINING)
        return self.trained + (max(0.0, at - self.since) if trains else 0.0)
