"""`python -P -m trainer.aot`: compiles a config for TPUs that are not there, for each rung.

libtpu compiles for a topology that it is only told of, so what would not fit into a TPU's memory,
or cannot be lowered for it, is known before one is rented. Nothing is run: whether the result
computes what it should, only a TPU can tell.

One JSON object on standard input, `{"trainer": {...}, "rungs": [{"num_devices": N, "topology":
"v5e:2x4", "host_bounds": [2, 4, 1] or null}, ...]}`; one in a line on standard output for each
rung: `num_devices` with `seconds` and `bytes` (of a device's memory), or with a `problem`.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import json
import sys
import time
from typing import Any

import jax
from jax.experimental import topologies

from supervisor.protocol.shortening import beginning
from trainer.config import parse
from trainer.feed import Feed
from trainer.mesh import make_mesh
from trainer.rungs import rung
from trainer.schema import TrainerConfig
from trainer.state import Blueprint
from trainer.step import jit_train_step

_MAX_PROBLEM = 400


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
    bounds = wanted["host_bounds"]
    topology = topologies.get_topology_desc(
        wanted["topology"], "tpu", **({"chips_per_host_bounds": bounds} if bounds else {})
    )
    feed = Feed(make_mesh(found, topology.devices), found)
    blueprint = Blueprint.of(config.init, feed.mesh)
    tokens = feed.abstract(config.fit.train_dataloader.sequence_length + 1)
    memory = jit_train_step(blueprint).lower(blueprint.abstract, tokens).compile().memory_analysis()
    arrays = memory.argument_size_in_bytes + memory.output_size_in_bytes
    rest = memory.temp_size_in_bytes + memory.generated_code_size_in_bytes
    return int(arrays - memory.alias_size_in_bytes + rest)


def main() -> None:
    """Answer rung by rung, as each is compiled."""
    request = json.load(sys.stdin)
    jax.config.update("jax_platforms", "cpu")  # for what is computed here
    config = parse(request)
    for wanted in request["rungs"]:
        print(json.dumps(compile_ahead(config, wanted)), flush=True)


if __name__ == "__main__":
    main()
