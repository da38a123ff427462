"""The work that is truly done: checkpoints, completed steps, and the files that prove success."""

from __future__ import annotations

from collections import defaultdict

from supervisor.diagnosis.success import Success


class Work:
    """What is done in each phase."""

    def __init__(self) -> None:
        self.committed: defaultdict[int, set[int]] = defaultdict(set)
        """The checkpoints that exist."""
        self.ever: dict[int, int] = {}
        """The highest step that was ever committed."""
        self.reached: dict[int, int] = {}
        """The highest step that was ever completed."""
        self.done: set[int] = set()
        """The phases in which a group has done its work and ended."""
        self.files: set[int] = set()
        """The phases whose success file exists."""

    def newest(self, phase: int) -> int | None:
        """Return the newest checkpoint that exists."""
        return max(self.committed[phase], default=None)

    def completes(self, phase: int, step: int) -> None:
        """Note that a step was trained."""
        self.reached[phase] = max(self.reached.get(phase, 0), step)

    def commits(self, phase: int, step: int) -> bool:
        """Note that a checkpoint was committed. Returns True if it is above all earlier ones."""
        before = self.ever.get(phase, 0)
        self.committed[phase].add(step)
        self.ever[phase] = max(before, step)
        return step > before

    def is_done(self, phase: int, success: Success) -> bool:
        """Whether the work of a phase is truly done."""
        if success.step is None:
            return phase in (self.done if success.file is None else self.files)
        known = self.ever.get(phase, 0)
        if not success.committed:
            known = max(known, self.reached.get(phase, 0))
        return known >= success.step
