"""The ladder: the numbers of devices that a phase can run on, and why it has no others.

Three things decide: the platform, which comes in some sizes only; the config (`ladder`,
`min_num_devices`, `min_num_slices`); and the program, whose batch can be shared among some numbers
of devices only. All counts are accelerators; on TPU these are chips.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from supervisor.config import placeholders
from supervisor.config.chips import arrangement, why_not_shared
from supervisor.config.command import Command
from supervisor.config.generations import GENERATIONS
from supervisor.config.problems import Location, shown
from supervisor.config.schema import Devices, Init, Phase
from supervisor.config.topology import parse_slice

_PARTS_OF_A_TPU_HOST = sorted({n for one in GENERATIONS.values() for n in one.parts}, reverse=True)
"""The sizes in chips for a TPU whose generation the config does not name."""
_DEVICE_TEMPLATES = {"num_devices", "per_device_batch"}

NOT_ELASTIC = (
    "the command's batch could change silently: use {num_devices} or {per_device_batch} in its "
    "argv or env, or set command.elastic: true if it keeps its global batch by itself"
)


@dataclass(frozen=True, slots=True)
class RungLayout:
    """A rung: a number of devices that the phase can run on."""

    num_devices: int
    topology: str | None = None
    layout: Mapping[str, Any] = field(default_factory=dict)
    """How our trainer uses the devices (`num_devices`, `mesh`, `per_device_batch`,
    `accumulation`); of a command only `per_device_batch`, if the config gives its global batch."""


@dataclass(frozen=True, slots=True)
class FeasibleRungs:
    """The rungs of a phase, and the reasons why the counts between them are no rungs."""

    rungs: tuple[RungLayout, ...] = ()
    """The full rung comes first; empty if the number of devices is not known."""
    gaps: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The counts that are no rungs, by the reason."""


Layouts = Mapping[int, Mapping[str, Any] | str]
"""By number of devices: how the program uses them, or as a text why it cannot."""


def allowed_counts(phase: Phase) -> tuple[int, ...]:
    """Returns the numbers of devices that platform and config allow, the full one first; empty if
    the number of devices is not known."""
    if phase.init.autorestart.ladder is not None:
        return tuple(phase.init.autorestart.ladder)
    return tuple(count for count in _usable_topologies(phase) if count >= _least(phase))


def devices_per_accelerator(phase: Phase) -> int:
    """Returns how many devices JAX sees in one accelerator."""
    devices = phase.init.devices
    if devices is None or devices.type is None:
        return 1
    return parse_slice(devices.type).devices_per_chip


def make_ladder(phase: Phase, layouts: Layouts) -> FeasibleRungs:
    """Returns the ladder; `layouts` has an entry for each of the `allowed_counts` numbers."""
    counts, sizes = allowed_counts(phase), _usable_topologies(phase)
    if not counts:
        return FeasibleRungs()
    rungs, gaps = [], dict.fromkeys(range(counts[0] - 1, _least(phase) - 1, -1), "")
    for count in gaps:
        gaps[count] = _no_size(phase, count) if count not in sizes else _NOT_IN_LADDER
    for count in counts:
        layout = layouts[count]
        if isinstance(layout, str):
            gaps[count] = layout
        else:
            gaps.pop(count, None)
            rungs.append(RungLayout(count, sizes[count], layout))
    by_reason: dict[str, tuple[int, ...]] = {}
    for count, reason in gaps.items():
        by_reason[reason] = (*by_reason.get(reason, ()), count)
    return FeasibleRungs(tuple(rungs), by_reason)


def command_layouts(phase: Phase) -> Layouts:
    """Returns the layout of a command for each of the `allowed_counts` numbers.

    A command can use fewer devices only if the config says so (`_is_elastic`); otherwise all
    smaller numbers have the reason `NOT_ELASTIC`.
    """
    command, counts = phase.command, allowed_counts(phase)
    assert command is not None
    follows = _is_elastic(command)
    return {
        count: _share(command.global_batch, count) if follows or count == counts[0] else NOT_ELASTIC
        for count in counts
    }


def ladder_conflicts(phase: Phase) -> Iterator[tuple[Location, str]]:
    """Yields what in the config contradicts the devices: the key to change, and the message."""
    restart, devices = phase.init.autorestart, phase.init.devices
    where = ("init", "autorestart")
    full = devices.num_devices if devices is not None else None
    slices = devices.slices if devices is not None else None
    if full is not None and restart.min_num_devices > full:
        message = (
            f"is {restart.min_num_devices}, but the job has only {full} devices; at most {full}"
        )
        yield (*where, "min_num_devices"), message
    if restart.min_num_slices is not None and restart.min_num_slices > (slices or 0):
        least = restart.min_num_slices
        message = f"is {least}, but the job has {slices or 'no'} slices (init.devices.slices)"
        yield (*where, "min_num_slices"), message
    if restart.ladder is not None:
        yield from _ladder_problems((*where, "ladder"), phase, restart.ladder, full)


def unusable_rungs(phase: Phase, layouts: Layouts) -> Iterator[tuple[Location, str]]:
    """Yields the entries of the config's `ladder` that the program cannot run on, with the
    reason."""
    for index, count in enumerate(phase.init.autorestart.ladder or ()):
        layout = layouts.get(count)
        if isinstance(layout, str):
            yield ("init", "autorestart", "ladder", index), f"{count} devices: {layout}"


# --- what the platform offers ---------------------------------------------------------------------


_NOT_IN_LADDER = "not in autorestart.ladder"
_WHOLE_SLICES = "only whole slices can be used"


def _usable_topologies(phase: Phase) -> Mapping[int, str | None]:
    """Returns the topology (None: there is none) by number of devices, the largest first.

    These are all numbers that the workers can use. Empty if the number of devices is not known.
    """
    offered, workers = _platform_topologies(phase.init.devices), phase.init.num_workers
    each = max(offered, default=0) // workers
    if workers == 1 or each == 0:
        return offered
    return {
        count: topology
        for count, topology in offered.items()
        if count % each == 0 and _can_be_used(phase.init, count, each)
    }


def _can_be_used(init: Init, count: int, each: int) -> bool:
    """Whether several workers can use `count` devices, `each` of them as many."""
    devices = init.devices
    if devices is None or devices.platform != "tpu":
        return True
    if init.hosts is not None:  # a worker has a host of its own, and a slice comes as a whole
        return count % (_chips_of_a_slice(devices) or count) == 0
    return arrangement(_generation(devices), count, each) is not None


def _chips_of_a_slice(devices: Devices) -> int | None:
    return parse_slice(devices.type).chips if devices.type is not None else devices.num_devices


def _generation(devices: Devices) -> str | None:
    return parse_slice(devices.type).generation if devices.type is not None else None


def _platform_topologies(devices: Devices | None) -> Mapping[int, str | None]:
    """Returns what `_usable_topologies` returns, but for one worker: only the platform decides."""
    if devices is None or devices.num_devices is None:
        return {}
    if devices.type is None:
        return dict.fromkeys(_counts_without_type(devices.platform, devices.num_devices))
    one = parse_slice(devices.type)
    if devices.slices is None:
        return one.sizes()
    numbers = range(devices.slices, 0, -1)
    return {number * one.chips: f"{number} x {one.topology or devices.type}" for number in numbers}


def _counts_without_type(platform: str, full: int) -> Sequence[int]:
    if platform != "tpu":
        return range(full, 0, -1)
    parts = _PARTS_OF_A_TPU_HOST if full <= _PARTS_OF_A_TPU_HOST[0] else ()
    return [full, *(count for count in parts if count < full)]


def _no_size(phase: Phase, count: int) -> str:
    """Returns why `count`, which is below the full number, is none of the `_usable_topologies`."""
    devices, workers = phase.init.devices, phase.init.num_workers
    assert devices is not None
    if phase.init.hosts is not None and devices.platform == "tpu":
        return _WHOLE_SLICES
    if count in _platform_topologies(devices) and workers > 1:
        each = (devices.num_devices or 0) // workers
        if count % each:
            return f"each of the {workers} workers needs all of its {each} devices"
        return f"{count // each} workers cannot share them: {why_not_shared(_generation(devices))}"
    if devices.slices is not None:
        return _WHOLE_SLICES
    if devices.type is None:
        return (
            "no TPU host has parts of this size (init.devices.type allows all sizes of that type)"
        )
    return f"a {devices.type} cannot be used in this size"


def _least(phase: Phase) -> int:
    restart, devices = phase.init.autorestart, phase.init.devices
    if devices is None or devices.type is None:
        return restart.min_num_devices
    chips = parse_slice(devices.type).chips
    return max(restart.min_num_devices, (restart.min_num_slices or 0) * chips)


# --- what the config says -------------------------------------------------------------------------


def _ladder_problems(
    where: Location, phase: Phase, ladder: Sequence[int], full: int | None
) -> Iterator[tuple[Location, str]]:
    sizes, least = _usable_topologies(phase), _least(phase)
    if full is None:
        yield where, f"needs init.devices with a count or a type (value {shown(ladder)})"
        return
    if list(ladder) != sorted(set(ladder), reverse=True):
        yield where, f"is not in descending order (value {shown(ladder)})"
    if ladder[0] != full:
        yield (*where, 0), f"is {ladder[0]}, but the job has {full} devices: {full} comes first"
    for index, count in enumerate(ladder):
        if count not in sizes and count < full:
            there = ", ".join(map(str, sizes))
            message = f"is {count}: {_no_size(phase, count)}; there is {there}"
            yield (*where, index), message
        elif count < least:
            message = f"is {count}, below the minimum of {least}: take it out, or lower the minimum"
            yield (*where, index), message


# --- what a command can do ------------------------------------------------------------------------


def _is_elastic(command: Command) -> bool:
    """True if the config shows that the command can use any number of devices: by `elastic`, or
    by a placeholder for the number or for the share of a device."""
    texts = (*command.argv, *command.env.values())
    named = {name for text in texts for name in placeholders.names(text)}
    return command.elastic or not named.isdisjoint(_DEVICE_TEMPLATES)


def _share(batch: int | None, num_devices: int) -> Mapping[str, Any] | str:
    if batch is None:
        return {}
    share, rest = divmod(batch, num_devices)
    if rest:
        return f"command.global_batch {batch} does not divide among them"
    return {"per_device_batch": share}
