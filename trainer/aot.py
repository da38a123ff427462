"""`python -P -m trainer.aot`: compiles a config for TPUs that are not there, for each rung.

libtpu compiles for a topology that it is only told of, so what would not fit into a TPU's memory,
or cannot be lowered for it, is known before one is rented. Nothing is run: whether the result
computes what it should, only a TPU can tell.

One JSON object on standard input, `{"trainer": {...}, "rungs": [{"num_devices": N, "topology":
"v5e:2x4", "host_bounds": [2, 4, 1] or null, "chip_config": "megacore" or null}, ...]}`; one in a
line on standard output for each rung: `num_devices` with `seconds` and `bytes` (of a device's
memory), or with a `problem`.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax
from jax.experimental import topologies

from supervisor.config.training.layout import rung
from supervisor.config.training.resolved import TrainerConfig, parse
from supervisor.protocol.shortening import beginning
from trainer.batch_sharder import BatchSharder
from trainer.mesh import make_mesh
from trainer.step import jit_train_step
from trainer.train_state import TrainStateSpec

_MAX_PROBLEM = 4000
"""Characters; the supervisor takes the secrets out, and shows fewer."""


def compile_ahead(config: TrainerConfig, wanted: dict[str, Any]) -> dict[str, Any]:
    """The answer for one rung, both as in the module's description."""
    num_devices = wanted["num_devices"]
    began = time.perf_counter()
    try:
        used = _device_bytes(config, wanted)
    except Exception as error:  # whatever the compiler objects to is the answer
        first = next(iter(str(error).splitlines()), "")
        problem = beginning(f"{type(error).__name__}: {first}", _MAX_PROBLEM)
        return {"num_devices": num_devices, "problem": problem}
    seconds = round(time.perf_counter() - began, 1)
    return {"num_devices": num_devices, "seconds": seconds, "bytes": used}


def _device_bytes(config: TrainerConfig, wanted: dict[str, Any]) -> int:
    """The memory that the train step takes on each device, once it is compiled."""
    found = rung(config.init, wanted["num_devices"])
    assert found is not None
    sharder = BatchSharder(make_mesh(found, devices(wanted)), found)
    spec = TrainStateSpec.of(config.init, sharder.mesh)
    tokens = sharder.abstract(config.fit.train_dataloader.sequence_length + 1)
    memory = jit_train_step(spec).lower(spec.abstract, tokens).compile().memory_analysis()
    arrays = memory.argument_size_in_bytes + memory.output_size_in_bytes
    rest = memory.temp_size_in_bytes + memory.generated_code_size_in_bytes
    return int(arrays - memory.alias_size_in_bytes + rest)


def devices(wanted: dict[str, Any]) -> Sequence[jax.Device]:
    """The devices of the slice, as libtpu describes them.

    Raises:
        ValueError: it describes another number of them than the cloud would run.
    """
    options = {
        "chips_per_host_bounds": wanted["host_bounds"],
        "chip_config_name": wanted["chip_config"],
    }
    given = {name: value for name, value in options.items() if value is not None}
    found = topologies.get_topology_desc(wanted["topology"], "tpu", **given).devices
    if len(found) != wanted["num_devices"]:
        raise ValueError(
            f"libtpu describes {wanted['topology']} as {len(found)} devices, and a real one has "
            f"{wanted['num_devices']}: another libtpu may know it better"
        )
    return found


def main() -> None:
    """Answer rung by rung, as each is compiled."""
    request = json.load(sys.stdin)
    jax.config.update("jax_platforms", "cpu")  # for what is computed here
    config = parse(request)
    for wanted in request["rungs"]:
        print(json.dumps(compile_ahead(config, wanted)), flush=True)


if __name__ == "__main__":
    main()
