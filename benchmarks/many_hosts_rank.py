"""One of several JAX processes that take steps together: `many_hosts_rank.py RECORD`.

It trains one layer on random data, and knows nothing of supervise. Each line of RECORD, which the
process 0 writes, is a step that all processes have completed: the time by the monotonic clock, the
attempt (0 without supervise), and the step's number. It trains until it is killed.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import os
import sys
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

_SIZE = 512
_BATCH = 256
"""Rows of each process."""


@partial(jax.jit, donate_argnums=0)
def _step(weights: jax.Array, batch: jax.Array) -> jax.Array:
    def loss(weights: jax.Array) -> jax.Array:
        return jnp.mean((jnp.tanh(batch @ weights) - batch) ** 2)

    better: jax.Array = weights - 0.1 * jax.grad(loss)(weights)
    return better


def main() -> None:
    """Join the others, and take steps."""
    number = int(os.environ["JAX_PROCESS_ID"])
    jax.distributed.initialize(
        os.environ["JAX_COORDINATOR_ADDRESS"], int(os.environ["JAX_NUM_PROCESSES"]), number
    )
    mesh = Mesh(np.array(jax.devices()), ("hosts",))
    random = np.random.default_rng(number)
    rows = random.standard_normal((_BATCH, _SIZE), dtype=np.float32)
    batch = jax.make_array_from_process_local_data(
        NamedSharding(mesh, PartitionSpec("hosts")), rows
    )
    weights = jax.device_put(
        np.zeros((_SIZE, _SIZE), np.float32), NamedSharding(mesh, PartitionSpec())
    )
    attempt = os.environ.get("SUPERVISE_ATTEMPT", "0")
    with Path(sys.argv[1]).open("a", buffering=1) as record:
        step = 0
        while True:
            step += 1
            weights = _step(weights, batch)
            weights.block_until_ready()
            if number == 0:
                record.write(f"{time.monotonic()} {attempt} {step}\n")
                if step % 10 == 0:
                    print(f"step {step}", flush=True)


if __name__ == "__main__":
    main()
