"""Recognises the steps of a program in its output, where neither it nor the config tells them.

The value is fed with lines and their times. A form of lines (see `step_lines`) is *taken* once its
number has risen often enough to be a counter of something that takes time. It is dropped for good
when its number falls: a counter that starts again counts something within the training, such as the
batches of an epoch. The step is then unknown until another form is taken.

All this may be wrong. So it is shown and told, and nothing is decided by it: see `core.liveness`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from supervisor.diagnosis.step_lines import Sighting, read_line, shown

EVEN = 4
"""Rises in a row by the same number that are enough: `step 10`, `step 20`, ..."""
UNEVEN = 12
"""Rises by any numbers that are enough: a random number falls long before."""
MIN_SPAN = 1.0
"""Seconds that these rises must take. A table or a plan is printed at once."""
MAX_DROPS = 3
"""So many forms may be dropped before nothing is recognised any more."""
_MAX_FORMS = 32
"""How many forms are followed at once: those that were seen last."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A form whose number may be the step, and how the number went."""

    first: int
    """The first step that was completed: of a bar, what follows the number that it begins with."""
    since: float
    """When the form was first seen."""
    last: int
    before: int
    """The number before `last`. Another process may print it late."""
    rises: int = 0
    gap: int = 0
    """The last rise."""
    even: int = 0
    """How many rises in a row were by `gap`."""
    fell: bool = False
    epoch: int | None = None
    """The epoch in the same line when the form was first seen."""
    crossed: bool = False
    """Whether it went on rising in another epoch: then it does not count within the epoch."""

    def after(self, seen: Sighting) -> Candidate:
        """Returns the candidate after another line of its form."""
        step = seen.step
        if self.fell or step in (self.last, self.before):
            return self
        if step < self.last:
            return replace(self, fell=True)
        gap = step - self.last
        even = self.even + 1 if gap == self.gap else 1
        crossed = self.crossed or seen.epoch != self.epoch
        first = step if seen.is_bar and not self.rises else self.first
        return replace(
            self,
            first=first,
            last=step,
            before=self.last,
            rises=self.rises + 1,
            gap=gap,
            even=even,
            crossed=crossed,
        )

    def is_counter(self, at: float) -> bool:
        """Whether the number, last seen at the time `at`, counts something that takes time."""
        if self.fell or at - self.since < MIN_SPAN:
            return False
        if self.epoch is not None and not self.crossed:
            return False
        return self.even >= EVEN or self.rises >= UNEVEN


@dataclass(frozen=True, slots=True)
class StepRecogniser:
    """What the output of one attempt has told of the steps so far."""

    known: frozenset[str] = frozenset()
    """Forms that were taken in an earlier attempt: they are taken at first sight, a bar as soon as
    it has moved."""
    taken: str | None = None
    """The form whose number is taken for the step; None: there is none."""
    step: int | None = None
    first: int | None = None
    """The first step that the output showed in the form that is taken."""
    loss: float | None = None
    """The loss in the line of the last step; None: the line had none."""
    example: str = ""
    """The line by which the form was taken."""
    drops: int = 0
    """How many forms were taken and turned out to be wrong."""
    candidates: Mapping[str, Candidate] = field(default_factory=dict)
    """The forms by the time when they were last seen."""
    loss_at: float | None = None
    """When a loss was last printed."""
    epoch: int | None = None
    """The epoch of Keras under way."""

    @property
    def every(self) -> int | None:
        """By how much the step rises from line to line, if it does so evenly; None: not known."""
        candidate = self.candidates.get(self.taken) if self.taken is not None else None
        return candidate.gap if candidate is not None and candidate.even >= EVEN else None

    def after(self, text: str, at: float) -> StepRecogniser:
        """Returns the value after the line `text`, which was read at the time `at`."""
        if self.drops >= MAX_DROPS:
            return self
        line = read_line(text, self.epoch)
        now = self
        if line.loss is not None or line.epoch != self.epoch:
            loss_at = at if line.loss is not None else self.loss_at
            now = replace(now, loss_at=loss_at, epoch=line.epoch)
        for seen in line.sightings:
            now = now._with(seen, text, at)
        return now

    def _with(self, seen: Sighting, text: str, at: float) -> StepRecogniser:
        new = Candidate(seen.step, at, seen.step, seen.step, epoch=seen.epoch)
        candidate = self.candidates.get(seen.form, new).after(seen)
        others = {form: each for form, each in self.candidates.items() if form != seen.form}
        if len(others) >= _MAX_FORMS:
            others.pop(next(form for form in others if form != self.taken))
        now = replace(self, candidates={**others, seen.form: candidate})
        if self.taken == seen.form:
            return now._dropped() if candidate.fell else now._stepped(candidate, seen)
        if self.taken is None and now._may_take(seen, candidate, at):
            return replace(
                now, taken=seen.form, first=candidate.first, example=shown(text)
            )._stepped(candidate, seen)
        return now

    def _may_take(self, seen: Sighting, candidate: Candidate, at: float) -> bool:
        if seen.form in self.known:
            return not candidate.fell and (candidate.rises > 0 or not seen.is_bar)
        if seen.needs_loss and (self.loss_at is None or self.loss_at < candidate.since):
            return False
        return candidate.is_counter(at)

    def _stepped(self, candidate: Candidate, seen: Sighting) -> StepRecogniser:
        return replace(self, step=candidate.last, loss=seen.loss)

    def _dropped(self) -> StepRecogniser:
        return replace(self, taken=None, step=None, first=None, loss=None, drops=self.drops + 1)
