"""The work that is truly done: checkpoints, completed steps, and the files that tell of success."""

from __future__ import annotations

from collections import defaultdict

from supervisor.diagnosis.success import Success


class Work:
    """What is done of each phase."""

    def __init__(self) -> None:
        self.committed: defaultdict[int, set[int]] = defaultdict(set)
        """The checkpoints that are there."""
        self.ever: dict[int, int] = {}
        """The highest step ever committed."""
        self.reached: dict[int, int] = {}
        """The highest step ever completed."""
        self.done: set[int] = set()
        """The phases of which a group ended having done its work."""
        self.files: set[int] = set()
        """The phases whose success file is there."""

    def newest(self, phase: int) -> int | None:
        """The newest checkpoint that is there."""
        return max(self.committed[phase], default=None)

    def completes(self, phase: int, step: int) -> None:
        """A step was trained."""
        self.reached[phase] = max(self.reached.get(phase, 0), step)

    def commits(self, phase: int, step: int) -> bool:
        """A checkpoint was committed; whether it is above all that ever were."""
        before = self.ever.get(phase, 0)
        self.committed[phase].add(step)
        self.ever[phase] = max(before, step)
        return step > before

    def is_done(self, phase: int, success: Success) -> bool:
        """Whether the work of a phase has truly been done."""
        if success.step is None:
            return phase in (self.done if success.file is None else self.files)
        known = self.ever.get(phase, 0)
        if not success.committed:
            known = max(known, self.reached.get(phase, 0))
        return known >= success.step
