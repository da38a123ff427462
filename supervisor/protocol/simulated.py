"""Simulated devices that break: for tests and fault injection on machines without accelerators.

Simulated devices (and hosts) cannot be unplugged. So a file of the job lists those that are lost,
compute wrong results (with an error, or in silence) or are stuck. A test, an injected fault or a
person changes it while the job runs, and probe and worker then behave as with real broken devices.
No file: all are healthy.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path

from supervisor.protocol import environment, reading

FILE = "simulated_devices.json"
"""The file's name in model_dir. Content: `{"lost": ["3"], "wrong": ["5"], "stuck": ["6"]}`."""

_MAX_SIZE = 1 << 20

HOST = "host"
"""Prefix of the ids of hosts."""


@dataclass(frozen=True, slots=True)
class Broken:
    """The units that are broken, by their ids: devices `0`, `1`, ..., or hosts `host0`, ..."""

    lost: frozenset[str] = frozenset()
    wrong: frozenset[str] = frozenset()
    """Units that compute wrong results."""
    stuck: frozenset[str] = frozenset()
    """Units that block the backend: a process that was given one of them cannot initialise any of
    its devices, as on a TPU host where one chip is busy or broken."""
    flipping: frozenset[str] = frozenset()
    """Devices that flip a bit in each number that they compute for a gradient, without an error:
    only a check for silent corruption finds it."""


def read(file: Path) -> Broken:
    """Read which units are broken now.

    Raises:
        ValueError: the file is malformed.
        OSError: it cannot be read.
    """
    try:
        content = reading.read(file, _MAX_SIZE)
    except FileNotFoundError:
        return Broken()
    return _parsed(file, content)


def mark_lost(file: Path, *units: str) -> None:
    """Make these units lost from now on."""
    _change(file, lambda now: replace(now, lost=now.lost.union(units)))


def mark_wrong(file: Path, *units: str) -> None:
    """Make these units compute wrong results from now on."""
    _change(file, lambda now: replace(now, wrong=now.wrong.union(units)))


def mark_stuck(file: Path, *units: str) -> None:
    """Make these units stuck from now on."""
    _change(file, lambda now: replace(now, stuck=now.stuck.union(units)))


def mark_flipping(file: Path, *units: str) -> None:
    """Make these devices compute wrong gradients from now on, in silence."""
    _change(file, lambda now: replace(now, flipping=now.flipping.union(units)))


def mark_healthy(file: Path, *units: str) -> None:
    """Make these units healthy again."""
    _change(file, lambda now: Broken(*(kind.difference(units) for kind in astuple(now))))


def to_environment(file: Path, units: tuple[str, ...]) -> dict[str, str]:
    """Return the environment variable for a worker on `units`."""
    return {environment.SIMULATED_DEVICES: json.dumps({"file": str(file), "units": list(units)})}


class HeldDevices:
    """The simulated units that this worker runs on."""

    def __init__(self, file: Path, units: Sequence[str]) -> None:
        self.file = file
        self._devices = tuple(unit for unit in units if not unit.startswith(HOST))
        self._units = frozenset(units)
        self.flipping: tuple[int, ...] = ()
        """The devices that flip bits, by their places among those of this process, as of the last
        `fail_if_broken`."""
        self.is_one_flipping = False
        """Whether any device of the job flips bits, also of another process."""
        self._seen: tuple[int, int, int] | None = None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> HeldDevices | None:
        """Return the units that the supervisor gave this worker; None: its devices are real."""
        given = environ.get(environment.SIMULATED_DEVICES)
        if given is None:
            return None
        told = json.loads(given)
        return cls(Path(told["file"]), told["units"])

    def initialise(self) -> None:
        """Fail as the initialisation of a backend would, if one of the units is stuck.

        Raises:
            RuntimeError: a unit is stuck; the text is that of jax and libtpu.
            ValueError, OSError: the file cannot be read.
        """
        fail_if_stuck(sorted(self._units & read(self.file).stuck))

    def fail_if_broken(self) -> None:
        """Fail as real hardware would, if a unit is broken.

        If a host is lost, this process ends at once. While the file is unchanged, this costs one
        stat.

        Raises:
            RuntimeError: a unit is broken; the text is that of real devices.
            ValueError, OSError: the file cannot be read.
        """
        stamp = _stamp(self.file)
        if stamp == self._seen:
            return
        self._seen = stamp
        broken = read(self.file)
        self.is_one_flipping = bool(broken.flipping)
        self.flipping = tuple(
            place for place, unit in enumerate(self._devices) if unit in broken.flipping
        )
        for unit in sorted(self._units & broken.lost, reverse=True):  # hosts first
            if unit.startswith(HOST):
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError(f"INTERNAL: core halted: simulated device {unit} is lost")
        for unit in sorted(self._units & broken.wrong):
            kind = "host" if unit.startswith(HOST) else "device"
            raise RuntimeError(f"INTERNAL: uncorrectable ECC error: simulated {kind} {unit}")


def fail_if_stuck(units: Sequence[str]) -> None:
    """Fail as the initialisation of a TPU does, if any of the simulated `units` is stuck.

    Raises:
        RuntimeError: `units`, the stuck ones, is not empty.
    """
    if units:
        raise RuntimeError(
            "Unable to initialize backend 'tpu': UNKNOWN: TPU initialization failed: "
            f"simulated device {units[0]} is stuck"
        )


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        status = file.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _parsed(file: Path, content: bytes) -> Broken:
    try:
        found = reading.parse_object(content or b"{}", file)  # empty: it is about to be written
        if not all(isinstance(unit, str) for units in found.values() for unit in list[str](units)):
            raise TypeError("ids are strings")
        return Broken(**{kind: frozenset(units) for kind, units in found.items()})
    except (ValueError, TypeError, AttributeError) as error:
        form = '{"lost": ["3"], "wrong": ["5"]}'
        raise ValueError(f"{file} is not of the form {form}: {error}") from None


def _change(file: Path, change: Callable[[Broken], Broken]) -> None:
    """Replace the file atomically, under a lock: one writer at a time."""
    with _locked(file):
        now = change(read(file))
        temporary = file.with_name(f".{file.name}.tmp")
        content = {kind: sorted(units) for kind, units in asdict(now).items() if units}
        temporary.write_text(json.dumps(content))
        temporary.replace(file)


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Hold the lock on the file that has this name now. While we waited for the lock, the file may
    have been replaced, so this is checked again."""
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_ino == file.stat().st_ino:
                yield
                return
        finally:
            os.close(descriptor)
