"""`python -m tests.simulation --seeds N` plays many histories; `--seed K` plays one, and prints all
of it."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields

from supervisor.core.state import JobState
from supervisor.ports import Transition
from tests.simulation.simulation import Moment, Result, Simulation

_CHUNK = 50


def main() -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, metavar="N", help="how many (1000)")
    parser.add_argument("--first", type=int, default=0, metavar="K", help="the first of them (0)")
    parser.add_argument("--seed", type=int, metavar="K", help="replay this one and tell all of it")
    options = parser.parse_args()
    if options.seed is not None:
        return _tell_one(options.seed)
    return _run_many(options.first, options.seeds)


def replay_command(seed: int) -> str:
    """Return the command that prints what happened."""
    return f"python -m tests.simulation --seed {seed}"


def failures(first: int, count: int) -> list[Result]:
    """Play `count` seeds from `first` on; returns the results that have a violation."""
    return [result for result in map(play, range(first, first + count)) if result.violation]


def play(seed: int) -> Result:
    """Play the history of one seed."""
    return Simulation(seed).run()


def _run_many(first: int, count: int) -> int:
    began = time.perf_counter()
    results, ends = [], Counter[str]()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for result in pool.map(play, range(first, first + count), chunksize=_CHUNK):
            results.append(result)
            ends[result.exit_code.name if result.exit_code is not None else "-"] += 1
            if result.violation is not None:
                print(f"seed {result.seed}: {result.violation!r}")
                print(f"  replay it: {replay_command(result.seed)}", flush=True)
    seconds = time.perf_counter() - began
    failed = sum(result.violation is not None for result in results)
    print(
        f"{count} seeds in {seconds:.1f} s ({count / seconds:.0f} a second): {failed} failed; "
        f"{sum(r.runs for r in results)} supervisors, {sum(r.attempts for r in results)} attempts, "
        f"{sum(r.events for r in results)} events; ends: "
        + ", ".join(f"{name} {number}" for name, number in ends.most_common())
    )
    return 1 if failed else 0


def _tell_one(seed: int) -> int:
    simulation = Simulation(seed)
    drawn = simulation.scenario
    print(f"seed {seed}: nothing goes wrong after {drawn.benign:.1f} s")
    print(f"  {drawn.policy}")
    faults = {f.name: getattr(drawn.faults, f.name) for f in fields(drawn.faults)}
    print("  " + ", ".join(f"{name} {value:.3f}" for name, value in faults.items() if value))
    result = simulation.run()
    for moment in simulation.moments:
        for line in _lines(moment):
            print(line)
    if result.violation is not None:
        print(f"FAILED: {result.violation!r}")
        return 1
    assert result.exit_code is not None
    print(
        f"ended with {result.exit_code} ({result.exit_code.name}) after {result.runs} supervisors"
    )
    return 0


def _lines(moment: Moment) -> Iterator[str]:
    if isinstance(moment.what, str):
        yield f"{moment.time:10.2f}  {moment.what}"
        return
    t: Transition = moment.what
    yield f"{moment.time:10.2f}    {t.event}"
    for name, before, after in _changes(t.before, t.after):
        yield f"{'':14}{name}: {before} -> {after}"
    for decision in t.decisions:
        yield f"{'':12}=> {decision}"


def _changes(before: JobState, after: JobState) -> Iterator[tuple[str, object, object]]:
    for field in fields(JobState):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if old != new:
            yield field.name, old, new


if __name__ == "__main__":
    sys.exit(main())
