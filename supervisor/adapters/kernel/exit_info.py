"""Asks the kernel how a process has ended that is no child of ours (Linux 6.15 and later)."""

from __future__ import annotations

import fcntl
import os
import struct

from supervisor.host import tree

_GET_INFO = 0xC040FF0B
"""`PIDFD_GET_INFO`, for a `struct pidfd_info` of 64 bytes."""
_EXIT = 1 << 3
"""`PIDFD_INFO_EXIT`: in the mask of `pidfd_info`, its exit code is asked for, or is there."""
_SIZE, _CODE_AT = 64, 60


class ExitInfo:
    """Tells the exit code of one process, also after somebody else has reaped it."""

    def __init__(self, pidfd: int) -> None:
        """It owns `pidfd` from now on."""
        self._pidfd = pidfd

    def code(self) -> int | None:
        """Returns the exit code, or minus the signal that ended the process; None: it has not
        ended or was not reaped, or the kernel is too old."""
        info = bytearray(_SIZE)
        struct.pack_into("Q", info, 0, _EXIT)
        try:
            fcntl.ioctl(self._pidfd, _GET_INFO, info)
        except OSError:
            return None
        if not struct.unpack_from("Q", info)[0] & _EXIT:
            return None
        return os.waitstatus_to_exitcode(struct.unpack_from("i", info, _CODE_AT)[0])

    def close(self) -> None:
        """Forget the process."""
        os.close(self._pidfd)


def exit_info(pid: int, seen: tree.Stat) -> ExitInfo | None:
    """Returns what will tell how the process ends that was `seen`; None: it is gone, or no
    descriptor is free."""
    try:
        info = ExitInfo(os.pidfd_open(pid))
    except OSError:
        return None
    now = tree.stat(pid)
    if now is not None and now.started == seen.started:
        return info
    info.close()
    return None
