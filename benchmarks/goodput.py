"""How much useful work is left of an hour when trainers are killed all the time.

    python -m benchmarks.goodput [--quick] [--json FILE]

The quickstart's trainer under each contestant in turns, each time for the given seconds from its
first step, in storms of SIGKILLs drawn by lot (a Poisson process with the given mean time between
failures, at the same moments for all). A kill that finds nobody training hits nothing. A step that
is done again does not count: useful steps per hour is how far the trainings have come together,
scaled to an hour.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.contest import FailedError
from benchmarks.peers import UnavailableError
from benchmarks.report import Report, options
from benchmarks.training import PEERS, Contestant, training

CONTESTANTS = (
    Contestant("supervise"),
    Contestant("supervise_snapshot", checkpoint={"snapshot": {"every": 1}}),
    *PEERS,
)
_EVERY = 20
"""Steps between checkpoints."""


def main() -> None:
    """Measure in turns, and report."""
    given = options(__doc__)
    rounds, seconds, means = (1, 20.0, (10.0,)) if given.quick else (2, 40.0, (10.0, 30.0))
    report = Report("goodput")
    for mean in means:
        steps: dict[str, list[int]] = {contestant.name: [] for contestant in CONTESTANTS}
        for turn in range(rounds):
            kills = list(storm(mean, seconds, turn))
            for contestant in CONTESTANTS:
                try:
                    steps[contestant.name].append(_steps(contestant, seconds, kills))
                except (UnavailableError, FailedError) as error:
                    report.left_out[f"{contestant.name}_mtbf_{mean:g}s"] = str(error)
        report.samples[f"steps_mtbf_{mean:g}s"] = steps
        for name, come in steps.items():
            if len(come) == rounds:
                rate = 3600 * sum(come) / (rounds * seconds)
                report.figure(f"{name}_mtbf_{mean:g}s_steps_per_hour", rate)
        theirs = [f"{peer.name}_mtbf_{mean:g}s_steps_per_hour" for peer in PEERS]
        report.most(f"best_peer_mtbf_{mean:g}s_steps_per_hour", theirs)
        for name in ("supervise", "supervise_snapshot"):
            report.ratio(
                f"{name}_over_best_peer_mtbf_{mean:g}s",
                f"{name}_mtbf_{mean:g}s_steps_per_hour",
                f"best_peer_mtbf_{mean:g}s_steps_per_hour",
            )
    report.finish(given.json)


def storm(mean: float, seconds: float, turn: int = 0) -> Iterator[float]:
    """The moments of the kills of that turn, in seconds from the first step."""
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
