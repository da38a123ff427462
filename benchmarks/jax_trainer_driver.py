"""Runs `many_hosts_rank` under Ray Train's JaxTrainer: `... HEAD RECORD WORKERS STORAGE`.

It runs in the environment of the peer `jax_trainer` and imports nothing of supervise. On CPUs
JaxTrainer does not have its workers join one another, so the training function does.
"""

# mypy: ignore-errors
from __future__ import annotations

import os
import runpy
import socket
import sys
from pathlib import Path

import ray
from ray import train
from ray.train.collective import broadcast_from_rank_zero
from ray.train.v2.jax import JaxTrainer

_PROGRAM = str(Path(__file__).with_name("many_hosts_rank.py"))


def _train(config: dict[str, str]) -> None:
    """Take steps, as the processes of the other contestants do."""
    record = Path(config["record"])
    lines = record.read_text().splitlines() if record.exists() else []
    before = int(lines[-1].split()[1]) if lines else 0
    address, attempt = broadcast_from_rank_zero((_free_address(), before + 1))
    context = train.get_context()
    os.environ.update(
        JAX_PLATFORMS="cpu",
        JAX_NUM_CPU_DEVICES="1",
        JAX_COORDINATOR_ADDRESS=address,
        JAX_NUM_PROCESSES=str(context.get_world_size()),
        JAX_PROCESS_ID=str(context.get_world_rank()),
        SUPERVISE_ATTEMPT=str(attempt),
    )
    sys.argv = [_PROGRAM, str(record)]
    runpy.run_path(_PROGRAM, run_name="__main__")


def _free_address() -> str:
    with socket.socket() as found:
        found.bind(("", 0))
        return f"{ray.util.get_node_ip_address()}:{found.getsockname()[1]}"


def main() -> None:
    """Train until it is killed."""
    head, record, workers, storage = sys.argv[1:]
    ray.init(head, log_to_driver=False)
    JaxTrainer(
        _train,
        train_loop_config={"record": record},
        scaling_config=train.ScalingConfig(
            num_workers=int(workers), resources_per_worker={"CPU": 1}
        ),
        run_config=train.RunConfig(
            storage_path=storage, failure_config=train.FailureConfig(max_failures=-1)
        ),
    ).fit()


if __name__ == "__main__":
    main()
