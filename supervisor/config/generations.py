"""The facts about each TPU generation, with their sources. Add a new generation to this table.

The cloud offers no slice of a size that is not here, even if a compiler accepts that size. No
document says how processes share a host, so the table has only arrangements that a source shows to
work. No field has a default, and `Generation` refuses values that contradict one another: an
incomplete generation is an error with a message at once, not a surprise on a machine that costs
money.

Sources
    types: Google's tables of TPU types (cloud.google.com/tpu/docs, a page for each generation).
    XPK: AI-Hypercomputer/xpk, `src/xpk/core/system_characteristics.py`, one topology for each size.
    libtpu: 0.0.42 and 0.0.50; `make test-aot` asks it for each topology.
    jax: `conftest.py` (its nightly tests run one process a chip on v4-8, v5e-8, v6e-8 and v7x-8)
        and `jax/_src/test_multiprocess.py` at cec06d1; for device kinds
        `jax/_src/pallas/mosaic/tpu_info.py` of 0.10.2.
    Ray: `python/ray/_private/accelerators/tpu.py`.
    GKE: docs.cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus.
    the gist: f82ba45d2445bb19d53545538754f9a3 by jax's author of TPU support (v2 to v4).
    MaxText: `accelerator_to_spec_map.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

CHIPS_PER_HOST_OF_SEVERAL = 4
"""Chips on each host of a slice of several hosts, in all generations (types)."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How processes share the chips of a host."""

    processes: str
    """The bounds of the processes (`TPU_PROCESS_BOUNDS`)."""
    chips: str
    """The bounds of the chips of one process (`TPU_CHIPS_PER_PROCESS_BOUNDS`)."""
    source: str
    """The source which shows that this works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The facts about all slices of a TPU generation. Sizes are in chips."""

    name: str
    name_in_types: str
    """The cloud's name of the generation in a type such as v5litepod-8 (types)."""
    device_kinds: tuple[str, ...]
    """The values of `device_kind` of its devices (jax)."""
    slices: Mapping[int, str]
    """Topology by size (types, XPK; libtpu describes each)."""
    parts: Mapping[int, str]
    """Topology of a host and of its parts, by size; the whole host comes first."""
    pod: int
    """Chips of a pod: no slice is larger (types)."""
    type_number_per_chip: int
    """How much one chip adds to the number in the name of a type (types)."""
    devices_per_chip: int
    """Devices that JAX sees in one chip (libtpu)."""
    chip_config: str | None
    """The configuration that libtpu needs to describe these chips as the cloud runs them; None:
    it needs none (MaxText passes the same values)."""
    arrangements: Mapping[tuple[int, int], Arrangement]
    """How processes share a host, by the number of chips in use and the chips of one process."""
    why_not_shared: str
    """Why several processes cannot share a host in a way that is not in `arrangements`."""
    node_label: str
    """The value of `cloud.google.com/gke-tpu-accelerator` on nodes with these chips (GKE)."""
    is_queued: bool
    """Whether the Cloud TPU API has queued resources for it."""

    def __post_init__(self) -> None:
        """Checks that the fields do not contradict one another.

        Raises:
            ValueError: they do; the text has all contradictions.
        """
        if found := "; ".join(self._problems()):
            raise ValueError(f"TPU generation {self.name}: {found}")

    def _problems(self) -> Iterator[str]:
        for chips, topology in (*self.slices.items(), *self.parts.items()):
            if _product(topology, "x") != chips:
                yield f"{topology} is no topology of {chips} chips"
        if self.pod < max((*self.slices, *self.parts), default=0):
            yield f"a pod of {self.pod} chips is smaller than its largest slice"
        if not self.device_kinds:
            yield "device_kinds: no device_kind, so a machine cannot be told to be one"
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

# One process alone on a host or on a part of one: these bounds are the same for all generations.
ONE_PROCESS = {
    (1, 1): Arrangement("1,1,1", "1,1,1", "jax conftest.py (JAX_ENABLE_TPU_XDIST), Ray"),
    (2, 2): Arrangement("1,1,1", "1,2,1", "Ray (any generation); the gist"),
    (4, 4): Arrangement("1,1,1", "2,2,1", "jax: 4 chips, 1 process; the gist"),
}
# jax has bounds for 8 processes too: 4,2,1. They are left out, because jax names no generation for
# them, and the hosts of v5e and v6e are 2x4.
_SEVERAL_ON_FOUR_CHIPS = {
    (4, 1): Arrangement("2,2,1", "1,1,1", "jax: 4 chips, 4 processes, as its tests run them"),
    (4, 2): Arrangement("2,1,1", "1,2,1", "jax: 4 chips, 2 processes"),
}
_TWO_ON_EIGHT_CHIPS = Arrangement(
    "1,2,1", "2,2,1", "jax: 8 chips, 2 processes: for v6e, and not for v5e"
)
_SKIPPED_BY_JAX = (
    "jax skips its own tests of several processes on a {} in the cloud (test_multiprocess.py)"
)
_NO_SOURCE = "no source shows bounds for that"

GENERATIONS: Mapping[str, Generation] = {
    one.name: one
    for one in (
        Generation(
            name="v4",
            name_in_types="v4",
            device_kinds=("TPU v4",),
            slices=_CUBES,
            parts=_CUBE_PARTS,
            pod=4096,
            type_number_per_chip=2,
            devices_per_chip=1,
            # A chip has two cores, and the cloud runs them as one device. Without this libtpu
            # describes two devices.
            chip_config="megacore",
            arrangements=ONE_PROCESS,
            why_not_shared=_SKIPPED_BY_JAX.format("v4"),
            node_label="tpu-v4-podslice",
            is_queued=True,
        ),
        Generation(
            name="v5e",
            name_in_types="v5litepod",
            device_kinds=("TPU v5e", "TPU v5 lite"),
            slices=_FLAT,
            parts=_FLAT_PARTS,
            pod=256,
            type_number_per_chip=1,
            devices_per_chip=1,
            chip_config=None,
            arrangements=ONE_PROCESS,
            why_not_shared=_SKIPPED_BY_JAX.format("v5e"),
            node_label="tpu-v5-lite-podslice",
            is_queued=True,
        ),
        Generation(
            name="v5p",
            name_in_types="v5p",
            device_kinds=("TPU v5", "TPU v5p"),
            slices=_CUBES | _LARGE_CUBES | {8960: "16x20x28"},
            parts=_CUBE_PARTS,
            pod=8960,
            type_number_per_chip=2,
            devices_per_chip=1,
            chip_config=None,  # megacore is the default here
            arrangements=ONE_PROCESS | _SEVERAL_ON_FOUR_CHIPS,
            why_not_shared=_NO_SOURCE,
            node_label="tpu-v5p-slice",
            is_queued=True,
        ),
        Generation(
            name="v6e",
            name_in_types="v6e",
            device_kinds=("TPU v6e", "TPU v6 lite"),
            slices=_FLAT,
            parts=_FLAT_PARTS,
            pod=256,
            type_number_per_chip=1,
            devices_per_chip=1,
            chip_config=None,
            arrangements=ONE_PROCESS | _SEVERAL_ON_FOUR_CHIPS | {(8, 4): _TWO_ON_EIGHT_CHIPS},
            why_not_shared=_NO_SOURCE,
            node_label="tpu-v6e-slice",
            is_queued=True,
        ),
        Generation(
            name="tpu7x",
            name_in_types="tpu7x",
            device_kinds=("TPU7x",),
            slices={1: "1x1x1"} | _CUBES | _LARGE_CUBES | {8192: "16x16x32", 9216: "16x24x24"},
            parts=_CUBE_PARTS,
            pod=9216,
            type_number_per_chip=2,
            devices_per_chip=2,
            chip_config=None,
            arrangements=ONE_PROCESS | _SEVERAL_ON_FOUR_CHIPS,
            why_not_shared=_NO_SOURCE,
            node_label="tpu7x",
            # docs.cloud.google.com/tpu/docs/create-tpu-vm says so: "TPU7x and later TPU versions".
            # Managed instance groups of Compute Engine and Google Kubernetes Engine offer them
            # (docs.cloud.google.com/tpu/docs/tpus-in-compute-engine).
            is_queued=False,
        ),
    )
}
