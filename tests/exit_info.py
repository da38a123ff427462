"""What the kernel here tells of processes that have ended."""

from __future__ import annotations

import os

KERNEL_TELLS_EXITS = tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 15)
"""Whether it tells how a process has ended that somebody else has reaped."""
