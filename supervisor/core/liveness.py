"""The hang watchdog: the last report of the workers, and when the next one is due.

Each stage has its own time limit, so that a long compilation, a slow evaluation or a big save is
not taken for a hang. Limits for what recurs within an attempt (the gap between steps, an
evaluation, a save) are learned from that attempt. Limits for what comes once (a compilation, a
restore) are not: the next attempt may have a cold cache where this one had a warm one. All of it is
volatile and starts anew with every attempt, so old reports never condemn a new group. Steps found
in the output may arrive in bursts: what is learned from them can only make a limit longer.

A step that is only recognised in the output changes no limit. It may count something else than the
training, which may be silent for hours after it, and the job is healthy all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from supervisor.protocol.messages import (
    Message,
    Stage,
    StageMessage,
    StepMessage,
    StepsDroppedMessage,
)

DEFAULT_DEADLINES: Mapping[Stage, float] = {
    Stage.STARTING: 300.0,
    Stage.INITIALIZING: 600.0,
    Stage.RESTORING: 1800.0,
    Stage.COMPILING: 3600.0,
    Stage.TRAINING: 600.0,
    Stage.EVALUATING: 1800.0,
    Stage.SAVING: 1800.0,
    Stage.FINISHING: 300.0,
}
"""Seconds in a stage (for TRAINING: without a step), before anything is learned."""

FIRST_INITIALISING: Mapping[str, float] = {"tpu": 120.0}
"""Seconds for a first initialisation, by platform. Chips that were used a few seconds ago hang in
it at times (marin issue 5258): another attempt then comes up."""

_FACTOR = 5.0
_FLOOR = 10.0
_WARM_UP: Mapping[Stage, int] = {Stage.TRAINING: 5, Stage.EVALUATING: 1, Stage.SAVING: 1}
"""How many first durations of an attempt are ignored, because they include compilation."""
_ENOUGH: Mapping[Stage, int] = {Stage.TRAINING: 10, Stage.EVALUATING: 2, Stage.SAVING: 2}
"""How many durations after the warm-up are needed for a learned limit."""


@dataclass(frozen=True, slots=True)
class Silence:
    """An attempt was silent for longer than the limit of its stage."""

    attempt: int
    stage: Stage
    seconds: float
    """Since its last report, with the seconds that did not count (`SilenceExcused`)."""


@dataclass(frozen=True, slots=True)
class Durations:
    """How often a stage (or a gap between steps) occurred in this attempt, and its longest, in
    seconds."""

    count: int = 0
    longest: float = 0.0

    def add(self, stage: Stage, seconds: float) -> Durations:
        """Returns the durations with one more, which only counts after the warm-up."""
        warm = self.count >= _WARM_UP[stage]
        return Durations(self.count + 1, max(self.longest, seconds) if warm else self.longest)

    def limit(self, stage: Stage) -> float | None:
        """Returns the learned limit in seconds; None: too few durations are known."""
        if self.count < _WARM_UP[stage] + _ENOUGH[stage]:
            return None
        return max(_FLOOR, _FACTOR * self.longest)


@dataclass(frozen=True, slots=True)
class Liveness:
    """The workers' last known stage and step. They count as hung at the time `expires` (None:
    never)."""

    stage: Stage | None = None
    """None: no report has come, and none is expected."""
    step: int | None = None
    recognised: bool = False
    """Whether the step was only recognised in the output: then it limits nothing."""
    since: float = 0.0
    expires: float | None = None
    uncounted: float = 0.0
    """Seconds of the present silence that do not count; `since` is later by as much."""
    inferred: bool = False
    """Whether the stage is a guess: then TRAINING may be any stage."""
    in_output: bool = False
    """Whether steps were found in the output, where a buffer may hold back the next ones."""
    learned: Mapping[Stage, Durations] = field(default_factory=dict)

    def started(self, at: float, overrides: Mapping[Stage, float]) -> Liveness:
        """Returns the watchdog for workers that have started and report their stages."""
        return Liveness()._in(Stage.STARTING, at, overrides)

    def heard(self, message: Message, at: float, overrides: Mapping[Stage, float]) -> Liveness:
        """Returns the watchdog after a report; `overrides` are limits in seconds from the
        config."""
        match message:
            case StageMessage(stage, step, inferred):
                recognised = self.recognised and step is None
                step = step if step is not None else self.step
                after = self._learn(at) if stage is not self.stage else self
                after = replace(after, step=step, recognised=recognised, inferred=inferred)
                return after._in(stage, at, overrides)
            case StepMessage(step, recognised=True):
                return self if self._is_stepping else replace(self, step=step, recognised=True)
            case StepsDroppedMessage():
                return replace(self, step=None, recognised=False) if self.recognised else self
            case StepMessage(step):
                # A step is a sign of training, also from a program that names no stages.
                training = self.stage is Stage.TRAINING
                after = self._learn(at) if training and self._is_stepping else self
                in_output = self.in_output or message.in_output
                after = replace(after, step=step, recognised=False, in_output=in_output)
                return after._in(Stage.TRAINING, at, overrides)
            case _:
                return self

    def excused(self, seconds: float) -> Liveness:
        """Returns the watchdog with all its times `seconds` later."""
        if self.stage is None:
            return self
        expires = None if self.expires is None else self.expires + seconds
        uncounted = self.uncounted + seconds
        return replace(self, since=self.since + seconds, expires=expires, uncounted=uncounted)

    def silence(self, attempt: int, now: float) -> Silence | None:
        """Returns the silence if it is too long at the time `now`, else None."""
        if self.stage is None or self.expires is None or now < self.expires:
            return None
        return Silence(attempt, self.stage, now - self.since + self.uncounted)

    @property
    def _is_stepping(self) -> bool:
        """Whether a step is known that somebody told."""
        return self.step is not None and not self.recognised

    def _in(self, stage: Stage, at: float, overrides: Mapping[Stage, float]) -> Liveness:
        durations = self.learned.get(stage, Durations())
        if self.inferred and stage is Stage.TRAINING and not self._is_stepping:
            return replace(self, stage=stage, since=at, expires=None, uncounted=0.0)
        learned = durations.limit(stage) if stage in _WARM_UP and not self.inferred else None
        if learned is not None and self.in_output:
            learned = max(learned, DEFAULT_DEADLINES[stage])
        limit = overrides.get(stage, learned or DEFAULT_DEADLINES[stage])
        return replace(self, stage=stage, since=at, expires=at + limit, uncounted=0.0)

    def _learn(self, at: float) -> Liveness:
        """Learn the duration of the stage, or gap between steps, that ends at the time `at`."""
        if self.stage is None or self.stage not in _WARM_UP:
            return self
        durations = self.learned.get(self.stage, Durations()).add(self.stage, at - self.since)
        return replace(self, learned={**self.learned, self.stage: durations})
