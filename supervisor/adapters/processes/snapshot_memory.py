"""Memory for a worker's snapshots: anonymous, without a name in any file system.

Only descriptors keep it alive, and only the supervisor and its workers have any: it cannot outlive
them. The supervisor neither maps nor reads it, so its own memory does not grow.
"""

from __future__ import annotations

import os

from supervisor.protocol.environment import snapshot_variables

_BLOCK = 512
"""Bytes: the unit of `st_blocks`, whatever the file system's own is."""


class SnapshotMemory:
    """The memory of one rank in one phase; it begins empty and grows as the worker writes."""

    def __init__(self) -> None:
        """Make it.

        Raises:
            OSError: there is no room for another descriptor, or the system has no such memory.
        """
        self.descriptor = os.memfd_create("snapshots", os.MFD_CLOEXEC)

    def to_environment(self) -> dict[str, str]:
        """What the worker needs in its environment to find it."""
        return snapshot_variables(self.descriptor)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever written, or all of it was given up."""
        return os.fstat(self.descriptor).st_size == 0

    @property
    def size(self) -> int:
        """Bytes of this host's memory that it takes."""
        return os.fstat(self.descriptor).st_blocks * _BLOCK

    def empty(self) -> None:
        """Give up what is in it, and the memory itself. Nobody may be using it."""
        os.ftruncate(self.descriptor, 0)

    def close(self) -> None:
        """Give it up for good."""
        os.close(self.descriptor)
