"""Who holds an accelerator of this host: what a person asks first when it is said to be busy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_DEVICE = re.compile(r"/dev/(?:vfio/\d+|accel\d+|accel/accel\d+|nvidia\d+)")


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that has an accelerator open."""

    pid: int
    name: str
    device: str

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.name}) holds {self.device}"


def holders(proc: Path = Path("/proc")) -> Iterator[Holder]:
    """The processes that hold accelerators, one line each; only those that we may look into."""
    for process in sorted(proc.glob("[0-9]*"), key=lambda path: int(path.name)):
        device = next(_devices(process), None)
        if device is not None:
            yield Holder(int(process.name), _name(process), device)


def _devices(process: Path) -> Iterator[str]:
    try:
        descriptors = sorted((process / "fd").iterdir())
    except OSError:  # it is gone, or another user's
        return
    for descriptor in descriptors:
        try:
            target = str(descriptor.readlink())
        except OSError:
            continue
        if _DEVICE.fullmatch(target):
            yield target


def _name(process: Path) -> str:
    try:
        return (process / "comm").read_text().strip()
    except OSError:
        return "gone by now"
