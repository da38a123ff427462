"""Tells the core of losses that are NaN or Inf, and of those that stand out.

Our trainer looks at its losses itself, and so saves nothing that is NaN. A program of somebody else
trains on, and each of its checkpoints may replace a good one. Losses that are only recognised in
the output decide nothing, like the steps beside them.
"""

from __future__ import annotations

from collections import defaultdict

from supervisor.core.events import LossesNotFinite
from supervisor.core.losses import Losses
from supervisor.engines.group import WorkerGroup
from supervisor.protocol.loss_spikes import LossSpike, SpikeDetector
from supervisor.protocol.messages import StepMessage

_LOSS = "loss"


class LossWatch:
    """The losses of each phase, over all of its attempts."""

    def __init__(self) -> None:
        self._losses: defaultdict[int, Losses] = defaultdict(Losses)
        self._spikes: defaultdict[int, SpikeDetector] = defaultdict(SpikeDetector)
        self._attempt: int | None = None

    def spike(self, group: WorkerGroup, message: StepMessage) -> LossSpike | None:
        """Take note of a completed step; returns the spike of the loss that it is, if it is one."""
        loss = _loss_that_counts(group, message)
        return None if loss is None else self._spikes[group.launch.phase].hear(message.step, loss)

    def hear(self, group: WorkerGroup, message: StepMessage, at: float) -> LossesNotFinite | None:
        """Take note of a completed step; returns what the core has to know of it, if anything."""
        launch, loss = group.launch, _loss_that_counts(group, message)
        if loss is None:
            return None
        before = self._losses[launch.phase]
        if launch.attempt != self._attempt:
            self._attempt, before = launch.attempt, before.attempt_began()
        first = () if group.committed is None else (group.committed,)
        committed = (*first, *group.commits)
        # Reports that were read together are alike in their loss; of lines it is that of the last.
        earliest = None if message.in_output else message.earliest
        now = before.reported(message.step, loss, committed, earliest)
        self._losses[launch.phase] = now
        if now.since is None:
            return None
        return LossesNotFinite(
            at, launch.attempt, now.since, now.times, now.finite, now.before, message.step
        )


def _loss_that_counts(group: WorkerGroup, message: StepMessage) -> float | None:
    """Returns the loss of a completed step; None: it has none, or nothing is decided by it."""
    if message.recognised or not group.launch.plan.is_command:
        return None
    return message.metrics.get(_LOSS)
