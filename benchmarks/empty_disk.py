"""Measures how soon a job in a bucket goes on, on a machine that has never run it.

    python -m benchmarks.empty_disk [--quick] [--json FILE]

The quickstart's trainer has its model_dir in an emulator of Google Cloud Storage on this host. It
is killed together with its supervisor, and its folder on the disk is deleted. Measures the seconds
from the start of the same command to the next completed step: once with compiled programs from the
bucket (`compile_cache: {from_bucket: true}`), once after they are deleted there. A real bucket adds
its latency. On another machine, add up to 60 s until the lease of the first one has expired.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import AbstractContextManager
from pathlib import Path

from benchmarks.report import Report, options
from benchmarks.training import Contestant, Training, training
from supervisor.adapters.stores.bucket import bucket
from supervisor.ports import Objects
from tests.emulators import Emulator, gcs_emulator

_CACHE = "compile_cache"
_EVERY = 20
_STEPS = 30
_PATIENCE = 120.0


def main() -> None:
    """Measure in turns and report."""
    given = options(__doc__)
    report = Report("empty_disk")
    found: dict[str, list[float]] = {"with_cache": [], "without_cache": []}
    with gcs_emulator() as store:
        os.environ.update(store.env)
        for turn in range(1 if given.quick else 5):
            for name, values in found.items():
                values.append(_goes_on(store, f"{name}{turn}", has_cache=name == "with_cache"))
    for name, values in found.items():
        report.spread(name, "s", values)
    report.ratio("with_over_without_cache", "with_cache_s", "without_cache_s")
    report.finish(given.json)


def _goes_on(store: Emulator, name: str, *, has_cache: bool) -> float:
    place = store.root / name / "run"
    init = {"model_dir": str(place), "compile_cache": {"from_bucket": True}}
    job = Contestant(name, autorestart={"standby": "off", "prefetch": False}, init=init)
    objects = bucket(place)
    with tempfile.TemporaryDirectory() as folder:
        disk = Path(folder) / "disk"  # the same path again: JAX's cache keys contain it
        disk.mkdir()
        with _machine(job, disk) as run:
            run.wait_for_step(_STEPS)
            run.wait_for_event("checkpoint-committed", timeout=_PATIENCE)
            compiled = "the copied cache"
            run.wait_for(compiled, lambda: len(objects.list(_CACHE).objects) > 1, _PATIENCE)
        shutil.rmtree(disk)
        disk.mkdir()
        if not has_cache:
            _forget(objects)
        began = time.monotonic()
        with _machine(job, disk) as run:
            return run.wait_for_step(0).at - began


def _machine(job: Contestant, disk: Path) -> AbstractContextManager[Training]:
    os.environ["XDG_STATE_HOME"] = str(disk / "state")
    return training(job, disk, every=_EVERY, max_steps=1_000_000)


def _forget(objects: Objects) -> None:
    for name in objects.list(_CACHE).objects:
        objects.delete(f"{_CACHE}/{name}")


if __name__ == "__main__":
    main()
