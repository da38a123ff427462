"""Who a process is, beyond its pid: enough to say later that it is dead, and never wrongly."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeGuard

_MAX_WORD = 255


@dataclass(frozen=True, slots=True)
class Identity:
    """A process among all processes of all hosts. Pids are told apart by their start."""

    host: str
    boot: str
    """The kernel's id of this boot: host names may be the same everywhere."""
    namespace: str
    """The pid namespace: in another container the same pid is another process."""
    pid: int
    started: int
    """In clock ticks since boot."""

    @classmethod
    def of_this_process(cls) -> Identity:
        """Who we are."""
        pid = os.getpid()
        started = _started(pid)
        assert started is not None
        return cls(os.uname().nodename, _boot(), _namespace(), pid, started)

    @classmethod
    def from_json(cls, told: object) -> Identity:
        """The inverse of `to_json`. Anybody may have written what is `told`.

        Raises:
            ValueError: it is none.
        """
        if not isinstance(told, dict):
            raise ValueError("not an object")
        words = [told.get(name) for name in ("host", "boot", "namespace")]
        numbers = [told.get(name) for name in ("pid", "started")]
        host, boot, namespace = (word for word in words if _is_word(word))
        pid, started = (number for number in numbers if type(number) is int and number > 0)
        return cls(host, boot, namespace, pid, started)

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @property
    def is_dead(self) -> bool:
        """Whether we can see that it is dead. Of another host's process we can see nothing."""
        return self.is_seen_from_here and _started(self.pid) != self.started

    @property
    def is_seen_from_here(self) -> bool:
        """Whether its pid means the same here: its host and its container are ours."""
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
    """When the process started; None where there is none, or only its zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # its name may hold anything
    return None if fields[0] in "ZX" else int(fields[19])
