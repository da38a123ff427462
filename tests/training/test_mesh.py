"""Devices as JAX sees them, and accelerators as the config counts them."""

from __future__ import annotations

from dataclasses import dataclass

import jax

from trainer.mesh import num_accelerators

from . import harness as harness  # four simulated devices


@dataclass
class Core:
    """A device of the TPU backend, as far as it says where it is."""

    id: int
    coords: tuple[int, int, int]
    slice_index: int = 0


def test_two_devices_of_one_chip_are_one_accelerator() -> None:
    assert num_accelerators(jax.devices()) == 4
    cores = [Core(number, (number // 2, 0, 0)) for number in range(8)]
    assert num_accelerators(cores) == 4
    others = [Core(core.id + 8, core.coords, 1) for core in cores]
    assert num_accelerators(cores + others) == 8
