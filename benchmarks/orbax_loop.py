"""A plain training loop with Orbax's `CheckpointManager`, as people write it, with no code of ours.

python -P benchmarks/orbax_loop.py FOLDER RECORD

Writes a line to RECORD for each completed step: monotonic clock in seconds, pid, number of the
step.
"""

# mypy: allow-untyped-calls, disable-error-code="attr-defined"
from __future__ import annotations

import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp

_WIDTH, _LAYERS, _BATCH, _EVERY = 256, 4, 32, 20
_PAUSE = 0.02
"""Seconds between two steps: a loop that always uses the CPU would slow down the preparation of its
standby, and so the benchmark."""

_optimizer = optax.adamw(1e-3)


def _initial() -> dict[str, Any]:
    keys = jax.random.split(jax.random.key(0), _LAYERS)
    params = [jax.random.normal(key, (_WIDTH, _WIDTH)) / _WIDTH**0.5 for key in keys]
    return {"params": params, "optimizer": _optimizer.init(params)}


def _loss(params: list[jax.Array], batch: jax.Array) -> jax.Array:
    hidden = batch
    for layer in params:
        hidden = jax.nn.gelu(hidden @ layer) + hidden
    return jnp.mean((hidden - jnp.roll(batch, 1, axis=-1)) ** 2)


@partial(jax.jit, donate_argnums=0)
def _train_step(state: dict[str, Any], batch: jax.Array) -> tuple[dict[str, Any], jax.Array]:
    value, gradients = jax.value_and_grad(_loss)(state["params"], batch)
    updates, optimizer = _optimizer.update(gradients, state["optimizer"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "optimizer": optimizer}, value


def _main(folder: Path, record: int) -> None:
    options = ocp.CheckpointManagerOptions(max_to_keep=2, save_interval_steps=_EVERY)
    with ocp.CheckpointManager(folder, options=options) as manager:
        newest = manager.latest_step()
        if newest is None:
            state, step = jax.jit(_initial)(), 0
        else:
            abstract = jax.eval_shape(_initial)
            state = manager.restore(newest, args=ocp.args.StandardRestore(abstract))
            step = newest
        while True:
            batch = jax.random.normal(jax.random.key(step), (_BATCH, _WIDTH))
            state, value = _train_step(state, batch)
            value.block_until_ready()
            step += 1
            os.write(record, f"{time.monotonic()} {os.getpid()} {step}\n".encode())
            print(f"step {step} loss {float(value):.4f}", flush=True)
            manager.save(step, args=ocp.args.StandardSave(state))
            time.sleep(_PAUSE)


_main(Path(sys.argv[1]), os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666))
