"""The hang watchdog: what the workers said last, and by when they must be heard of again.

Each stage has a time limit of its own, so that a long compilation, a slow evaluation or a big save
is not taken for a hang. What recurs within an attempt is learned from the attempt itself: the gap
between steps, an evaluation, a save. What comes once (a compilation, a restore) is not: the next
attempt may find a cold cache where this one found a warm one. All of it is volatile and begins anew
with every attempt, so that no mark of a dead worker group can condemn a living one. Steps in the
output may come in lumps: what is learned from them makes a limit longer, never shorter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from supervisor.protocol.messages import (
    Message,
    Stage,
    StageMessage,
    StepMessage,
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
"""How many of the first durations of an attempt are left out: they include compilation."""
_ENOUGH: Mapping[Stage, int] = {Stage.TRAINING: 10, Stage.EVALUATING: 2, Stage.SAVING: 2}
"""How many durations after the warm-up make a limit."""


@dataclass(frozen=True, slots=True)
class Silence:
    """Nothing was heard of an attempt for longer than its stage may take."""

    attempt: int
    stage: Stage
    seconds: float


@dataclass(frozen=True, slots=True)
class Durations:
    """How long a stage (or a gap between steps) took in this attempt."""

    count: int = 0
    longest: float = 0.0

    def add(self, stage: Stage, seconds: float) -> Durations:
        """With one more, which only counts after the warm-up."""
        warm = self.count >= _WARM_UP[stage]
        return Durations(self.count + 1, max(self.longest, seconds) if warm else self.longest)

    def limit(self, stage: Stage) -> float | None:
        """The limit that follows; None: too little is known."""
        if self.count < _WARM_UP[stage] + _ENOUGH[stage]:
            return None
        return max(_FLOOR, _FACTOR * self.longest)


@dataclass(frozen=True, slots=True)
class Liveness:
    """Where the workers are. `expires` is when they will have been silent for too long."""

    stage: Stage | None = None
    """None: nobody has spoken yet, and nobody promised to."""
    step: int | None = None
    since: float = 0.0
    expires: float | None = None
    inferred: bool = False
    """Whether the stage is a guess: then TRAINING may be an evaluation, or anything."""
    in_output: bool = False
    """Whether steps were found in the output: a buffer may hold back the next ones."""
    learned: Mapping[Stage, Durations] = field(default_factory=dict)

    def started(self, at: float, overrides: Mapping[Stage, float]) -> Liveness:
        """The workers run, and are known to report their stages."""
        return Liveness()._in(Stage.STARTING, at, overrides)

    def heard(self, message: Message, at: float, overrides: Mapping[Stage, float]) -> Liveness:
        """After a worker said something."""
        match message:
            case StageMessage(stage, step, inferred):
                step = step if step is not None else self.step
                after = self._learn(at) if stage is not self.stage else self
                return replace(after, step=step, inferred=inferred)._in(stage, at, overrides)
            case StepMessage(step):
                # A step is a sign of training, also from a program that names no stages.
                training = self.stage is Stage.TRAINING
                after = self._learn(at) if training and self.step is not None else self
                in_output = self.in_output or message.in_output
                after = replace(after, step=step, in_output=in_output)
                return after._in(Stage.TRAINING, at, overrides)
            case _:
                return self

    def excused(self, seconds: float) -> Liveness:
        """`seconds` count for no silence of the workers: they could not speak, or we not hear."""
        if self.stage is None:
            return self
        expires = None if self.expires is None else self.expires + seconds
        return replace(self, since=self.since + seconds, expires=expires)

    def silence(self, attempt: int, now: float) -> Silence | None:
        """That they have been silent for too long, if so."""
        if self.stage is None or self.expires is None or now < self.expires:
            return None
        return Silence(attempt, self.stage, now - self.since)

    def _in(self, stage: Stage, at: float, overrides: Mapping[Stage, float]) -> Liveness:
        durations = self.learned.get(stage, Durations())
        if self.inferred and stage is Stage.TRAINING and self.step is None:
            return replace(self, stage=stage, since=at, expires=None)
        learned = durations.limit(stage) if stage in _WARM_UP and not self.inferred else None
        if learned is not None and self.in_output:
            learned = max(learned, DEFAULT_DEADLINES[stage])
        limit = overrides.get(stage, learned or DEFAULT_DEADLINES[stage])
        return replace(self, stage=stage, since=at, expires=at + limit)

    def _learn(self, at: float) -> Liveness:
        """Take in how long what ends now has taken."""
        if self.stage is None or self.stage not in _WARM_UP:
            return self
        durations = self.learned.get(self.stage, Durations()).add(self.stage, at - self.since)
        return replace(self, learned={**self.learned, self.stage: durations})
