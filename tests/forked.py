"""Starts `supervise` and our trainer in processes that need no imports of their own.

The imports take half a second of each start of `supervise`, and seconds of each start of the
trainer. The tests start the first a thousand times, and the second a hundred times. So for each of
the two, one process imports everything and forks once for each command. A test about the start
itself, about a process that must be our own child, or about what is read of the environment before
`main`, starts `python -m` instead.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, Literal

from supervisor.protocol.environment import STALE_TOPOLOGY, VISIBLE_DEVICES

Program = Literal["supervise", "trainer"]
PATIENCE = 300.0
_MOST = 1 << 17
"""Most bytes of a request."""
_READ_LATER = {*VISIBLE_DEVICES, *STALE_TOPOLOGY}
"""Variables of JAX that imports do not read, or whose values can be changed later."""


class Forked:
    """A process that was forked for a command: the parts of `subprocess.Popen` that tests use."""

    def __init__(
        self,
        program: Program,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        files: Sequence[IO[bytes]],
        pipes: Sequence[IO[bytes]] = (),
    ) -> None:
        """Start it with `files` as its standard input, output and error; `pipes` are our ends of
        the last two."""
        self.args = [program, *argv]
        self.stdout: IO[bytes] | None = pipes[0] if pipes else None
        self.stderr: IO[bytes] | None = pipes[1] if pipes else None
        self.returncode: int | None = None
        self._read = dict.fromkeys(pipes, b"")
        request = {"argv": self.args, "env": dict(env), "cwd": str(cwd)}
        self._told, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            descriptors = [theirs.fileno(), *(file.fileno() for file in files)]
            forker = _forker(program, _environment_of_imports(program, env))
            socket.send_fds(forker, [json.dumps(request).encode()], descriptors)
        self.pid = self._next_number()

    def _next_number(self) -> int:
        """Return what is told next: first the pid, then the exit code."""
        message = self._told.recv(32)
        assert message, f"the process that forks has ended, and {self.args} cannot be started"
        return int(message)

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait until the process ends; returns its exit code."""
        if self.returncode is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            self.returncode = self._next_number()
            self._told.close()
        return self.returncode

    def communicate(self, *, timeout: float = PATIENCE) -> tuple[bytes, bytes]:
        """Read both pipes until they end, and wait for the process; returns what was read."""
        end = time.monotonic() + timeout
        while unread := [pipe for pipe in self._read if not pipe.closed]:
            ready, _, _ = select.select(unread, [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise subprocess.TimeoutExpired(self.args, timeout)
            for pipe in ready:
                chunk = os.read(pipe.fileno(), 1 << 16)
                self._read[pipe] += chunk
                if not chunk:
                    pipe.close()
        self.wait(max(0.0, end - time.monotonic()))
        out, err = self._read.values()
        return out, err

    def send_signal(self, number: int) -> None:
        """Send the process a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send it SIGKILL."""
        self.send_signal(signal.SIGKILL)


def start_forked(
    *argv: str, env: Mapping[str, str], program: Program = "supervise", joined: bool = False
) -> Forked:
    """Start a program with these arguments; its output goes to pipes. Where `joined`, its standard
    error goes to its standard output."""
    out, its_out = os.pipe()
    err, its_err = os.pipe()
    pipes = os.fdopen(out, "rb"), os.fdopen(err, "rb")
    with (
        Path(os.devnull).open("rb") as nothing,
        os.fdopen(its_out, "wb") as stdout,
        os.fdopen(its_err, "wb") as stderr,
    ):
        files = (nothing, stdout, stdout if joined else stderr)
        return Forked(program, argv, env, Path.cwd(), files, pipes)


def forked(
    *argv: str | Path,
    program: Program = "supervise",
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    given: str = "",
    joined: bool = False,
    patience: float = PATIENCE,
) -> subprocess.CompletedProcess[str]:
    """Run a program with these arguments until it ends. `given` is its standard input; where
    `joined`, its standard error goes to its standard output. It may take `patience` seconds."""
    with (
        tempfile.TemporaryFile() as stdin,
        tempfile.TemporaryFile() as stdout,
        tempfile.TemporaryFile() as stderr,
    ):
        stdin.write(given.encode())
        stdin.seek(0)
        process = Forked(
            program,
            [*map(str, argv)],
            os.environ if env is None else env,
            cwd or Path.cwd(),
            (stdin, stdout, stdout if joined else stderr),
        )
        code = process.wait(patience)
        for file in (stdout, stderr):
            file.seek(0)
        out, err = (file.read().decode(errors="replace") for file in (stdout, stderr))
    return subprocess.CompletedProcess(process.args, code, out, err)


Environment = tuple[tuple[str, str], ...]


def _is_read_by_imports(name: str) -> bool:
    """Whether the trainer's imports may read the variable, and nothing reads it again."""
    return name.startswith(("JAX_", "XLA_", "TF_")) and name not in _READ_LATER


def _environment_of_imports(program: Program, env: Mapping[str, str]) -> Environment:
    """Return the variables that the imports of `program` may read; those of `supervise` read
    none."""
    read = ((name, text) for name, text in env.items() if _is_read_by_imports(name))
    return tuple(sorted(read)) if program == "trainer" else ()


@cache
def _forker(program: Program, of_imports: Environment) -> socket.socket:
    """Return the socket to the process that has made these imports, and forks. It ends when the
    socket is closed."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    others = {name: os.environ[name] for name in os.environ if not _is_read_by_imports(name)}
    with its:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.forked", program, str(its.fileno())],
            cwd=Path(__file__).parents[1],
            env=others | dict(of_imports),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[its.fileno()],
        )
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours


# --- the process that forks ----------------------------------------------------------------------


def _supervise() -> Callable[[], int]:
    """Import `supervise`, and build what it builds at its first use; returns its `main`."""
    from supervisor.__main__ import main
    from supervisor.cli.main import load
    from supervisor.config.schema import Phase
    from supervisor.diagnosis.failure import Evidence, RankEvidence, WorkerExit
    from supervisor.diagnosis.success import Success
    from supervisor.diagnosis.verdicts import judge

    load([])
    Phase.model_rebuild()
    judge(Evidence((RankEvidence(WorkerExit(0, code=1), output="ValueError: no"),)), Success())
    return main


def _trainer() -> Callable[[], int]:
    """Import all that our trainer imports; returns its `main`."""
    import yaml  # noqa: F401

    from trainer import termination, train  # noqa: F401
    from trainer.__main__ import main
    from trainer.visible_devices import use_visible_devices

    def run() -> int:
        assert use_visible_devices() is None
        main()

    return run


def _become(request: dict[str, Any], files: Sequence[int], made: Mapping[str, str]) -> None:
    """Make this process what the request asks for, as `exec` would; the variables `made` are those
    that the imports have set."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"] | made)
    sys.argv = request["argv"]


def _serve(line: socket.socket, made: Mapping[str, str]) -> bool:
    """Fork for each request, and tell its pid and its exit code. Returns True in a forked process,
    and False in the forking one when the socket is closed."""
    running: dict[int, tuple[int, int]] = {}
    while True:
        ready, _, _ = select.select([line.fileno(), *running], [], [])
        for pidfd in running.keys() & {*ready}:
            _tell_end(pidfd, *running.pop(pidfd))
        if line.fileno() not in ready:
            continue
        request, received, _, _ = socket.recv_fds(line, _MOST, 4)
        if not request:
            return False
        told, *files = received
        if (pid := os.fork()) == 0:
            line.close()
            for number in (told, *running, *(other for _, other in running.values())):
                os.close(number)
            _become(json.loads(request), files, made)
            return True
        os.write(told, b"%d" % pid)
        for file in files:
            os.close(file)
        running[os.pidfd_open(pid)] = (pid, told)


def _tell_end(pidfd: int, pid: int, told: int) -> None:
    """Reap a process that has ended, and tell how."""
    _, status = os.waitpid(pid, 0)
    with suppress(OSError):  # nobody wants to know
        os.write(told, b"%d" % os.waitstatus_to_exitcode(status))
    for number in (pidfd, told):
        os.close(number)


if __name__ == "__main__":
    before = dict(os.environ)
    main = {"supervise": _supervise, "trainer": _trainer}[sys.argv[1]]()  # this takes the time
    gc.freeze()
    made = {name: text for name, text in os.environ.items() if before.get(name) != text}
    if _serve(socket.socket(fileno=int(sys.argv[2])), made):
        sys.exit(main())
