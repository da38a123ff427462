"""TPU slices: parses their names, and knows their topology and the smaller sizes that can be
used."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from supervisor.config.generations import CHIPS_PER_HOST_OF_SEVERAL, GENERATIONS, Generation


@dataclass(frozen=True, slots=True)
class SliceShape:
    """A TPU slice: the name of its generation, and its number of chips."""

    generation: str
    chips: int

    @property
    def generation_facts(self) -> Generation:
        """The facts about all slices of its generation."""
        return GENERATIONS[self.generation]

    @property
    def devices_per_chip(self) -> int:
        """How many devices JAX sees in each of its chips."""
        return self.generation_facts.devices_per_chip

    @property
    def topology(self) -> str | None:
        """Its topology, such as 2x4; None: no table has a slice of this size."""
        return self.generation_facts.slices.get(self.chips) or self.generation_facts.parts.get(
            self.chips
        )

    @property
    def type(self) -> str:
        """Its name, such as v5e-8."""
        return f"{self.generation}-{self._counted}"

    @property
    def type_in_the_cloud(self) -> str:
        """Its name in the cloud's APIs and on its machines, such as v5litepod-8."""
        return f"{self.generation_facts.name_in_types}-{self._counted}"

    @property
    def host_bounds(self) -> tuple[int, ...] | None:
        """The bounds of its only host in three dimensions; None: it has several hosts, or no table
        has its topology."""
        if self.topology is None or not self.is_part_of_a_host:
            return None
        sides = [int(side) for side in self.topology.split("x")]
        return (*sides, *[1] * (3 - len(sides)))

    @property
    def is_part_of_a_host(self) -> bool:
        """True if one host can have all of its chips. Then any of them can be left out."""
        return self.chips <= max(self.generation_facts.parts)

    @property
    def _counted(self) -> int:
        return self.chips * self.generation_facts.type_number_per_chip

    def described(self) -> dict[str, Any]:
        """Returns the description of the slice for libtpu's compiler, in the form that
        `trainer.aot` reads."""
        return {
            "num_devices": self.chips * self.devices_per_chip,
            "topology": f"{self.generation}:{self.topology}",
            "host_bounds": self.host_bounds,
            "chip_config": self.generation_facts.chip_config,
        }

    def sizes(self) -> dict[int, str | None]:
        """Returns the topology by size in chips, for its own size and all smaller sizes that can be
        used, the largest first.

        Smaller sizes are parts of a host, or whole hosts if the slice has several.
        """
        if self.is_part_of_a_host:
            usable = self.generation_facts.parts
        else:
            usable = {
                n: each
                for n, each in self.generation_facts.slices.items()
                if n % CHIPS_PER_HOST_OF_SEVERAL == 0
            }
        smaller = sorted((n for n in usable if n < self.chips), reverse=True)
        return {self.chips: self.topology} | {n: usable[n] for n in smaller}


_OURS = {one.name_in_types: one.name for one in GENERATIONS.values()}


def _pattern_of_types() -> str:
    """Returns a regular expression that matches the types of all generations, and some more."""
    even = "(?:[2468]|[1-9][0-9]{0,3}[02468])"  # twice the number of chips
    names: dict[str, list[str]] = {"[1-9][0-9]{0,4}": [], even: []}
    for one in GENERATIONS.values():
        numbers = even if one.type_number_per_chip == 2 else "[1-9][0-9]{0,4}"
        names[numbers] += dict.fromkeys((one.name, one.name_in_types))
    return "|".join(f"^(?:{'|'.join(each)})-{numbers}$" for numbers, each in names.items())


PATTERN_OF_TYPES = _pattern_of_types()
"""Matches what `parse_slice` accepts; whether a slice of this size exists, only that knows."""


def parse_topology(name: str) -> SliceShape:
    """Returns the slice of a topology such as v5e:2x4 (8 chips).

    Raises:
        ValueError: the generation is unknown, or does not come in this topology.
    """
    generation, _, wanted = name.partition(":")
    generation = _OURS.get(generation, generation)
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
    """Returns the slice of a type such as v5e-8 (8 chips) or v5p-8 (4 chips).

    The topology of the slice may be unknown.

    Raises:
        ValueError: `accelerator_type` is no TPU type, or no slice can have this size.
    """
    match = re.fullmatch(r"([a-z0-9]+)-([1-9]\d{0,4})", accelerator_type)
    name = _OURS.get(match[1], match[1]) if match is not None else ""
    if match is None or name not in GENERATIONS:
        raise ValueError(f"{accelerator_type!r} is not a TPU type such as v5e-8, v4-16, v5p-8")
    chips, rest = divmod(int(match[2]), GENERATIONS[name].type_number_per_chip)
    if rest:
        raise ValueError(
            f"{accelerator_type!r} is not a TPU type: {name} is named by twice the number of chips"
        )
    known = GENERATIONS[name]
    if chips > known.pod:
        raise ValueError(
            f"{accelerator_type!r} is not possible: a {name} pod has {known.pod} chips"
        )
    if chips not in known.parts and chips % CHIPS_PER_HOST_OF_SEVERAL:
        raise ValueError(
            f"{accelerator_type!r} is not possible: {chips} chips are neither a part of a host nor "
            f"whole hosts of {CHIPS_PER_HOST_OF_SEVERAL} chips"
        )
    return SliceShape(name, chips)
