"""Measures what it costs our trainer to check for NaN and Inf, so that it never saves them.

    python -m benchmarks.finiteness [--quick] [--json FILE]

Runs the compiled train step of a 4.9M-parameter decoder in turns: with the check of loss and
gradients, without it, and once more without it. The difference of the last two is the noise. Then
measures the check of the whole state, which comes before each save. Milliseconds.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import trainer.step
from benchmarks.report import Report, options
from supervisor.config.training.layout import Rung
from supervisor.config.training.resolved import InitConfig
from trainer.batch_sharder import BatchSharder
from trainer.mesh import make_mesh
from trainer.train_state import TrainStateSpec

INIT = InitConfig.model_validate(
    {
        "model": {"hidden_size": 256, "num_layers": 6, "num_heads": 4},
        "optimizer": {"name": "adamw", "learning_rate": 1e-3},
        "loop": {"max_steps": 10, "global_batch_size": 8},
        "checkpoint": {"directory": Path("/nowhere")},
    }
)
LENGTH = 65


def main() -> None:
    """Measure in turns and report."""
    given = options(__doc__)
    repeat = 10 if given.quick else 100
    jax.config.update("jax_platforms", "cpu")
    rung = Rung(1, 1, 1, 8, 1)
    sharder = BatchSharder(make_mesh(rung), rung)
    spec = TrainStateSpec.of(INIT, sharder.mesh)
    tokens = sharder.put(np.random.default_rng(0).integers(0, 257, (8, LENGTH), np.int32))
    check = trainer.step.all_finite

    def compiled(finite: Any) -> Any:
        trainer.step.all_finite = finite
        step = trainer.step.jit_train_step(spec)
        return step.lower(spec.abstract, sharder.abstract(LENGTH)).compile()

    variants = {
        "checked_step": compiled(check),
        "unchecked_step": compiled(lambda tree: jnp.bool_(True)),
        "unchecked_step_again": compiled(lambda tree: jnp.bool_(True)),
    }
    trainer.step.all_finite = check
    states = {name: spec.fresh() for name in variants}
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(repeat):
        for name, step in variants.items():
            began = time.perf_counter()
            states[name], metrics = step(states[name], tokens)
            jax.block_until_ready((states[name].params, metrics))
            bool(metrics["finite"])
            times[name].append(1e3 * (time.perf_counter() - began))
    whole = trainer.step.jit_all_finite(spec)
    state = states["checked_step"]
    name = "whole_state"
    times[name] = []
    for _ in range(repeat + 1):
        began = time.perf_counter()
        bool(whole(state))
        times[name].append(1e3 * (time.perf_counter() - began))
    report = Report("finiteness")
    for name, taken in times.items():
        report.spread(name, "ms", taken[1:])
    report.ratio("checked_over_unchecked_step", "checked_step_ms", "unchecked_step_ms")
    report.finish(given.json)


if __name__ == "__main__":
    main()
