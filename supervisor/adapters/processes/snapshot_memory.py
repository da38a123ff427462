"""Memory for a worker's snapshots: an anonymous file in memory, without a name in any file system.

Only descriptors keep this memory alive, and only the supervisor and its workers have any. So it
cannot outlive them. The supervisor neither maps nor reads it, so the supervisor's own memory does
not grow.
"""

from __future__ import annotations

import os

from supervisor.protocol.environment import snapshot_variables

_BLOCK = 512
"""Bytes: the unit of `st_blocks`, whatever the block size of the file system."""


class SnapshotMemory:
    """Memory for the snapshots of one rank in one phase. It grows as the worker writes."""

    def __init__(self) -> None:
        """Create the memory.

        Raises:
            OSError: no descriptor is free, or the system has no such memory.
        """
        self.descriptor = os.memfd_create("snapshots", os.MFD_CLOEXEC)

    def to_environment(self) -> dict[str, str]:
        """Returns the environment variables by which the worker finds this memory."""
        return snapshot_variables(self.descriptor)

    @property
    def is_empty(self) -> bool:
        """True if nothing was written since the memory was created or emptied."""
        return os.fstat(self.descriptor).st_size == 0

    @property
    def size(self) -> int:
        """Bytes of this host's memory that are in use for it."""
        return os.fstat(self.descriptor).st_blocks * _BLOCK

    def empty(self) -> None:
        """Delete the content and give the memory back to the host. No process may be using it."""
        os.ftruncate(self.descriptor, 0)

    def close(self) -> None:
        """Close our descriptor."""
        os.close(self.descriptor)
