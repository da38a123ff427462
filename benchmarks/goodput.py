"""Measures how many useful steps an hour has when the trainer is killed again and again.

    python -m benchmarks.goodput [--quick] [--json FILE]

Runs the quickstart's trainer under each contestant in turns, for a fixed time from its first step
(a window). SIGKILLs come at random times: a Poisson process with a mean of 10 s or 30 s between
them. A kill while no trainer runs has no effect. A step that is repeated does not count: useful
steps per hour are the highest step reached, scaled to an hour.

All contestants go through the same windows, each time in another order, and are compared window by
window with the simplest of them: NAME_over_bash, with its confidence interval.
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
"""Useful steps per hour, by number of the window."""


def main() -> None:
    """Measure in turns and report."""
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
    """Returns the contestants in the order of window `number`, rotated so that each comes first
    equally often."""
    first = number % len(contestants)
    return (*contestants[first:], *contestants[:first])


def conclude(report: Report, kind: str, found: Mapping[str, Windows]) -> None:
    """Add to `report` each contestant's median, and its ratio to the simplest one, from the windows
    that both have."""
    for name, windows in found.items():
        report.spread(f"{name}_{kind}", "steps_per_hour", list(windows.values()))
        if name != SIMPLEST:
            report.paired(f"{name}_over_{SIMPLEST}_{kind}", windows, found[SIMPLEST])


def storm(mean: float, seconds: float, turn: int = 0) -> Iterator[float]:
    """Yields the times of the kills in window `turn`, in seconds from the first step."""
    lots = random.Random(f"storm {turn} with a mean of {mean}")
    at = lots.expovariate(1 / mean)
    while at < seconds:
        yield at
        at += lots.expovariate(1 / mean)


def _steps(contestant: Contestant, seconds: float, kills: list[float]) -> int:
    """Returns the highest step that the training has completed `seconds` after its first one."""
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
