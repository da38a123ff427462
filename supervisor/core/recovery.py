"""The parts of a recovery, in seconds: from a worker's death to the next completed optimizer step.

A fold over the job's events. Each event ends the part that began at the last mark, so the parts add
up to the whole. What cannot be seen (the imports of a standby, the stages of a program that names
none) has no part of its own. An attempt that dies before its first step does not end the recovery:
all parts so far become one part, `earlier attempts`.

It is volatile, because a new supervisor cannot know when the workers died. The decision
`TellRecovery` puts the result into the journal.
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
"""The part in which a program that names no stages did what cannot be seen from outside."""


def began_at(first: int, newest: int | None, every: int | None) -> int | None:
    """Returns the step at which a program began that does not report it; None: not known.

    `first` is the first step that it completed, as far as is known, and `newest` the newest
    checkpoint at its start. `every` is by how much the steps rise that it tells, None if that is
    not known: a program that tells each tenth step may have begun at any of the ten before.
    A checkpoint further below is not where it began: it has a newer one that nobody saw.
    """
    if first <= 1:
        return 0
    if newest is not None and first - (every or 1) <= newest < first:
        return newest
    return first - 1 if every == 1 else None


@dataclass(frozen=True, slots=True)
class Recovery:
    """A recovery under way, or none. Times are seconds on the supervisor's clock."""

    mark: float | None = None
    """When the last part ended; None: no recovery is under way."""
    parts: dict[str, float] = field(default_factory=dict)
    """Seconds by name of the part, in order of first occurrence."""
    reached: int | None = None
    """The last step that was completed before the recovery; None: not known."""
    restored: int | None = None
    """The step whose state was restored, 0 for a fresh start; None: not reported."""
    standby: bool = False
    """Whether the workers were standbys, which had done their imports already."""

    @property
    def lost(self) -> int | None:
        """The number of completed steps that must be run again; None: not known."""
        if self.reached is None or self.restored is None:
            return None
        return max(0, self.reached - self.restored)

    def missed(self, step: int, newest: int | None) -> int | None:
        """Returns `newest`, the newest committed step, if a program that does not report what it
        restored completes `step` below it; else None.

        The steps before the recovery must have come as far: else they count something else than the
        checkpoints do, such as the batches of an epoch.
        """
        if self.restored is not None or newest is None or self.reached is None:
            return None
        return newest if step < newest <= self.reached else None

    def resumed_before(self, step: int, newest: int | None, every: int | None) -> Recovery:
        """Returns the recovery once `step` is complete, the first one that is reported. The
        arguments are those of `began_at`."""
        if self.restored is not None:
            return self
        return replace(self, restored=began_at(step, newest, every))

    def died(self, at: float) -> Recovery:
        """Returns the recovery after a worker died, or fell silent, at the time `at`."""
        if self.mark is None:
            return Recovery(at)
        so_far = self.spent("", at)
        parts = {"earlier attempts": sum(so_far.parts.values())}
        return replace(so_far, parts=parts, restored=None)

    def spent(self, part: str, until: float) -> Recovery:
        """Returns the recovery with the time since the last mark added to `part` (0 for a late
        event)."""
        if self.mark is None:
            return self
        until = max(self.mark, until)
        seconds = self.parts.get(part, 0.0) + until - self.mark
        return replace(self, mark=until, parts={**self.parts, part: seconds})

    def gone(self, at: float, step: int | None) -> Recovery:
        """Returns the recovery after all processes are gone; `step` is the last one they
        completed."""
        known = [reached for reached in (self.reached, step) if reached is not None]
        return replace(self.spent("clean up", at), reached=max(known, default=None))

    def started(self, began: float | None, at: float, *, standby: bool) -> Recovery:
        """Returns the recovery once the next workers run; `began`: when their start began, if
        known."""
        decided = self if began is None else self.spent("decide", began)
        return replace(decided.spent("start", at), standby=standby)

    def left(self, stage: Stage | None, at: float, *, inferred: bool = False) -> Recovery:
        """Returns the recovery after the worker left `stage` (None: unnamed) or completed a step in
        it.

        A stage TRAINING that is only `inferred` and had no step may have been any stage.
        """
        if stage is None or (inferred and stage is Stage.TRAINING):
            return self.spent(_UNKNOWN, at)
        if stage is Stage.STARTING and self.standby:
            return self.spent("standby", at)
        return self.spent(_OF_STAGE.get(stage, _UNKNOWN), at)
