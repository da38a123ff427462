"""Devices as a mesh, and how arrays lie on it.

Two axes: the batch is split over both, parameters (and with them the optimizer's state) over `fsdp`
only, so each `data` row holds one copy (Rajbhandari et al., "ZeRO", 2020).
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
    """It has fewer."""


def num_accelerators(devices: Iterable[Any]) -> int:
    """How many accelerators these are: on TPU chips, each of which may be two devices to JAX."""
    return len({_place(device) for device in devices})


def _place(device: Any) -> Any:
    """What is the same for the devices of one chip.

    A GPU has coordinates too: in the plugin of jax 0.10.2 its partition, its process there and its
    place in the process (the devices of a topology of cuda say so); before XLA counted partitions
    only the latter (`SetCoords` in se_gpu_pjrt_client.cc), which GPUs of several processes share.
    Each GPU is one device, so its id tells it from all others in either.
    """
    if device.platform != "tpu":
        return device.id
    coordinates = device.coords
    return (getattr(device, "slice_index", 0), *coordinates)


def require_devices(expected: int | None) -> None:
    """Check that the backend has `expected` accelerators (None: any number will do).

    Raises:
        DevicesDiffer: it has not.
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
    """These devices (None: those of the backend) as `rung` lays them out."""
    types = (AxisType.Auto, AxisType.Auto)
    return jax.make_mesh((rung.data, rung.fsdp), AXES, types, devices=devices)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """For micro-batches [accumulation, sequences, length]: the sequences over all devices."""
    return NamedSharding(mesh, PartitionSpec(None, AXES, None))


def replicated(mesh: Mesh) -> NamedSharding:
    """A whole copy on every device."""
    return NamedSharding(mesh, PartitionSpec())


def state_sharding(mesh: Mesh, array: Any) -> NamedSharding:
    """For one array of the state: its largest dimension that `fsdp` divides, split over it."""
    fsdp = mesh.shape["fsdp"]
    divisible = [axis for axis, size in enumerate(array.shape) if size % fsdp == 0]
    if fsdp == 1 or not divisible:
        return replicated(mesh)
    largest = max(divisible, key=lambda axis: array.shape[axis])
    return NamedSharding(mesh, PartitionSpec(*[None] * largest, "fsdp"))
