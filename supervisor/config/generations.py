"""All that is known of each TPU generation, with its sources: the one table to add a generation to.

A slice of a size that is not here cannot be had, whatever a compiler accepts. How processes share a
host is documented nowhere, so only what a source shows to work is here. No field has a default, and
`Generation` refuses what does not fit together: a generation with a part left out is an error at
once, in words, and not a surprise on a machine that costs money.

Sources
    types: Google's tables of TPU types (cloud.google.com/tpu/docs, a page for each generation).
    XPK: AI-Hypercomputer/xpk, `src/xpk/core/system_characteristics.py`, one topology for each size.
    libtpu: 0.0.42 and 0.0.50, asked for each topology (`make test-aot`).
    jax: `conftest.py` (its nightly tests run one process a chip on v4-8, v5e-8, v6e-8 and v7x-8)
        and `jax/_src/test_multiprocess.py` at cec06d1; for device kinds
        `jax/_src/pallas/mosaic/tpu_info.py` of 0.10.2.
    Ray: `python/ray/_private/accelerators/tpu.py`.
    the gist: f82ba45d2445bb19d53545538754f9a3 by jax's author of TPU support (v2 to v4).
    MaxText: `accelerator_to_spec_map.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

CHIPS_PER_HOST = 4
"""Of a slice of several hosts: any generation (types)."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How the processes lie (`TPU_PROCESS_BOUNDS`), the chips of each
    (`TPU_CHIPS_PER_PROCESS_BOUNDS`), and by which source that works."""

    processes: str
    chips: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What is true of all slices of a TPU generation. Sizes are in chips."""

    name: str
    name_in_types: str
    """What the cloud calls it in a type such as v5litepod-8 (types)."""
    kinds: tuple[str, ...]
    """`device_kind` of its devices (jax)."""
    slices: Mapping[int, str]
    """Topology by size (types, XPK; libtpu describes each)."""
    parts: Mapping[int, str]
    """Topology of a host and of its parts by size, the whole host first."""
    pod: int
    """Chips of a pod: no slice is larger (types)."""
    counted_per_chip: int
    """What the number in a type's name counts for one chip (types)."""
    devices_per_chip: int
    """Devices that JAX sees in one chip (libtpu)."""
    chip_config: str | None
    """What libtpu must be told to describe such chips as the cloud runs them; None: nothing
    (MaxText passes the same)."""
    arrangements: Mapping[tuple[int, int], Arrangement]
    """How processes share a host, by all chips that are used and those of one process."""
    why_not: str
    """Why several processes cannot have what is missing there."""
    is_queued: bool
    """Whether the Cloud TPU API has queued resources of it."""

    def __post_init__(self) -> None:
        """Refuse what does not fit together.

        Raises:
            ValueError: with all that does not.
        """
        if found := "; ".join(self._problems()):
            raise ValueError(f"TPU generation {self.name}: {found}")

    def _problems(self) -> Iterator[str]:
        for chips, topology in (*self.slices.items(), *self.parts.items()):
            if _product(topology, "x") != chips:
                yield f"{topology} is no topology of {chips} chips"
        if self.pod < max((*self.slices, *self.parts), default=0):
            yield f"a pod of {self.pod} chips is smaller than its largest slice"
        if not self.kinds:
            yield "kinds: no device_kind, so a machine cannot be told to be one"
        for chips in self.parts:
            if chips < max(self.parts) and (chips, chips) not in self.arrangements:
                yield f"arrangements: no bounds for one process with {chips} chips of a host"
        for (chips, each), one in self.arrangements.items():
            made = (_product(one.processes, ","), _product(one.chips, ","))
            if (made[0] * each, made[1]) != (chips, each):
                yield (
                    f"arrangements: bounds {one.processes} and {one.chips} are not {chips} chips "
                    f"with {each} for each process"
                )


def _product(text: str, separator: str) -> int:
    return math.prod(int(side) for side in text.split(separator))


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
    1024: "8x8x16",
    2048: "8x16x16",
}
_LARGE_CUBES = {4096: "16x16x16", 6144: "16x16x24"}
_CUBE_PARTS = {4: "2x2x1", 2: "1x2x1", 1: "1x1x1"}

# One process with a part of a host: bounds that are the same for all generations.
ALONE = {
    (1, 1): Arrangement("1,1,1", "1,1,1", "jax conftest.py (JAX_ENABLE_TPU_XDIST), Ray"),
    (2, 2): Arrangement("1,1,1", "1,2,1", "Ray (any generation); the gist"),
    (4, 4): Arrangement("1,1,1", "2,2,1", "jax: 4 chips, 1 process; the gist"),
}
# jax's bounds for 8 processes, 4,2,1, name no generation, and v5e and v6e hosts are 2x4: left out.
_ON_FOUR = {
    (4, 1): Arrangement("2,2,1", "1,1,1", "jax: 4 chips, 4 processes, as its tests run them"),
    (4, 2): Arrangement("2,1,1", "1,2,1", "jax: 4 chips, 2 processes"),
}
_HALVES = Arrangement("1,2,1", "2,2,1", "jax: 8 chips, 2 processes: for v6e, and not for v5e")
_SKIPPED = (
    "jax skips its own tests of several processes on a {} in the cloud (test_multiprocess.py)"
)
_NO_SOURCE = "no source shows bounds for that"

GENERATIONS: Mapping[str, Generation] = {
    one.name: one
    for one in (
        Generation(
            name="v4",
            name_in_types="v4",
            kinds=("TPU v4",),
            slices=_CUBES,
            parts=_CUBE_PARTS,
            pod=4096,
            counted_per_chip=2,
            devices_per_chip=1,
            # Two cores, which the cloud runs as one device; libtpu describes two if not told.
            chip_config="megacore",
            arrangements=ALONE,
            why_not=_SKIPPED.format("v4"),
            is_queued=True,
        ),
        Generation(
            name="v5e",
            name_in_types="v5litepod",
            kinds=("TPU v5e", "TPU v5 lite"),
            slices=_FLAT,
            parts=_FLAT_PARTS,
            pod=256,
            counted_per_chip=1,
            devices_per_chip=1,
            chip_config=None,
            arrangements=ALONE,
            why_not=_SKIPPED.format("v5e"),
            is_queued=True,
        ),
        Generation(
            name="v5p",
            name_in_types="v5p",
            kinds=("TPU v5", "TPU v5p"),
            slices=_CUBES | _LARGE_CUBES | {8960: "16x20x28"},
            parts=_CUBE_PARTS,
            pod=8960,
            counted_per_chip=2,
            devices_per_chip=1,
            chip_config=None,  # megacore is the rule
            arrangements=ALONE | _ON_FOUR,
            why_not=_NO_SOURCE,
            is_queued=True,
        ),
        Generation(
            name="v6e",
            name_in_types="v6e",
            kinds=("TPU v6e", "TPU v6 lite"),
            slices=_FLAT,
            parts=_FLAT_PARTS,
            pod=256,
            counted_per_chip=1,
            devices_per_chip=1,
            chip_config=None,
            arrangements=ALONE | _ON_FOUR | {(8, 4): _HALVES},
            why_not=_NO_SOURCE,
            is_queued=True,
        ),
        Generation(
            name="tpu7x",
            name_in_types="tpu7x",
            kinds=("TPU7x",),
            slices={1: "1x1x1"} | _CUBES | _LARGE_CUBES | {8192: "16x16x32", 9216: "16x24x24"},
            parts=_CUBE_PARTS,
            pod=9216,
            counted_per_chip=2,
            devices_per_chip=2,
            chip_config=None,
            arrangements=ALONE | _ON_FOUR,
            why_not=_NO_SOURCE,
            # "TPU7x and later TPU versions", says docs.cloud.google.com/tpu/docs/create-tpu-vm.
            # Compute Engine's managed instance groups and Google Kubernetes Engine offer them
            # (docs.cloud.google.com/tpu/docs/tpus-in-compute-engine).
            is_queued=False,
        ),
    )
}
