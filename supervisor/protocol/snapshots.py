"""The memory for a worker's snapshots: made and owned by the supervisor, so that it outlives the
worker and dies with the supervisor.

What is in it is the worker's business alone. The supervisor only empties it: nothing in it means
that there is nothing to resume from.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from supervisor.protocol import environment


def to_environment(descriptor: int) -> dict[str, str]:
    """What a worker that inherits the memory needs in its environment to find it."""
    return {
        environment.SNAPSHOT_FD: str(descriptor),
        environment.SNAPSHOT_MEMORY: environment.identity(descriptor),
    }


def snapshot_memory(environ: Mapping[str, str] = os.environ) -> int | None:
    """The descriptor of this worker's memory for snapshots; None where it has none.

    Ask late: a process that waits to become a worker gets memory and environment only then. What
    this process starts does not inherit the memory.
    """
    memory = environment.SNAPSHOT_MEMORY
    descriptor = environment.inherited(environ, environment.SNAPSHOT_FD, memory)
    if descriptor is not None:
        os.set_inheritable(descriptor, False)
    return descriptor
