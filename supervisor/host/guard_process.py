"""Spawns the guard process (`supervisor/host/guard.py`).

It is a new, bare interpreter, not a fork: so it shares no copy-on-write memory, no descriptors and
no environment with us. All signals are blocked in it from the start and it has its own process
group, so no signal meant for us ends it. It stays in our session, which shows that it is not one of
the job's processes.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

import supervisor
from supervisor.host import guard

_PROGRAM = (
    "import sys; sys.path.append(sys.argv[3]); from supervisor.host.guard import main; main()"
)
_ROOT = str(Path(supervisor.__file__).parents[1])
_ENVIRONMENT = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
_SOCKET = 3


def guard_command(descriptor: int) -> list[str]:
    """Return the command line of a guard whose supervisor is this process and whose end of the
    socket is `descriptor`."""
    arguments = (str(descriptor), str(os.getpid()), _ROOT, guard.__file__)
    return [sys.executable, "-I", "-S", "-c", _PROGRAM, *arguments]


def spawn() -> tuple[int, socket.socket]:
    """Start a guard; returns its pid and our end of the socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        pid = os.posix_spawn(
            sys.executable,
            guard_command(_SOCKET),
            _ENVIRONMENT,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, theirs.fileno(), _SOCKET),
                *((os.POSIX_SPAWN_OPEN, n, os.devnull, os.O_RDWR, 0) for n in range(3)),
            ],
            setpgroup=0,
            setsigmask=signal.valid_signals(),
        )
    return pid, ours
