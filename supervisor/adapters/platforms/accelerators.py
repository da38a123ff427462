"""Which processes of this host have an accelerator open.

Nobody else can use a TPU chip meanwhile: the kernel opens its VFIO group or device for one process
at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TPU = re.compile(r"/dev/(?:vfio/\d+|vfio/devices/vfio\d+|accel\d+|accel/accel\d+)")
"""Device files of TPU chips: VFIO's groups, VFIO's devices with iommufd (Linux,
Documentation/driver-api/vfio.rst), and those of the older driver. /dev/vfio/vfio and /dev/iommu are
no chips: whoever looks for chips opens them too."""
NVIDIA = re.compile(r"/dev/nvidia\d+")


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that has accelerators open."""

    pid: int
    uid: int
    devices: tuple[str, ...]


def chips(folder: Path = Path("/dev")) -> list[str]:
    """The device files of TPU chips on this host."""
    names = (str(path) for pattern in ("accel*", "*/*", "*/*/*") for path in folder.glob(pattern))
    return sorted(name for name in names if TPU.fullmatch(f"/dev{name.removeprefix(str(folder))}"))


def holders(
    *devices: re.Pattern[str], but: frozenset[int] = frozenset(), proc: Path = Path("/proc")
) -> Iterator[Holder]:
    """The processes, less the pids in `but`, that have one of `devices` open (none given: any
    accelerator), in order of their pids.

    Not seen are those that we may not look into: other users' for all but root, and those of a pid
    namespace that is not ours. A process that is being killed closes its files without being seen
    here either: it is gone when its pidfd says so.
    """
    for process in sorted(proc.glob("[0-9]*"), key=lambda path: int(path.name)):
        if int(process.name) in but:
            continue
        opened = tuple(sorted(set(_devices(process, devices or (TPU, NVIDIA)))))
        uid = _user(process) if opened else None
        if uid is not None:
            yield Holder(int(process.name), uid, opened)


def _devices(process: Path, wanted: tuple[re.Pattern[str], ...]) -> Iterator[str]:
    try:
        descriptors = list((process / "fd").iterdir())
    except OSError:  # it is gone, or another user's
        return
    for descriptor in descriptors:
        try:
            target = str(descriptor.readlink())
        except OSError:
            continue
        if any(pattern.fullmatch(target) for pattern in wanted):
            yield target


def _user(process: Path) -> int | None:
    """The real user of a process, whoever owns its folder; None where it has ended."""
    try:
        lines = (process / "status").read_text(errors="replace").splitlines()
    except OSError:
        return None
    uids = next((line.split()[1:] for line in lines if line.startswith("Uid:")), [])
    return int(uids[0]) if uids else None
