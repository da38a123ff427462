"""`python -P -m trainer.aot`: compiles a config for TPUs that are not there, for each rung.

libtpu can compile for a TPU topology that exists only as a description. So we learn before a TPU is
rented whether the program fits into its memory and can be compiled for it. Nothing is run: only a
TPU can show whether the results are correct.

Input: one JSON object on standard input, `{"trainer": {...}, "rungs": [{"num_devices": N,
"topology": "v5e:2x4", "host_bounds": [2, 4, 1] or null, "chip_config": "megacore" or null}, ...]}`.
Output: one JSON object per rung, each on a line of its own: `num_devices`, and either `seconds` and
`bytes` (of one device's memory) or a `problem`.
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
from supervisor.protocol.shortening import keep_beginning
from trainer.batch_sharder import BatchSharder
from trainer.mesh import make_mesh
from trainer.objective_choice import abstract_batch, objective_of
from trainer.step import jit_train_step
from trainer.train_state import TrainStateSpec

_MAX_PROBLEM = 4000
"""Characters; the supervisor removes the secrets, and shows fewer."""


def compile_ahead(config: TrainerConfig, wanted: dict[str, Any]) -> dict[str, Any]:
    """Return the answer for the rung `wanted`; the module's description has the form of both."""
    num_devices = wanted["num_devices"]
    began = time.perf_counter()
    try:
        used = _device_bytes(config, wanted)
    except Exception as error:  # any objection of the compiler is an answer
        first = next(iter(str(error).splitlines()), "")
        problem = keep_beginning(f"{type(error).__name__}: {first}", _MAX_PROBLEM)
        return {"num_devices": num_devices, "problem": problem}
    seconds = round(time.perf_counter() - began, 1)
    return {"num_devices": num_devices, "seconds": seconds, "bytes": used}


def _device_bytes(config: TrainerConfig, wanted: dict[str, Any]) -> int:
    """Compile the train step; returns the bytes of memory that it takes on each device."""
    found = rung(config.init, wanted["num_devices"])
    assert found is not None
    sharder = BatchSharder(make_mesh(found, devices(wanted)), found)
    objective = objective_of(config.init, config.fit.decisive)
    spec = TrainStateSpec.of(config.init, sharder.mesh, objective)
    tokens = abstract_batch(objective, config.fit.decisive, sharder)
    memory = jit_train_step(spec).lower(spec.abstract, tokens).compile().memory_analysis()
    arrays = memory.argument_size_in_bytes + memory.output_size_in_bytes
    rest = memory.temp_size_in_bytes + memory.generated_code_size_in_bytes
    return int(arrays - memory.alias_size_in_bytes + rest)


def devices(wanted: dict[str, Any]) -> Sequence[jax.Device]:
    """Return the devices of the slice, as libtpu describes them.

    Raises:
        ValueError: libtpu describes another number of devices than the real slice has.
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
            f"{wanted['num_devices']}: try another version of libtpu"
        )
    return found


def main() -> None:
    """Answer for one rung after the other, each as soon as it is compiled."""
    request = json.load(sys.stdin)
    jax.config.update("jax_platforms", "cpu")  # for what is computed in this process itself
    config = parse(request)
    for wanted in request["rungs"]:
        print(json.dumps(compile_ahead(config, wanted)), flush=True)


if __name__ == "__main__":
    main()
