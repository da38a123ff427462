"""`python -m benchmarks.scan_layers [LAYERS]`: what `loop.scan_layers` costs to compile on a CPU.

Prints for a step without and with it: seconds to trace it, lines of its program, and seconds of CPU
time that XLA takes for that.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import os
import sys
import time

import jax

from supervisor.config.training.layout import rung
from supervisor.config.training.resolved import parse
from trainer.batch_sharder import BatchSharder
from trainer.mesh import make_mesh
from trainer.objective_choice import abstract_batch, objective_of
from trainer.step import jit_train_step
from trainer.train_state import TrainStateSpec


def measure(num_layers: int, *, scans: bool) -> str:
    """Compile a step of a model with so many layers; returns what that took."""
    model = {"hidden_size": 256, "num_layers": num_layers, "num_heads": 4, "mlp_size": 1024}
    optimizer = {"name": "adamw", "learning_rate": 1e-3}
    loop = {"max_steps": 9, "global_batch_size": 8, "scan_layers": scans}
    loader = {"paths": "stdlib", "sequence_length": 128}
    init = {"model": model, "optimizer": optimizer, "loop": loop, "checkpoint": {"directory": "/"}}
    config = parse({"trainer": {"init": init, "fit": {"train_dataloader": loader}}})
    found = rung(config.init, 1)
    assert found is not None
    sharder = BatchSharder(make_mesh(found, jax.devices()[:1]), found)
    objective = objective_of(config.init, config.fit.decisive)
    spec = TrainStateSpec.of(config.init, sharder.mesh, objective)
    tokens = abstract_batch(objective, config.fit.decisive, sharder)
    began = time.process_time()
    lowered = jit_train_step(spec).lower(spec.abstract, tokens)
    traced = time.process_time() - began
    lines = lowered.as_text().count("\n")
    began = time.process_time()
    lowered.compile()
    compiled = time.process_time() - began
    return f"traced in {traced:.1f} s, {lines} lines, compiled in {compiled:.1f} s of CPU time"


if __name__ == "__main__":
    os.nice(10)
    jax.config.update("jax_enable_compilation_cache", False)
    layers = int(sys.argv[1]) if sys.argv[1:] else 12
    measure(1, scans=False)  # what only the first one takes
    for scans in (False, True):
        print(f"scan_layers: {scans}: {measure(layers, scans=scans)}", flush=True)
