"""What a recovery spends its time on: from a worker's death to the next completed optimizer step.

A fold over the job's events that only adds up: each mark closes the part that lasted since the mark
before it, so the parts make up the whole, and what was not seen (the imports of a standby, the
stages of a program that names none) is simply no part. An attempt that dies before its first step
does not end the recovery: all of it becomes one part, `earlier attempts`.

Volatile, because a supervisor that starts anew cannot know when its workers died. What was found
out is told by a decision, `TellRecovery`, and so is in the journal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from supervisor.protocol.messages import Stage

_OF_STAGE: Mapping[Stage, str] = {
    Stage.STARTING: "imports",
    Stage.INITIALIZING: "backend",
    Stage.RESTORING: "restore",
    Stage.COMPILING: "compile",
    Stage.TRAINING: "first step",
}
_UNKNOWN = "program"
"""Of a program that names no stages: what lies between those that can be seen."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """A recovery under way, or none. Times are seconds on the supervisor's clock."""

    mark: float | None = None
    """When the last part ended; None: none is under way."""
    parts: dict[str, float] = field(default_factory=dict)
    """Seconds, in the order in which they were first spent."""
    reached: int | None = None
    """The last step that was run before it."""
    restored: int | None = None
    """The step whose state was restored, 0 for a fresh start; None: nobody said."""
    standby: bool = False
    """Whether the worker had been waiting with its imports done."""

    @property
    def lost(self) -> int | None:
        """Lost work: the steps that were run after the state that is restored."""
        if self.reached is None or self.restored is None:
            return None
        return max(0, self.reached - self.restored)

    def died(self, at: float) -> Recovery:
        """A worker died at the time `at`, or fell silent then."""
        if self.mark is None:
            return Recovery(at)
        so_far = self.spent("", at)
        parts = {"earlier attempts": sum(so_far.parts.values())}
        return replace(so_far, parts=parts, restored=None)

    def spent(self, part: str, until: float) -> Recovery:
        """What has passed since the last mark went into `part`; nothing, if an event comes late."""
        if self.mark is None:
            return self
        until = max(self.mark, until)
        seconds = self.parts.get(part, 0.0) + until - self.mark
        return replace(self, mark=until, parts={**self.parts, part: seconds})

    def gone(self, at: float, step: int | None) -> Recovery:
        """Every process of the attempt is gone; `step` is the last one that it ran."""
        known = [reached for reached in (self.reached, step) if reached is not None]
        return replace(self.spent("clean up", at), reached=max(known, default=None))

    def started(self, began: float | None, at: float, *, standby: bool) -> Recovery:
        """The next workers run; with their start was begun at `began`, if that is known."""
        decided = self if began is None else self.spent("decide", began)
        return replace(decided.spent("start", at), standby=standby)

    def left(self, stage: Stage | None, at: float, *, inferred: bool = False) -> Recovery:
        """The worker leaves `stage` (None: one that it did not name), or completes a step in it.

        A stage TRAINING that is only `inferred` and in which no step came may have been anything.
        """
        if stage is None or (inferred and stage is Stage.TRAINING):
            return self.spent(_UNKNOWN, at)
        if stage is Stage.STARTING and self.standby:
            return self.spent("standby", at)
        return self.spent(_OF_STAGE.get(stage, _UNKNOWN), at)
