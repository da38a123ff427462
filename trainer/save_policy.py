"""When a checkpoint is due: the policies of Orbax that `checkpoint.every` selects.

All processes save at the same step, so they must agree on it. If `every` is a number of steps, each
process knows the step by itself. If it is a time, or a person asks for a checkpoint, Orbax's first
process decides and tells the others through the coordination service, which costs every process
about a millisecond each time. If it is `auto`, that process also chooses the time.
"""

# mypy: allow-untyped-calls, disable-error-code="misc, attr-defined"
from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from orbax.checkpoint.checkpoint_managers import (
    AnySavePolicy,
    ContinuousCheckpointingPolicy,
    DecisionContext,
    FixedIntervalPolicy,
    PolicyCheckpointInfo,
    SaveDecisionPolicy,
)

from supervisor.config.training.resolved import CheckpointConfig
from supervisor.protocol.failure_history import FailureHistory
from supervisor.protocol.save_request import SaveRequests
from trainer import distributed
from trainer.save_interval import SaveInterval

_ASKED = 100
"""How often the clock is read in an interval, at least: so a save is late by at most 1% of it."""


def save_policy(
    config: CheckpointConfig, requests: SaveRequests, automatic: AutomaticPolicy | None = None
) -> SaveDecisionPolicy:
    """Return the policy for `config.every`, a number of steps or a time, and for `requests`.
    `automatic` is the one for `auto`."""
    asked = RequestedPolicy(requests, alone=not distributed.is_one_of_several())
    return AnySavePolicy((asked, automatic or _regular(config)))


def _regular(config: CheckpointConfig) -> SaveDecisionPolicy:
    if isinstance(config.every, int):
        return FixedIntervalPolicy(config.every)
    assert config.every_seconds is not None
    return TimedPolicy(config.every_seconds)


@dataclass(slots=True)
class _Moment:
    """A `PolicyCheckpointInfo`: a step and its time, by the monotonic clock."""

    step: int
    time: datetime
    metrics: Any = None


class TimedPolicy(ContinuousCheckpointingPolicy):
    """Saves at the first step boundary `seconds` after the last save, unless that is still going
    on.

    Two things differ from Orbax. The first interval begins at the first step boundary: Orbax saves
    there, so a job that always fails a little later would seem to make progress. And the clock is
    read only each time that the number of steps since the last save has grown by a hundredth, which
    every process counts alike: reading it at every step would cost short steps a tenth of their
    time.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """The first interval begins when `should_save` is called first."""
        super().__init__(minimum_interval_secs=seconds)  # type: ignore[arg-type]  # a float will do
        self._clock = clock
        self._began = 0.0
        self._first: int | None = None
        self._asked = 0

    def should_save(
        self,
        step: PolicyCheckpointInfo,
        previous_steps: Sequence[PolicyCheckpointInfo],
        *,
        context: DecisionContext,
    ) -> bool:
        """Return whether the save of `step` is due; every process gets the same answer."""
        if self._first is None:
            self._first, self._asked, self._began = step.step, step.step, self._clock()
        if step.step - self._asked < (step.step - self._first) // _ASKED:
            return False
        self._asked, now = step.step, self._clock()
        last = _Moment(self._first, _time(self._began))
        asked = _Moment(step.step, _time(now))
        if not super().should_save(asked, (last,), context=context):
            return False
        self._first, self._began = step.step, now
        return True


class AutomaticPolicy(TimedPolicy):
    """Saves by a time that it chooses itself, from what the saves cost and how often the job fails
    (`trainer.save_interval`).

    Every process measures and chooses, but only the choice of Orbax's first process counts. That is
    enough: all of them wait for the slowest one in each step.
    """

    def __init__(
        self,
        history: FailureHistory,
        tell: Callable[[str, int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`history` is that before this attempt. `tell` is called with the reasons for an interval,
        and the step, when it is chosen first and when it has changed by much."""
        self._interval = SaveInterval(history)
        self._told: SaveInterval | None = None
        self._tell = tell
        self._measured = clock()
        super().__init__(self._interval.seconds, clock)

    def stalled(self, step: int, seconds: float) -> None:
        """Choose the interval again: the save of `step` has stalled training for `seconds`."""
        now = self._clock()
        self._interval = chosen = self._interval.measured(seconds, now - self._measured)
        self._measured = now
        self.minimum_interval_secs = chosen.seconds  # type: ignore[assignment]  # a float will do
        if chosen.is_news_after(self._told):
            self._told = chosen
            if distributed.is_first():
                self._tell(chosen.text, step)


class RequestedPolicy(ContinuousCheckpointingPolicy):
    """Saves at the next step boundary after a person has asked (`supervise save`), unless a save is
    still going on: then at the next one after that.

    A process that is `alone` looks for the request itself. Of several, the first looks, and only
    each time that the number of steps since the last save on request has grown by a hundredth: see
    `TimedPolicy`.
    """

    def __init__(self, requests: SaveRequests, *, alone: bool) -> None:
        """Look for `requests` from now on."""
        super().__init__(minimum_interval_secs=1)
        self._requests = requests
        self._alone = alone
        self._first: int | None = None
        self._looked = 0

    def should_save(
        self,
        step: PolicyCheckpointInfo,
        previous_steps: Sequence[PolicyCheckpointInfo],
        *,
        context: DecisionContext,
    ) -> bool:
        """Return whether `step` is to be saved on request; every process gets the same answer."""
        if not self._requests.can_come:
            return False
        if self._alone:
            is_due = not context.is_saving_in_progress and self._requests.is_asked_now_and_then()
        else:
            is_due = self._agreed(step.step, context)
        if is_due:
            self._requests.answered()
        return is_due

    def _agreed(self, step: int, context: DecisionContext) -> bool:
        if self._first is None:
            self._first = self._looked = step
        if step - self._looked < (step - self._first) // _ASKED:
            return False
        self._looked = step
        # Orbax's first process compares two times, and tells the others what follows.
        elapsed = self.minimum_interval_secs if self._requests.is_asked() else 0
        asked = _Moment(step, _time(float(elapsed or 0)))
        if not super().should_save(asked, (_Moment(step, _time(0.0)),), context=context):
            return False
        self._first = step
        return True


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
