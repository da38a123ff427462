"""Devices as JAX sees them, and accelerators as the config counts them."""

from __future__ import annotations

from dataclasses import dataclass

import jax

from trainer.mesh import num_accelerators

from . import harness as harness  # four simulated devices


@dataclass
class Core:
    """A device of the TPU or GPU backend, as far as it says where it is."""

    id: int
    coords: tuple[int, ...]
    slice_index: int = 0
    platform: str = "tpu"


def test_two_devices_of_one_chip_are_one_accelerator() -> None:
    assert num_accelerators(jax.devices()) == 4
    cores = [Core(number, (number // 2, 0, 0)) for number in range(8)]
    assert num_accelerators(cores) == 4
    others = [Core(core.id + 8, core.coords, 1) for core in cores]
    assert num_accelerators(cores + others) == 8


def test_gpus_of_several_processes_are_as_many_accelerators() -> None:
    """Their places, by the plugin of jax 0.10.2 (1 partition, 2 processes, 2 GPUs each) and by XLA
    before it counted partitions."""
    places = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1)]
    assert num_accelerators(Core(n, at, platform="gpu") for n, at in enumerate(places)) == 4
    older = [(0,), (1,), (0,), (1,)]
    assert num_accelerators(Core(n, at, platform="gpu") for n, at in enumerate(older)) == 4
