"""`python -P device.py '{"do": "step"}'`: uses the accelerators that its environment shows.

This is the only part of the acceptance run that imports jax. It writes lines of JSON, each with
`at` and `time`: first `up`, with the devices, then the results of the task `do`:

* `hold`: keep the devices until it is killed.
* `step`: make a few training steps on all devices, whose gradients need a collective, and compare
  products of known matrices bit by bit. With `stays`, then keep the devices until it is killed.
* `train`: make steps without end.
* `join`: like `step`, together with the other processes of `JAX_COORDINATOR_ADDRESS`, but without
  the products. With `dies`, that rank kills itself after the first step, and the others wait for it
  in a collective.
* `exhaust`: allocate more memory than the first device has.
* `ahead`: compile the step for the given `topology`, without devices; writes no `up`.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

_BEGAN = time.time()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

from trainer import distributed  # noqa: E402
from trainer.device_health import check_devices  # noqa: E402
from trainer.mesh import num_accelerators  # noqa: E402

_STEPS = 5
_WIDTH = {"cpu": 64}
_WIDE = 1024
_BATCH = 64
"""Examples on each device."""


def tell(at: str, **known: Any) -> None:
    """Write a line of JSON to standard output in one system call, so that no other output gets
    into it."""
    os.write(1, json.dumps({"at": at, "time": time.time(), **known}).encode() + b"\n")


def main() -> None:
    """Do the task of the command line."""
    asked = json.loads(sys.argv[1])
    if asked["do"] == "ahead":
        _ahead(asked["topology"])
        return
    if asked["do"] == "join":
        distributed.initialize()
    devices = jax.devices()
    known = [_described(device) for device in jax.local_devices()]
    version = getattr(devices[0].client, "platform_version", "").splitlines()
    tell(
        "up",
        seconds=time.time() - _BEGAN,
        devices=known,
        found=num_accelerators(devices),
        runtime=version[0] if version else "",
    )
    if asked["do"] == "hold":
        jnp.ones(8).block_until_ready()
        tell("holding")
        signal.pause()
    elif asked["do"] == "exhaust":
        _exhaust(devices[0])
    elif asked["do"] == "join" and asked.get("dies") is not None:
        _lose(asked["dies"])
    elif asked["do"] == "train":
        _train(devices)
    else:
        _step(devices)
        if asked.get("stays"):
            signal.pause()


def _described(device: Any) -> dict[str, Any]:
    stats = device.memory_stats() or {}
    return {
        "id": device.id,
        "kind": device.device_kind,
        "coords": _listed(getattr(device, "coords", None)),
        "core": getattr(device, "core_on_chip", None),
        "hardware_id": getattr(device, "local_hardware_id", None),
        "bytes": stats.get("bytes_limit"),
    }


def _listed(coordinates: Any) -> list[int] | None:
    return None if coordinates is None else [int(each) for each in coordinates]


def _width(devices: Any) -> int:
    return _WIDTH.get(devices[0].platform, _WIDE)


def _lowered(devices: Any) -> tuple[Any, Any, Any]:
    """Returns the lowered step for these devices and the shapes of its weights and batch: an
    autoencoder whose batch is split over all devices."""
    width, mesh = _width(devices), Mesh(np.array(devices), ("all",))
    whole = NamedSharding(mesh, PartitionSpec())
    split = NamedSharding(mesh, PartitionSpec("all"))

    def loss(weights: Any, batch: Any) -> Any:
        made = jnp.tanh(batch @ weights["in"]) @ weights["out"]
        return jnp.mean(jnp.sum((made - batch) ** 2, -1))

    def step(weights: Any, batch: Any) -> Any:
        value, slopes = jax.value_and_grad(loss)(weights, batch)
        return jax.tree.map(lambda old, slope: old - 1e-3 * slope, weights, slopes), value

    square = jax.ShapeDtypeStruct((width, width), np.float32, sharding=whole)
    batch = jax.ShapeDtypeStruct((_BATCH * len(devices), width), np.float32, sharding=split)
    weights = {"in": square, "out": square}
    lowered = jax.jit(step, donate_argnums=0, out_shardings=(whole, whole)).lower(weights, batch)
    return lowered, weights, batch


def _bytes(compiled: Any) -> int:
    memory = compiled.memory_analysis()
    arrays = memory.argument_size_in_bytes + memory.output_size_in_bytes
    rest = memory.temp_size_in_bytes + memory.generated_code_size_in_bytes
    return int(arrays - memory.alias_size_in_bytes + rest)


def _placed(abstract: Any, seed: int) -> Any:
    made = np.random.default_rng(seed).standard_normal(abstract.shape).astype(np.float32)
    made /= np.sqrt(abstract.shape[-1])
    return jax.make_array_from_callback(abstract.shape, abstract.sharding, lambda at: made[at])


def _started(devices: Any) -> tuple[Any, Any, Any]:
    lowered, weights, batch = _lowered(devices)
    placed = {name: _placed(each, seed) for seed, (name, each) in enumerate(weights.items())}
    return lowered.compile(), placed, _placed(batch, 7)


def _step(devices: Any) -> None:
    step, weights, batch = _started(devices)
    losses = []
    for _ in range(_STEPS):
        weights, value = step(weights, batch)
        losses.append(float(value))
    stats = jax.local_devices()[0].memory_stats() or {}
    peak, planned = stats.get("peak_bytes_in_use"), _bytes(step)
    bad: dict[int, str] = {}
    if jax.process_count() == 1:
        check_devices(devices, False, (), (), lambda **known: bad.update(known["bad"]))
    tell("done", losses=losses, bad=bad, planned=planned, peak=peak)
    distributed.shut_down()


def _train(devices: Any) -> None:
    step, weights, batch = _started(devices)
    number = 0
    while True:
        weights, value = step(weights, batch)
        value.block_until_ready()
        number += 1
        if number in (3, 100) or number % 1000 == 0:
            tell("step", number=number)


def _lose(rank: int) -> None:
    devices = jax.devices()
    step, weights, batch = _started(devices)
    weights, value = step(weights, batch)
    float(value)
    tell("together")
    if jax.process_index() == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        weights, value = step(weights, batch)
        value.block_until_ready()


def _exhaust(device: Any) -> None:
    limit = (device.memory_stats() or {}).get("bytes_limit")
    assert limit, "the backend does not say how much memory it has"
    many = jax.device_put(jnp.zeros(limit // 4, jnp.bfloat16), device)
    jnp.concatenate([many, many, many]).block_until_ready()


def _ahead(topology: dict[str, Any]) -> None:
    from trainer import aot  # only here, because it imports flax

    jax.config.update("jax_platforms", "cpu")
    tell("done", planned=_bytes(_lowered(aot.devices(topology))[0].compile()))


if __name__ == "__main__":
    main()
