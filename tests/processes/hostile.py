"""A trainer that hides: hostile.py MODEL_DIR HOW WHERE [NAME=TEXT...].

HOW: `overwrite` its environment's memory, as setproctitle does, or `clear` it, as `env -i` does.
WHERE: in the worker's own session (`same`), or without a parent in a session of its own (`new`).
It says `PID hides`. It notes in `MODEL_DIR/../diary` when it finds another trainer alive.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import sys
from pathlib import Path


def overwrite() -> None:
    """Have nothing in /proc/PID/environ any more."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[47]), int(fields[48])
    ctypes.memset(begin, 0, end - begin)


def main(model_dir: Path, how: str, where: str) -> None:
    if where == "new":
        if os.fork():
            signal.pause()
        os.setsid()
        if os.fork():
            os._exit(0)
    if how == "clear":
        argv = [sys.executable, "-S", __file__, str(model_dir), "cleared", "same"]
        os.execve(sys.executable, argv, {})
    if how == "overwrite":
        overwrite()
    diary = os.open(model_dir.parent / "diary", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        fcntl.flock(diary, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.write(diary, b"OVERLAP\n")
    assert b"SUPERVISE" not in Path("/proc/self/environ").read_bytes()
    os.write(1, b"%d hides\n" % os.getpid())
    signal.pause()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:4])
