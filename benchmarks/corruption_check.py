"""Measures what a check for silent corruption costs.

    python -m benchmarks.corruption_check [--quick] [--json FILE]

Trains the quickstart's model on 4 simulated devices in bitwise mode. In turns it takes an ordinary
step and one that is checked, in one process, so that load on the machine strikes both alike.
Reports the median of both, of the ratio within a pair, and what share of the training time follows
from that at a check every 500 steps.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import jax
import numpy as np

from benchmarks.determinism import BATCH, LENGTH, config
from benchmarks.report import Report, options
from supervisor.config.training.layout import rung
from supervisor.protocol.reporter import Reporter
from trainer.batch_sharder import BatchSharder
from trainer.corruption_check import CorruptionCheck
from trainer.data import TrainingData
from trainer.deterministic_reduction import same_threads
from trainer.executables import Executables
from trainer.log import WorkerLog
from trainer.mesh import make_mesh
from trainer.rollout_mesh import RolloutMesh
from trainer.step import jit_step_of_leaves
from trainer.train_state import TrainStateSpec
from trainer.training_setup import TrainingSetup

DEVICES = 4
EVERY = 500


def main() -> None:
    """Measure in turns and report."""
    given = options(__doc__)
    repeat = 3 if given.quick else 30
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    same_threads(config("bitwise"))
    setup = _setup()
    check = CorruptionCheck(EVERY, setup, Reporter(None))
    step, state = setup.compiled_step(), setup.spec.fresh()
    taken: dict[str, list[float]] = {"step": [], "check": []}
    for number in range(repeat + 1):
        batch = np.random.default_rng(number).integers(0, 257, (BATCH, LENGTH), np.int32)
        began = time.perf_counter()
        state, _ = jax.block_until_ready(step(state, setup.sharder.put(batch)))
        between = time.perf_counter()
        state, _ = jax.block_until_ready(check.step(step, state, batch, EVERY))
        taken["step"].append(between - began)
        taken["check"].append(time.perf_counter() - between)
    report = Report("corruption_check")
    for name, seconds in taken.items():
        report.spread(name, "ms", [1000 * each for each in seconds[1:]])  # the first one compiles
    pairs = (dict(enumerate(seconds[1:])) for seconds in (taken["check"], taken["step"]))
    report.paired("check_over_step", *pairs)
    more = report.figures["check_over_step"] - 1
    report.figure(f"percent_at_{EVERY}", 100 * more / EVERY)
    report.finish(given.json)


def _setup() -> TrainingSetup:
    init, log = config("bitwise"), WorkerLog()
    found = rung(init, DEVICES)
    assert found is not None
    sharder = BatchSharder(make_mesh(found), found)
    spec = TrainStateSpec.of(init, sharder.mesh)
    compiled: Future[Callable[..., Any]] = Future()
    compiled.set_result(jit_step_of_leaves(spec))
    return TrainingSetup(
        log=log,
        sharder=sharder,
        spec=spec,
        tokens=sharder.abstract(LENGTH),
        sample=None,
        data=lambda: TrainingData(None, 0),
        executables=Executables(None, {}, log),
        train_step=compiled,
        rollout_mesh=RolloutMesh(spec, sharder),
    )


if __name__ == "__main__":
    main()
