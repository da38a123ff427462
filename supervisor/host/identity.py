"""Identifies a process beyond its pid: enough to tell later, never wrongly, that it is dead."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeGuard

_MAX_WORD = 255


@dataclass(frozen=True, slots=True)
class Identity:
    """A process among those of all hosts. The start time tells it from a later one of its pid."""

    host: str
    boot: str
    """The kernel's boot id. The host's name would not do: several hosts may share one."""
    namespace: str
    """The pid namespace: in another container the same pid means another process."""
    pid: int
    started: int
    """Start time, in clock ticks since boot."""

    @classmethod
    def of_this_process(cls) -> Identity:
        """Return the identity of this process."""
        pid = os.getpid()
        started = _started(pid)
        assert started is not None
        return cls(os.uname().nodename, _boot(), _namespace(), pid, started)

    @classmethod
    def from_json(cls, told: object) -> Identity:
        """Parse what `to_json` made. `told` is not trusted: anybody may have written it.

        Raises:
            ValueError: it is no identity.
        """
        if not isinstance(told, dict):
            raise ValueError("not an object")
        words = [told.get(name) for name in ("host", "boot", "namespace")]
        numbers = [told.get(name) for name in ("pid", "started")]
        host, boot, namespace = (word for word in words if _is_word(word))
        pid, started = (number for number in numbers if type(number) is int and number > 0)
        return cls(host, boot, namespace, pid, started)

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return asdict(self)

    @property
    def is_dead(self) -> bool:
        """Whether it is certainly dead. Always False for a process of another host or container."""
        return self.is_seen_from_here and _started(self.pid) != self.started

    @property
    def state(self) -> str:
        """The state of the process in one letter, as in `ps` (proc(5)); empty: it is dead, or
        cannot be seen from here."""
        fields = _stat(self.pid) if self.is_seen_from_here else None
        return fields[0] if fields is not None and int(fields[19]) == self.started else ""

    @property
    def is_seen_from_here(self) -> bool:
        """Whether its host and container are ours, so that its pid means the same here."""
        return (self.boot, self.namespace) == (_boot(), _namespace())

    def __str__(self) -> str:
        return f"supervisor {self.pid} on {self.host}"


def _is_word(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and value.isprintable() and len(value) <= _MAX_WORD


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _namespace() -> str:
    return str(Path("/proc/self/ns/pid").readlink())


def _started(pid: int) -> int | None:
    """Return the start time in clock ticks since boot; None: no process, or only a zombie."""
    fields = _stat(pid)
    return int(fields[19]) if fields is not None else None


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the state on; None: no process, or only a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # its name may hold anything
    return None if fields[0] in "ZX" else fields
