"""How much useful work is left of an hour when trainers are killed all the time.

    python -m benchmarks.goodput [--quick] [--json FILE]

The quickstart's trainer under each contestant in turns, each time for the given seconds from its
first step, in storms of SIGKILLs drawn by lot (a Poisson process with the given mean time between
failures). A kill that finds nobody training hits nothing. A step that is done again does not count:
useful steps per hour is how far the training has come, scaled to an hour.

A window is one storm. All contestants go through the same ones, each time in another order, and are
compared with the simplest of them window by window: NAME_over_bash, with its confidence interval.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.contest import FailedError
from benchmarks.peers import UnavailableError
from benchmarks.report import Report, options
from benchmarks.training import DEFAULTS, PEERS, Contestant, training

SIMPLEST = "bash"
CONTESTANTS = (
    Contestant("supervise"),
    Contestant("supervise_snapshot", checkpoint={"snapshot": {"every": 1}}),
    DEFAULTS,
    *PEERS,
)
_EVERY = 20
"""Steps between checkpoints."""

Windows = dict[int, float]
"""Useful steps per hour, by the number of the window."""


def main() -> None:
    """Measure in turns, and report."""
    given = options(__doc__)
    windows, seconds, means = (2, 20.0, (10.0,)) if given.quick else (10, 40.0, (10.0, 30.0))
    report = Report("goodput")
    for mean in means:
        found: dict[str, Windows] = {contestant.name: {} for contestant in CONTESTANTS}
        for number in range(windows):
            kills = list(storm(mean, seconds, number))
            for contestant in in_turn(CONTESTANTS, number):
                try:
                    steps = _steps(contestant, seconds, kills)
                except (UnavailableError, FailedError) as error:
                    report.left_out[f"{contestant.name}_mtbf_{mean:g}s_{number}"] = str(error)
                else:
                    found[contestant.name][number] = 3600 * steps / seconds
        conclude(report, f"mtbf_{mean:g}s", found)
    report.finish(given.json)


def in_turn(contestants: Sequence[Contestant], number: int) -> Sequence[Contestant]:
    """In the order of the window `number`: each comes first as often as any other."""
    first = number % len(contestants)
    return (*contestants[first:], *contestants[:first])


def conclude(report: Report, kind: str, found: Mapping[str, Windows]) -> None:
    """The median of each contestant, and how it compares with the simplest in the windows that
    both have gone through."""
    for name, windows in found.items():
        report.spread(f"{name}_{kind}", "steps_per_hour", list(windows.values()))
        if name != SIMPLEST:
            report.paired(f"{name}_over_{SIMPLEST}_{kind}", windows, found[SIMPLEST])


def storm(mean: float, seconds: float, turn: int = 0) -> Iterator[float]:
    """The moments of the kills of that window, in seconds from the first step."""
    lots = random.Random(f"storm {turn} with a mean of {mean}")
    at = lots.expovariate(1 / mean)
    while at < seconds:
        yield at
        at += lots.expovariate(1 / mean)


def _steps(contestant: Contestant, seconds: float, kills: list[float]) -> int:
    """How far the training has come `seconds` after its first step."""
    with (
        tempfile.TemporaryDirectory() as name,
        training(contestant, Path(name), every=_EVERY, max_steps=1_000_000) as run,
    ):
        began = run.wait_for_step(1).at
        for kill in kills:
            time.sleep(max(0.0, began + kill - time.monotonic()))
            run.kill_trainer()
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        in_time = [step.number for step in run.steps() if step.at <= began + seconds]
    return max(in_time)


if __name__ == "__main__":
    main()
