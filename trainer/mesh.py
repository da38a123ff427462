"""The device mesh, and the shardings of arrays on it.

It has two axes. The batch is split over both; parameters and optimizer state over `fsdp` only, so
each `data` row holds one copy (Rajbhandari et al., "ZeRO", 2020).
"""

# mypy: allow-untyped-calls
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from supervisor.config.training.layout import Rung

AXES = ("data", "fsdp")


class DevicesDiffer(RuntimeError):  # noqa: N818
    """The backend has another number of devices than this worker was started for."""


class DevicesMissing(DevicesDiffer):
    """The backend has fewer devices than this worker was started for."""


def num_accelerators(devices: Iterable[Any]) -> int:
    """Count the accelerators of `devices`: on TPU chips, each of which may be two JAX devices."""
    return len({_place(device) for device in devices})


def _place(device: Any) -> Any:
    """Return a key that is equal for the devices of one chip.

    On TPU that is the coordinates. GPUs have coordinates too, but not reliable ones: in jax 0.10.2
    they are partition, process and index in the process; older XLA has the index alone
    (`SetCoords` in se_gpu_pjrt_client.cc), which GPUs of several processes share. Each GPU is one
    device, so its id is the key.
    """
    if device.platform != "tpu":
        return device.id
    coordinates = device.coords
    return (getattr(device, "slice_index", 0), *coordinates)


def require_devices(expected: int | None) -> None:
    """Check that the backend has `expected` accelerators (None: any number will do).

    Raises:
        DevicesMissing: it has fewer.
        DevicesDiffer: it has more.
    """
    found = num_accelerators(jax.devices())
    if expected is not None and found != expected:
        platform = jax.devices()[0].platform
        kind = DevicesMissing if found < expected else DevicesDiffer
        raise kind(
            f"started for {expected} devices, but the {platform} backend has {found}: set "
            "trainer.init.devices to what this machine has, and free the devices that another "
            "process holds"
        )


def make_mesh(rung: Rung, devices: Sequence[Any] | None = None) -> Mesh:
    """Return the mesh of `rung` on `devices` (None: all devices of the backend)."""
    types = (AxisType.Auto, AxisType.Auto)
    return jax.make_mesh((rung.data, rung.fsdp), AXES, types, devices=devices)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Return the sharding of tokens [accumulation, sequences, length]: split by sequences."""
    return NamedSharding(mesh, PartitionSpec(None, AXES, None))


def replicated(mesh: Mesh) -> NamedSharding:
    """Return the sharding with a whole copy on every device."""
    return NamedSharding(mesh, PartitionSpec())


def state_sharding(mesh: Mesh, array: Any) -> NamedSharding:
    """Return the sharding of one array of the state: its largest dimension that the size of `fsdp`
    divides is split over `fsdp`."""
    fsdp = mesh.shape["fsdp"]
    divisible = [axis for axis, size in enumerate(array.shape) if size % fsdp == 0]
    if fsdp == 1 or not divisible:
        return replicated(mesh)
    largest = max(divisible, key=lambda axis: array.shape[axis])
    return NamedSharding(mesh, PartitionSpec(*[None] * largest, "fsdp"))
