"""Names the processes that have an accelerator open, for people: pid, user and command line."""

from __future__ import annotations

from collections.abc import Callable

from supervisor.adapters.accelerators import Holder
from supervisor.adapters.process_facts import command


def told(holder: Holder, redact: Callable[[str], str]) -> str:
    """One line; `redact` takes the secrets out of the command line."""
    name = command(holder.pid, redact) or "ended meanwhile"
    return f"pid {holder.pid} of uid {holder.uid} ({name}) has {', '.join(holder.devices)} open"
