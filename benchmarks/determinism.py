"""Measures how much the number of devices changes the results, and what the bitwise mode costs.

    python -m benchmarks.determinism [--quick] [--json FILE]

Trains the quickstart's model on 8, 4 and 2 simulated devices, in both modes of `determinism:
{elastic}`, step by step in turns. Reports for each mode and rung: the median time of a step, how
far the parameters at the end are from those of 8 devices (relative L2 norm), and what percentage of
them differs.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.report import Report, options
from supervisor.config.training.layout import rung
from supervisor.config.training.resolved import InitConfig
from trainer.batch_sharder import BatchSharder
from trainer.deterministic_reduction import same_threads
from trainer.mesh import make_mesh
from trainer.step import jit_train_step
from trainer.train_state import TrainStateSpec

MODES = ("rounding", "bitwise")
RUNGS = (8, 4, 2)
BATCH, LENGTH = 16, 129


def main() -> None:
    """Measure in turns and report."""
    given = options(__doc__)
    repeat = 4 if given.quick else 50
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", RUNGS[0])
    same_threads(config("bitwise"))
    runs = {(mode, count): _Run(config(mode), count) for mode in MODES for count in RUNGS}
    for number in range(repeat + 1):
        batch = np.random.default_rng(number).integers(0, 257, (BATCH, LENGTH), np.int32)
        for run in runs.values():
            run.step(batch)
    report = Report("determinism")
    for (mode, count), run in runs.items():
        report.spread(f"{mode}_{count}_step", "ms", run.times[1:])
        distance, differing = _difference(run.parameters(), runs[mode, RUNGS[0]].parameters())
        report.figure(f"{mode}_{count}_relative_l2", distance)
        report.figure(f"{mode}_{count}_differing_percent", differing)
    for count in RUNGS:
        over, under = (f"{mode}_{count}_step_ms" for mode in reversed(MODES))
        report.ratio(f"bitwise_over_rounding_{count}", over, under)
    report.finish(given.json)


def config(mode: str) -> InitConfig:
    """Return the quickstart's model in a mode of `determinism: {elastic}`."""
    model = {
        "hidden_size": 128,
        "num_layers": 3,
        "num_heads": 4,
        "num_kv_heads": 2,
        "dropout": 0.05,
    }
    return InitConfig.model_validate(
        {
            "model": model,
            "optimizer": {"name": "adamw", "learning_rate": 0.004, "warmup_steps": 20},
            "loop": {
                "max_steps": 300,
                "global_batch_size": BATCH,
                "micro_batch_size": BATCH // RUNGS[0],
            },
            "checkpoint": {"directory": Path("/nowhere")},
            "determinism": {"elastic": mode},
        }
    )


class _Run:
    """A training in one mode on one rung."""

    def __init__(self, config: InitConfig, num_devices: int) -> None:
        found = rung(config, num_devices)
        assert found is not None
        self._sharder = BatchSharder(make_mesh(found), found)
        spec = TrainStateSpec.of(config, self._sharder.mesh)
        self._state = spec.fresh()
        self._step = jit_train_step(spec)
        self.times: list[float] = []

    def step(self, batch: Any) -> None:
        """Make one step and record its time."""
        began = time.perf_counter()
        self._state, metrics = self._step(self._state, self._sharder.put(batch))
        jax.block_until_ready((self._state, metrics))
        self.times.append(1e3 * (time.perf_counter() - began))

    def parameters(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Returns all parameters as one vector."""
        leaves = jax.tree.leaves(self._state.params)
        return np.concatenate([np.asarray(leaf).ravel() for leaf in leaves])


def _difference(one: Any, other: Any) -> tuple[float, float]:
    """Returns the L2 norm of the difference relative to `other`, and the percentage of elements
    that differ in any bit."""
    distance = np.linalg.norm(one - other) / np.linalg.norm(other)
    return float(distance), float(100 * np.mean(one.view(np.uint32) != other.view(np.uint32)))


if __name__ == "__main__":
    main()
