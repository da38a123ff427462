"""`python -m tests.vanishing`: the quickstart in a bucket, on machines that vanish at random.

Thirty times everything is killed and the command is started somewhere else: mostly on an empty
disk, sometimes on a disk that was left behind earlier. Each job must stay one job with correct
counts, and end with the parameters of an undisturbed one, bit for bit. Each job loses its machine
three times, so thirty times are ten jobs; they take about a quarter of an hour.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.emulators import Emulator, gcs_emulator
from tests.running import Start, starting
from tests.training.harness import assert_same_bits, final_state
from tests.vanishing.cloud import Cloud
from trainer.train_state import TrainState

_QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.yaml"
_PER_JOB = 3
_LONGEST = 25.0
"""Most seconds that a machine lives: a start takes up to ten of them, all steps take thirty."""
_OLD_DISK = 0.3
"""Probability that an old disk is used again, if there is one."""


def main(argv: Sequence[str]) -> int:
    """Let machines vanish. Returns 0 if everything holds that must."""
    options = _parser().parse_args(argv)
    seed = options.seed if options.seed is not None else random.randrange(10_000)
    print(f"seed {seed}; again: python -m tests.vanishing --times {options.times} --seed {seed}")
    lots = random.Random(seed)
    began, left, number = time.monotonic(), options.times, 0
    with tempfile.TemporaryDirectory() as name, gcs_emulator() as store:
        os.environ.update(store.env)
        home = Path(name)
        with starting(home) as start:
            whole = _undisturbed(start, home)
            while left:
                number += 1
                times = min(_PER_JOB, left)
                _play(_cloud(store, home, number, start), times, lots, whole)
                left -= times
    print(f"{options.times} times in {number} jobs, {time.monotonic() - began:.0f} s: all good")
    return 0


def _undisturbed(start: Start, home: Path) -> TrainState:
    job = _quickstart(str(home / "whole"))
    del job["trainer"]["faults"]
    result = start(job).result(timeout=300.0)
    assert result.code == 0, result.out + result.err
    return final_state(job, home / "whole", _steps(job))


def _cloud(store: Emulator, home: Path, number: int, start: Start) -> Cloud:
    place = store.root / f"{number}" / "job"
    return Cloud(place, home / f"{number}", start)


def _play(cloud: Cloud, times: int, lots: random.Random, whole: TrainState) -> None:
    """Run one job whose machines vanish `times` times, and check what must hold."""
    job = _quickstart(str(cloud.place))
    disks: list[Path] = []
    story = []
    for _ in range(times):
        old = disks.pop(lots.randrange(len(disks))) if _likely(lots, disks) else None
        machine = cloud.machine(job, old)
        lived = lots.uniform(0.5, _LONGEST)
        machine.running.listen(lived)
        if lots.random() < 0.5:
            machine.vanish()
        else:
            machine.lose_power()
            disks.append(machine.disk)
        story.append(f"{lived:.1f} s{' on an old disk' if old else ''}")
    old = disks.pop() if disks else None
    result = cloud.machine(job, old).running.result(timeout=300.0)
    _check(cloud, job, whole, result.code, result.out + result.err)
    attempts = len(cloud.attempts())
    print(f"{cloud.place}: machines lived {', '.join(story)}; {attempts} attempts", flush=True)


def _likely(lots: random.Random, disks: Sequence[Path]) -> bool:
    return bool(disks) and lots.random() < _OLD_DISK


def _check(cloud: Cloud, job: dict[str, Any], whole: TrainState, code: int, told: str) -> None:
    assert code == 0, told
    attempts = cloud.attempts()
    assert attempts == sorted(set(attempts)), f"an attempt number came twice: {attempts}"
    jobs = {event["job"] for event in cloud.journal() if event["kind"] == "SupervisorStarted"}
    assert len(jobs) == 1, f"not one job: {jobs}"
    summary = cloud.summary()
    assert summary["restarts_used"] == 0, "a new checkpoint sets the count to zero"
    assert summary["highest_committed_step"] == _steps(job)
    assert_same_bits(final_state(job, cloud.place, _steps(job)), whole)


def _quickstart(model_dir: str) -> dict[str, Any]:
    job: dict[str, Any] = yaml.safe_load(_QUICKSTART.read_text())
    job["trainer"]["init"] |= {"model_dir": model_dir, "compile_cache": {"from_bucket": True}}
    return job


def _steps(job: dict[str, Any]) -> int:
    return int(job["trainer"]["init"]["loop"]["max_steps"])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.vanishing", description=__doc__)
    parser.add_argument("--seed", type=int, help="decides when machines vanish")
    parser.add_argument("--times", type=int, default=30, metavar="N", help="how often (30)")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
