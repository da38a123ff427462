"""Finds the processes of this host that have an accelerator open.

While a process has a TPU chip open, no other process can use it: the kernel opens the chip's VFIO
group or device for one process at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TPU = re.compile(r"/dev/(?:vfio/\d+|vfio/devices/vfio\d+|accel\d+|accel/accel\d+)")
"""Device files of TPU chips: VFIO groups, VFIO devices with iommufd (Linux,
Documentation/driver-api/vfio.rst), and those of the older driver. /dev/vfio/vfio and /dev/iommu are
not chips: a process that only looks for chips opens them too."""
NVIDIA = re.compile(r"/dev/nvidia\d+")


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that has accelerators open."""

    pid: int
    uid: int
    devices: tuple[str, ...]


def chips(folder: Path = Path("/dev")) -> list[str]:
    """Returns the paths of the device files of the TPU chips on this host; `folder` is `/dev`."""
    names = (str(path) for pattern in ("accel*", "*/*", "*/*/*") for path in folder.glob(pattern))
    return sorted(name for name in names if TPU.fullmatch(f"/dev{name.removeprefix(str(folder))}"))


def holders(
    *devices: re.Pattern[str], exclude: frozenset[int] = frozenset(), proc: Path = Path("/proc")
) -> Iterator[Holder]:
    """Yields the processes that have one of `devices` open, by pid, without the pids in `exclude`.

    `devices` are patterns of device files; none given: all accelerators.

    Some processes are not seen: those of other users, unless we are root; and those outside our pid
    namespace. A process that is being killed may still be closing its files although it is not seen
    here: it is gone only when its pidfd says so.
    """
    for process in sorted(proc.glob("[0-9]*"), key=lambda path: int(path.name)):
        if int(process.name) in exclude:
            continue
        opened = tuple(sorted(set(_devices(process, devices or (TPU, NVIDIA)))))
        uid = _user(process) if opened else None
        if uid is not None:
            yield Holder(int(process.name), uid, opened)


def _devices(process: Path, wanted: tuple[re.Pattern[str], ...]) -> Iterator[str]:
    try:
        descriptors = list((process / "fd").iterdir())
    except OSError:  # it has ended, or is another user's
        return
    for descriptor in descriptors:
        try:
            target = str(descriptor.readlink())
        except OSError:
            continue
        if any(pattern.fullmatch(target) for pattern in wanted):
            yield target


def _user(process: Path) -> int | None:
    """Returns the real user id of a process; None: it has ended. (The owner of its folder may be
    another user.)"""
    try:
        lines = (process / "status").read_text(errors="replace").splitlines()
    except OSError:
        return None
    uids = next((line.split()[1:] for line in lines if line.startswith("Uid:")), [])
    return int(uids[0]) if uids else None
