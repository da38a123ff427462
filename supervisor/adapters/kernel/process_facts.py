"""What the kernel tells of a process that outlives its parent: its name, pipes and handlers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import StrEnum
from itertools import islice
from pathlib import Path
from signal import SIGINT, SIGQUIT, SIGTERM

from supervisor.core.pipes import HeldPipes
from supervisor.host import tree
from supervisor.host.aside import aside
from supervisor.protocol.messages import printable
from supervisor.protocol.reading import read

_MAX_COMMAND = 120
_MAX_BYTES = 1 << 16
_MAX_THREADS = 1000
_ENDED, _STOPPED = ("Z", "X"), ("T", "t")
_SIGWAIT = "do_sigtimedwait"
"""What the kernel calls the place where a thread in `sigwait` sleeps."""
_READS, _WRITES = (0,), (1, 2)
_SHELLS = frozenset({"ash", "bash", "dash", "ksh", "ksh93", "mksh", "sh", "yash", "zsh"})


class Reaction(StrEnum):
    """What SIGTERM does to a process."""

    HANDLED = "handles SIGTERM, so it can save and exit"
    DEFAULT = "has no handler for SIGTERM, so it ends at once and cannot save"
    IGNORED = "ignores SIGTERM, so it runs until SIGKILL"
    BLOCKED = (
        "blocks SIGTERM, so it can save and exit if it waits for it (sigwait, signalfd), and runs "
        "until SIGKILL if it does not"
    )
    STOPPED = "is stopped (SIGSTOP), so it gets SIGTERM only when it is continued (SIGCONT)"
    UNKNOWN = "has ended"

    @property
    def may_save(self) -> bool:
        """Whether the process may do something on SIGTERM."""
        return self in (Reaction.HANDLED, Reaction.BLOCKED)


def reaction(pid: int) -> Reaction:
    """What SIGTERM would do to the process now."""
    try:
        facts = _status(Path(f"/proc/{pid}"))
        if facts["State"].startswith(_ENDED):
            return Reaction.UNKNOWN
        if facts["State"].startswith(_STOPPED):
            return Reaction.STOPPED
        if _holds(facts["SigCgt"]):
            return Reaction.HANDLED
        if _holds(facts["SigIgn"]):
            return Reaction.IGNORED
        return Reaction.BLOCKED if _is_kept_from(pid) else Reaction.DEFAULT
    except OSError:
        return Reaction.UNKNOWN


def handles(pid: int, number: int) -> bool:
    """Whether the process has a handler for the signal `number` now."""
    try:
        return _holds(_status(Path(f"/proc/{pid}"))["SigCgt"], number)
    except OSError:
        return False


def _status(place: Path) -> dict[str, str]:
    lines = (place / "status").read_text(errors="replace").splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def _holds(mask: str, number: int = SIGTERM) -> bool:
    return bool(int(mask, 16) & 1 << (number - 1))


def _is_kept_from(pid: int) -> bool:
    """Whether every thread blocks SIGTERM, or one waits for it: the kernel shows it as not blocked
    in that one."""
    blocked = []
    for thread in islice(Path(f"/proc/{pid}/task").iterdir(), _MAX_THREADS):
        with suppress(OSError):  # it has ended
            if (thread / "wchan").read_text(errors="replace").startswith(_SIGWAIT):
                return True
            blocked.append(_holds(_status(thread)["SigBlk"]))
    return bool(blocked) and all(blocked)


def command(pid: int, redact: Callable[[str], str]) -> str:
    """The command line of a process without its secrets, or its short name where only that can be
    had.

    The kernel reads the command line from the memory of the process, which may take for ever where
    that waits for a disk; the short name is always there.
    """
    place = Path(f"/proc/{pid}")
    name = ""
    with suppress(OSError):
        data = aside("/proc").ask(lambda: read(place / "cmdline", _MAX_BYTES))
        name = data.replace(b"\0", b" ").decode(errors="replace").strip()
    with suppress(OSError):
        name = name or (place / "comm").read_text(errors="replace").strip()
    name = redact(name)  # before it is cut: half a secret is not known as one
    return printable(name if len(name) <= _MAX_COMMAND else f"{name[:_MAX_COMMAND]}...")


def foreground_children(pid: int) -> list[tuple[int, tree.Stat]]:
    """Returns the foreground children of `pid`, where it is a shell that handles SIGTERM: it runs
    its trap only when they have ended, so they cannot have been passed SIGTERM. A shell that waits
    for a background job by `wait` runs its trap at once, and may pass SIGTERM on itself.

    Without job control, which scripts do not have, a shell starts its background jobs with SIGINT
    and SIGQUIT ignored (POSIX 2.11). With job control, each job has a process group of its own.
    """
    if not (_is_shell(pid) and reaction(pid) is Reaction.HANDLED):
        return []
    found = []
    for child in tree.children(pid):
        seen = tree.stat(child)
        if seen is not None and seen.state not in tree.GONE and _is_in_foreground(child, pid):
            found.append((child, seen))
    return found


def _is_shell(pid: int) -> bool:
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")) in _SHELLS  # noqa: PTH115, PTH119
    except OSError:  # it has ended, or is another user's
        return False


def _is_in_foreground(child: int, shell: int) -> bool:
    number = SIGINT if _is_shell(child) else SIGQUIT  # bash always ignores SIGQUIT
    try:
        ignored = _holds(_status(Path(f"/proc/{child}"))["SigIgn"], number)
        return os.getpgid(child) == os.getpgid(shell) and not ignored
    except OSError:  # it has ended
        return False


def pipes(pid: int) -> HeldPipes:
    """Those of a process; none where it has ended."""
    return HeldPipes(_pipes(pid, _READS), _pipes(pid, _WRITES))


def _pipes(pid: int, descriptors: Iterable[int]) -> frozenset[str]:
    found = set()
    for descriptor in descriptors:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{descriptor}")  # noqa: PTH115 (it is no path)
        except OSError:
            continue
        if target.startswith("pipe:"):
            found.add(target)
    return frozenset(found)
