"""How long the training of a phase had taken when each step was committed, so that it is known how
much of it is lost where an attempt goes on from an earlier step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

_MAX_POINTS = 128
"""Committed steps that are kept, the latest ones. Between two of them, and before the first, steps
are taken to be equally long."""


@dataclass(frozen=True, slots=True)
class Point:
    """A step, and the nanoseconds of training until it was complete."""

    step: int
    at: int


@dataclass(frozen=True, slots=True)
class Training:
    """The training of a phase that is not lost. Times are in nanoseconds of training."""

    total: int = 0
    points: tuple[Point, ...] = ()
    """The committed steps, rising."""
    told: Point | None = None
    """The last step that the program has told; None: it has told none."""

    def longer(self, time: int) -> Training:
        """Returns the curve after so much more training."""
        return replace(self, total=self.total + time)

    def heard(self, step: int | None) -> Training:
        """Returns the curve once `step` is complete (None: it is not known which)."""
        return self if step is None else replace(self, told=Point(step, self.total))

    def committed(self, step: int, told: int | None) -> Training:
        """Returns the curve with a commit of `step` that was seen now, when the program has told
        `told`: it may have trained on while it saved."""
        if self.points and step <= self.points[-1].step:
            return self
        at, before = self.total, self.told
        if told is not None and before is not None and before.step <= step < told:
            at = _between(before, step, Point(told, self.total))
        at = max(at, self.points[-1].at if self.points else 0)
        return replace(self, points=(*self.points, Point(step, at))[-_MAX_POINTS:])

    def until(self, step: int | None) -> int:
        """Returns the time at which `step` was complete; 0 for None, which is the very start."""
        low = Point(0, 0)
        for high in self._known() if step is not None else ():
            if step is not None and step < high.step:
                return _between(low, max(step, low.step), high)
            low = high
        return low.at

    def _known(self) -> tuple[Point, ...]:
        last, told = self.points[-1] if self.points else Point(0, 0), self.told
        is_later = told is not None and told.step > last.step and told.at >= last.at
        return (*self.points, told) if told is not None and is_later else self.points

    def back_at(self, step: int | None) -> Training:
        """Returns the curve where training goes on from `step`: what came after it is lost."""
        points = tuple(each for each in self.points if step is not None and each.step <= step)
        return Training(self.until(step), points)

    def moved_onto(self, start: Training, step: int, began: int) -> Training:
        """Returns this curve, whose own part began at the time `began`, as the continuation of
        `start`, which ends with `step`."""
        later = start.total - began
        own = (each for each in self.points if each.at >= began and each.step > step)
        points = (*start.points, *(replace(each, at=each.at + later) for each in own))
        told = None if self.told is None else replace(self.told, at=self.told.at + later)
        return Training(self.total + later, points, told)


def _between(low: Point, step: int, high: Point) -> int:
    return low.at + (high.at - low.at) * (step - low.step) // (high.step - low.step)
