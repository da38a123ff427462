"""Tells people what keeps an accelerator busy: processes, and libtpu's lock file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

from supervisor.adapters.kernel.process_facts import command_line
from supervisor.adapters.platforms.accelerators import TPU, Holder, holders
from supervisor.adapters.platforms.tpu_lock import LOCK, UnusableLock, unusable_lock
from supervisor.host.notice import Notice

_MAX_TOLD = 10
"""The most processes that are named."""
_STALE = (
    "no process is seen that has it locked or has a chip open, so one that was killed has left it: "
    "remove it (sudo rm {path})"
)


def told(holder: Holder, redact: Callable[[str], str]) -> str:
    """Returns one line about a holder; `redact` removes secrets from its command line."""
    who = _process(holder.pid, redact)
    return f"{who} of uid {holder.uid} has {', '.join(holder.devices)} open"


def each_told(found: Iterable[Holder], redact: Callable[[str], str]) -> Iterator[str]:
    """Yields a line for each of the first holders, and one line that counts the rest."""
    rest = iter(found)
    for holder in islice(rest, _MAX_TOLD):
        yield told(holder, redact)
    more = sum(1 for _ in rest)
    if more:
        yield f"{more} more process{'es' * (more > 1)} with a device open"


def in_the_way(redact: Callable[[str], str], lock: Path = LOCK) -> Iterator[Notice]:
    """Yields a notice for each thing that may keep an accelerator busy."""
    for line in each_told(holders(), redact):
        yield Notice("device-in-use", f"the accelerator may still be busy: {line}", reason=line)
    yield from lock_in_the_way(redact, lock)


def lock_in_the_way(redact: Callable[[str], str], lock: Path = LOCK) -> Iterator[Notice]:
    """Yields a notice if libtpu cannot use its lock file; none if it can."""
    try:
        found = unusable_lock(lock)
    except OSError:  # /tmp cannot be read: this is not about the lock
        return
    if found is not None:
        text = _foreign(found, redact) if found.kind == "file" else _no_file(found)
        yield Notice("tpu-lock-unusable", text, place=str(found.path))


def _no_file(found: UnusableLock) -> str:
    is_link = found.kind.startswith("symbolic link")
    sudo = "" if found.uid == os.geteuid() else "sudo "
    aside = f"remove the link ({sudo}rm {found.path})"
    if not is_link:
        aside = f"move it away ({sudo}mv {found.path} {found.path}.moved)"
    return (
        f"{found.path} is a {found.kind} of uid {found.uid}, where libtpu needs a file that it can "
        f'lock; it may say that the TPU is "already in use": {aside}'
    )


def _foreign(found: UnusableLock, redact: Callable[[str], str]) -> str:
    what = (
        f"{found.path} belongs to uid {found.uid} (mode {found.mode:o}): libtpu cannot open it and "
        'says that the TPU is "already in use"'
    )
    if found.pids:
        locking = ", ".join(_process(pid, redact) for pid in found.pids[:_MAX_TOLD])
        locking += f" and {more} more" if (more := len(found.pids) - _MAX_TOLD) > 0 else ""
        return f"{what}; {locking} has it locked: wait for its end, or stop it"
    holding = list(each_told(holders(TPU), redact))
    return f"{what}; {'; '.join(holding) or _STALE.format(path=found.path)}"


def _process(pid: int, redact: Callable[[str], str]) -> str:
    return f"pid {pid} ({command_line(pid, redact) or 'ended meanwhile'})"
