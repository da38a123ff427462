"""How much useful work is left of an hour when trainers are killed all the time.

    python -m benchmarks.goodput [--quick] [--json FILE]

The quickstart's trainer for a minute from its first step, under each contestant, in
storms of SIGKILLs drawn by lot (a Poisson process with the given mean time between failures, at the
same moments for all). A kill that finds nobody training hits nothing. A step that is done again
does not count: useful steps per hour is how far the training has come, scaled to an hour.
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
    seconds, means = (20.0, (10.0,)) if given.quick else (60.0, (10.0, 30.0))
    report = Report("goodput")
    for mean in means:
        for contestant in CONTESTANTS:
            name = f"{contestant.name}_mtbf_{mean:g}s"
            try:
                steps = _steps(contestant, seconds, list(storm(mean, seconds)))
            except (UnavailableError, FailedError) as error:
                report.left_out[name] = str(error)
                continue
            report.figure(f"{name}_steps_per_hour", 3600 * steps / seconds)
        theirs = [f"{peer.name}_mtbf_{mean:g}s_steps_per_hour" for peer in PEERS]
        report.most(f"best_peer_mtbf_{mean:g}s_steps_per_hour", theirs)
        for name in ("supervise", "supervise_snapshot"):
            report.ratio(
                f"{name}_over_best_peer_mtbf_{mean:g}s",
                f"{name}_mtbf_{mean:g}s_steps_per_hour",
                f"best_peer_mtbf_{mean:g}s_steps_per_hour",
            )
    report.finish(given.json)


def storm(mean: float, seconds: float) -> Iterator[float]:
    """The moments of the kills, in seconds from the first step."""
    lots = random.Random(f"storm with a mean of {mean}")
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
