"""Chooses which faults strike, and when. A seed alone decides, so a bad run can be repeated.

The job runs in chapters. A chapter is one run of the command; all but the last end with a fault
that ends the command. Drills of a stage strike in the first attempts of their chapter, faults at
steps in the order of their steps. The faults of the stages at the end of the job are in the last
chapter.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.chaos.faults import Effect, Fault

_GAP = (14, 24)
"""The least and the most steps between two faults: enough for a checkpoint, and for the storm to
see the consequences."""
_PACE = 300
"""Most steps in a second."""
_EXPENSIVE = ("hang", "stopped", "second supervisor")
"""Parts of the names of faults that take seconds to be noticed: each of these strikes only once."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault and its place in the storm."""

    fault: Fault
    step: int | None
    """None: it strikes in its stage."""

    def config_entry(self) -> dict[str, Any]:
        """Return the entry of `faults:` in the config for it."""
        assert self.fault.injected is not None
        return (
            self.fault.injected if self.step is None else {**self.fault.injected, "step": self.step}
        )


@dataclass(frozen=True, slots=True)
class Chapter:
    """The faults in one run of the command."""

    begins: int
    """The highest step before it, as planned."""
    in_stages: tuple[Planned, ...]
    at_steps: tuple[Planned, ...]
    """In the order of their steps. In all chapters but the last, the last one ends the command."""

    @property
    def planned(self) -> list[Planned]:
        """All faults of the chapter."""
        return [*self.in_stages, *self.at_steps]

    def from_step(self, step: int) -> Chapter:
        """Return the chapter for a job that is at `step` already. If that is later than planned,
        because something took long, all faults strike later by as much."""
        late = max(0, step - self.begins)
        at_steps = tuple(
            replace(p, step=p.step + late) for p in self.at_steps if p.step is not None
        )
        return replace(self, begins=self.begins + late, at_steps=at_steps)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The whole storm."""

    seed: int
    chapters: tuple[Chapter, ...]
    max_steps: int

    @property
    def planned(self) -> list[Planned]:
        """All faults."""
        return [p for chapter in self.chapters for p in chapter.planned]


def make_schedule(seed: int, catalogue: Sequence[Fault], count: int) -> Schedule:
    """Return a schedule of `count` faults: each kind once and then some again. If `count` is too
    small for all kinds, they come from as many groups as possible."""
    chance = random.Random(seed)
    faults = _choose(chance, catalogue, count)
    ends = [fault for fault in faults if fault.effect is Effect.RUN]
    last = [fault for fault in faults if fault.at_the_end]
    chapters: list[tuple[list[Fault], list[Fault]]] = [([], []) for _ in range(len(ends) + 1)]
    chapters[-1][0].extend(last)
    for fault in faults:
        if fault.effect is Effect.RUN or fault.at_the_end:
            continue
        # Drills in SAVING are in the last chapter and must not strike before the end of the job.
        among = chapters[:-1] if ends else chapters
        chance.choice(among)[0 if fault.stage else 1].append(fault)
    for chapter, end in zip(chapters, ends, strict=False):
        # Faults that take time come last: else the trainer would run past a drill meanwhile.
        chapter[1].sort(key=lambda fault: fault.seconds > 0)
        chapter[1].append(end)
    return _with_steps(seed, chance, chapters)


def _choose(chance: random.Random, catalogue: Sequence[Fault], count: int) -> list[Fault]:
    """Return `count` faults in random order."""
    if count >= len(catalogue):
        cheap = [f for f in catalogue if not any(word in f.name for word in _EXPENSIVE)]
        more = [chance.choice(cheap) for _ in range(count - len(catalogue))]
        return chance.sample([*catalogue, *more], count)
    groups: dict[str, list[Fault]] = {}
    for fault in chance.sample(catalogue, len(catalogue)):
        groups.setdefault(fault.group, []).append(fault)
    # At least one ends the command: half of what the storm shows comes after that.
    of_runs = [name for name, kinds in groups.items() if kinds[0].effect is Effect.RUN]
    order = sorted(groups, key=lambda name: name != of_runs[0] if of_runs else False)
    chosen: list[Fault] = []
    while len(chosen) < count:
        for name in order:
            if groups[name] and len(chosen) < count:
                chosen.append(groups[name].pop())
    return chance.sample(chosen, count)


def _with_steps(
    seed: int, chance: random.Random, chapters: Sequence[tuple[list[Fault], list[Fault]]]
) -> Schedule:
    step = 0
    done = []
    for in_stages, at_steps in chapters:
        begins = step
        planned = []
        for fault in at_steps:
            step += chance.randint(*_GAP)
            planned.append(Planned(fault, step))
            step += round(_PACE * fault.seconds)
        stages = tuple(Planned(fault, None) for fault in in_stages)
        done.append(Chapter(begins, stages, tuple(planned)))
    return Schedule(seed, tuple(done), max_steps=step + _GAP[1])
