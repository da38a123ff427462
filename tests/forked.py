"""Runs `supervise` in processes that need no imports of their own.

The imports take half a second of each start, and the tests start `supervise` a thousand times. So
one process imports everything and forks once for each command. A test about the start itself, or
about a process that must be our own child, starts `python -m supervisor` instead.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

_PATIENCE = 300.0
_MOST = 1 << 17
"""Most bytes of a request."""


def forked(
    *argv: str | Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    given: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run `supervise` with these arguments until it ends; `given` is its standard input."""
    command = ["supervise", *map(str, argv)]
    request = {
        "argv": command,
        "env": dict(os.environ if env is None else env),
        "cwd": str(cwd or Path.cwd()),
    }
    with (
        tempfile.TemporaryFile() as stdin,
        tempfile.TemporaryFile() as stdout,
        tempfile.TemporaryFile() as stderr,
    ):
        files = (stdin, stdout, stderr)
        stdin.write(given.encode())
        stdin.seek(0)
        line = _forker()
        socket.send_fds(line, [json.dumps(request).encode()], [file.fileno() for file in files])
        code = int(line.recv(_MOST))
        for file in (stdout, stderr):
            file.seek(0)
        out, err = (file.read().decode(errors="replace") for file in (stdout, stderr))
    return subprocess.CompletedProcess(command, code, out, err)


@cache
def _forker() -> socket.socket:
    """Return the socket to the process that forks; that process ends when the socket is closed."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.forked", str(its.fileno())],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[its.fileno()],
        )
    ours.settimeout(_PATIENCE)
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours


def _become(request: dict[str, Any], files: list[int]) -> None:
    """Make this process what the request asks for, as `exec` would."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = request["argv"]


def _serve(line: socket.socket) -> bool:
    """Fork once for each request, one after the other. Returns True in a forked process, False in
    the forking one when the socket is closed."""
    while True:
        request, files, _, _ = socket.recv_fds(line, _MOST, 3)
        if not request:
            return False
        if (pid := os.fork()) == 0:
            line.close()
            _become(json.loads(request), files)
            return True
        for file in files:
            os.close(file)
        _, status = os.waitpid(pid, 0)
        line.send(b"%d" % os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    from supervisor.__main__ import main
    from supervisor.cli.main import load

    load([])  # this takes the time
    gc.freeze()
    if _serve(socket.socket(fileno=int(sys.argv[1]))):
        sys.exit(main())
