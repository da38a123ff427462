"""The sizes that TPUs come in: the slices of each generation, and the parts of a host that work.

After Google's tables of TPU types (cloud.google.com/tpu/docs, a page for each generation). A size
that is not in them cannot be had, whatever a compiler accepts; part of a host is what its chips
can be wired up as (`TPU_CHIPS_PER_PROCESS_BOUNDS`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_CHIPS_PER_HOST = 4
"""Of a slice of several hosts."""

_FLAT = {
    1: "1x1",
    4: "2x2",
    8: "2x4",
    16: "4x4",
    32: "4x8",
    64: "8x8",
    128: "8x16",
    256: "16x16",
}
_FLAT_PARTS = {8: "2x4", 4: "2x2", 2: "1x2", 1: "1x1"}
_CUBES = {
    4: "2x2x1",
    8: "2x2x2",
    16: "2x2x4",
    32: "2x4x4",
    64: "4x4x4",
    128: "4x4x8",
    256: "4x8x8",
    512: "8x8x8",
}
_CUBE_PARTS = {4: "2x2x1", 2: "1x2x1", 1: "1x1x1"}


@dataclass(frozen=True, slots=True)
class Generation:
    """What is true of all slices of a TPU generation. Sizes are in chips."""

    slices: Mapping[int, str]
    """Topology by size."""
    parts: Mapping[int, str]
    """Topology of a host and of its parts by size, the whole host first."""
    pod: int
    """Chips of a pod: no slice is larger (the same pages)."""
    counted_per_chip: int = 1
    """What the number in a type's name counts for one chip."""
    devices_per_chip: int = 1
    """Devices that JAX sees in one chip."""
    chip_config: str | None = None
    """What libtpu must be told to describe such chips as the cloud runs them; None: nothing. A v4
    chip has two cores, which the cloud runs as one device (megacore); libtpu 0.0.42 describes two
    devices if it is not told, and knows no megacore for the others but v5p, where it is the rule.
    MaxText's `accelerator_to_spec_map.py` passes the same."""


GENERATIONS: Mapping[str, Generation] = {
    "v4": Generation(
        _CUBES | {1024: "8x8x16", 2048: "8x16x16"},
        _CUBE_PARTS,
        pod=4096,
        counted_per_chip=2,
        chip_config="megacore",
    ),
    "v5e": Generation(_FLAT, _FLAT_PARTS, pod=256),
    "v5p": Generation(
        _CUBES | {1024: "8x8x16", 2048: "8x16x16", 4096: "16x16x16", 6144: "16x16x24"},
        _CUBE_PARTS,
        pod=8960,
        counted_per_chip=2,
    ),
    "v6e": Generation(_FLAT, _FLAT_PARTS, pod=256),
    "tpu7x": Generation(
        {1: "1x1x1"} | _CUBES, _CUBE_PARTS, pod=9216, counted_per_chip=2, devices_per_chip=2
    ),
}
_ALIASES = {"v5litepod": "v5e"}


@dataclass(frozen=True, slots=True)
class SliceShape:
    """A TPU slice: its generation's name, and how many chips it has."""

    generation: str
    chips: int

    @property
    def devices_per_chip(self) -> int:
        """Devices that JAX sees in each of its chips."""
        return GENERATIONS[self.generation].devices_per_chip

    @property
    def topology(self) -> str | None:
        """How its chips are wired up; None: it is in no table."""
        known = GENERATIONS[self.generation]
        return known.slices.get(self.chips) or known.parts.get(self.chips)

    @property
    def type(self) -> str:
        """Its name, such as v5e-8."""
        return f"{self.generation}-{self.chips * GENERATIONS[self.generation].counted_per_chip}"

    @property
    def host_bounds(self) -> tuple[int, ...] | None:
        """How the chips of its only host lie in three dimensions; None: it has several hosts."""
        if self.topology is None or not self.is_part_of_a_host:
            return None
        sides = [int(side) for side in self.topology.split("x")]
        return (*sides, *[1] * (3 - len(sides)))

    @property
    def is_part_of_a_host(self) -> bool:
        """Whether all of its chips may be on one host, so that any of them can be left out."""
        return self.chips <= max(GENERATIONS[self.generation].parts)

    def described(self) -> dict[str, Any]:
        """What libtpu's compiler is told of it, as `trainer.aot` wants it."""
        return {
            "num_devices": self.chips * self.devices_per_chip,
            "topology": f"{self.generation}:{self.topology}",
            "host_bounds": self.host_bounds,
            "chip_config": GENERATIONS[self.generation].chip_config,
        }

    def sizes(self) -> dict[int, str | None]:
        """Its own size and all smaller ones that its chips can be used in, with their topologies,
        the largest first: parts of one host, or several whole hosts."""
        known = GENERATIONS[self.generation]
        if self.is_part_of_a_host:
            usable = known.parts
        else:
            usable = {n: each for n, each in known.slices.items() if n % _CHIPS_PER_HOST == 0}
        smaller = sorted((n for n in usable if n < self.chips), reverse=True)
        return {self.chips: self.topology} | {n: usable[n] for n in smaller}


def parse_topology(name: str) -> SliceShape:
    """The slice of a topology such as v5e:2x4 (8 chips).

    Raises:
        ValueError: there is none such.
    """
    generation, _, wanted = name.partition(":")
    generation = _ALIASES.get(generation, generation)
    if generation not in GENERATIONS:
        there = ", ".join(GENERATIONS)
        raise ValueError(f"{name!r} is not a topology such as v5e:2x4; there are {there}")
    known = GENERATIONS[generation]
    sizes = {topology: chips for chips, topology in (*known.parts.items(), *known.slices.items())}
    if wanted not in sizes:
        there = ", ".join(sorted(sizes, key=lambda one: sizes[one]))
        raise ValueError(f"{generation} does not come as {wanted!r}; there is {there}")
    return SliceShape(generation, sizes[wanted])


def parse_slice(accelerator_type: str) -> SliceShape:
    """The slice of a type such as v5e-8 (8 chips) or v5p-8 (4 chips). Its topology may be unknown.

    Raises:
        ValueError: it is no TPU type, or no slice can have this size.
    """
    match = re.fullmatch(r"([a-z0-9]+)-([1-9]\d{0,4})", accelerator_type)
    name = _ALIASES.get(match[1], match[1]) if match is not None else ""
    if match is None or name not in GENERATIONS:
        raise ValueError(f"{accelerator_type!r} is not a TPU type such as v5e-8, v4-16, v5p-8")
    chips, rest = divmod(int(match[2]), GENERATIONS[name].counted_per_chip)
    if rest:
        raise ValueError(
            f"{accelerator_type!r} is not a TPU type: {name} is named by twice the number of chips"
        )
    known = GENERATIONS[name]
    if chips > known.pod:
        raise ValueError(f"{accelerator_type!r} cannot be: a {name} pod has {known.pod} chips")
    if chips not in known.parts and chips % _CHIPS_PER_HOST:
        raise ValueError(
            f"{accelerator_type!r} cannot be: {chips} chips are neither a part of a host nor whole "
            f"hosts of {_CHIPS_PER_HOST} chips"
        )
    return SliceShape(name, chips)
