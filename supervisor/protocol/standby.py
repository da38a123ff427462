"""A standby: a process that has done its imports, and waits to become the next worker.

Until its orders come, it has no attempt, no progress pipe and no failure file, and its output goes
to a file of its own. The supervisor sends all of these over a socket, in one message with the
descriptors; from then on the process is the worker. What it prepared is valid for the code and
environment that it saw. If either has changed, it execs the program as a cold start: that is
slower, and never wrong.

This module imports little, because the standby of a bootstrapped program uses it too.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

from . import background, environment
from .shortening import keep_beginning

Mode = Literal["imports", "ready"]
"""`imports`: modules are loaded, no backend is initialised. `ready`: all but the training state is
there."""

OUTPUT = "output"
"""Name of the descriptor that becomes standard output and error. Any other descriptor is named by
the environment variable that gets its number."""

READY = b"R"
UNUSABLE = b"U"
NOTE = b"N"
END = b"\0"
"""Messages of a standby; `UNUSABLE` is followed by a reason of up to `MAX_REASON` characters, and
`NOTE` by a text of the same size and `END`: what the standby does without."""
MAX_REASON = 4000
_SIZE = 8
_MAX_DESCRIPTORS = 8


@dataclass(frozen=True, slots=True)
class StandbyOrders:
    """What a standby needs to become the worker: its command line, its environment, and the names
    of the descriptors in the same message (see `OUTPUT`)."""

    argv: Sequence[str]
    env: Mapping[str, str]
    descriptors: Sequence[str]


def send_orders(
    connection: socket.socket, orders: StandbyOrders, descriptors: Sequence[int]
) -> None:
    """Make the standby at the other end of `connection` the worker.

    Raises:
        OSError: the standby is gone, or does not read.
    """
    body = json.dumps([list(orders.argv), dict(orders.env), list(orders.descriptors)]).encode()
    socket.send_fds(connection, [len(body).to_bytes(_SIZE)], list(descriptors))
    connection.sendall(body)


class Standby:
    """This process, as a standby."""

    def __init__(self, connection: socket.socket, mode: Mode) -> None:
        """`connection` leads to the supervisor."""
        self.mode: Mode = mode
        self._connection = connection
        self._began = time.time_ns()
        self._environ = dict(os.environ)
        self._nice = background.lower_priority()

    @classmethod
    def from_environment(cls) -> Standby | None:
        """Return this process as a standby; None: it is not one."""
        given = os.environ.pop(environment.STANDBY, None)
        if given is None:
            return None
        number, _, mode = given.partition(":")
        connection = socket.socket(fileno=int(number))
        connection.set_inheritable(False)
        return cls(connection, "ready" if mode == "ready" else "imports")

    def changed_environment(self) -> dict[str, str | None]:
        """Return the variables that this process has changed so far, with their values (None: it
        has removed the variable)."""
        return changed_variables(self._environ, os.environ)

    def unusable(self, why: str) -> NoReturn:
        """Report that this program can have no standby, and exit."""
        self._connection.sendall(
            UNUSABLE + keep_beginning(why, MAX_REASON).encode(errors="replace")
        )
        os._exit(0)

    def note(self, what: str) -> None:
        """Report what this standby does without; it goes on."""
        text = keep_beginning(what.replace("\0", " "), MAX_REASON)
        self._connection.sendall(NOTE + text.encode(errors="replace") + END)

    def begin_again(self, variables: Mapping[str, str]) -> NoReturn:
        """Exec this standby again, as it was started, with further `variables`."""
        if self._nice is not None:
            background.restore_priority(self._nice)
        self._connection.set_inheritable(True)
        number = self._connection.fileno()
        argv = Path("/proc/self/cmdline").read_bytes().split(b"\0")[:-1]
        env = {**self._environ, environment.STANDBY: f"{number}:{self.mode}", **variables}
        os.execve(sys.executable, argv, env)

    def wait(
        self,
        problem: Callable[[StandbyOrders], str | None],
        made_for_imports: Collection[str] = (),
    ) -> StandbyOrders:
        """Wait for the orders, and return them as the worker. Exits if the supervisor is gone.

        `problem` is called in the worker's environment, and returns why what this process prepared
        does not fit (None: it fits). If it does not fit, or a loaded module's file has changed,
        this process execs a cold start. The worker's environment gets the changes that imports have
        made in this process's, but not those of the variables `made_for_imports`.
        """
        loaded = _loaded_files()
        changes = self.changed_environment().items()
        own = {name: value for name, value in changes if name not in made_for_imports}
        self._connection.sendall(READY)
        orders = self._receive()
        _set_environment(orders.env, own)
        if self._nice is not None:
            background.restore_priority(self._nice)
        if (why := _changed_file_complaint(loaded, self._began) or problem(orders)) is not None:
            start_cold(orders, why)
        return orders

    def _receive(self) -> StandbyOrders:
        """Receive the orders, and put the descriptors in place."""
        with self._connection as connection:
            size, descriptors, _, _ = socket.recv_fds(connection, _SIZE, _MAX_DESCRIPTORS)
            body = bytearray()
            while len(body) < int.from_bytes(size):
                chunk = connection.recv(int.from_bytes(size) - len(body))
                if not chunk:
                    break
                body += chunk
        if not body:  # the supervisor is gone, or no longer needs a standby
            os._exit(0)
        argv, env, names = json.loads(body)
        return StandbyOrders(argv, {**env, **_put_in_place(names, descriptors)}, names)


def start_cold(orders: StandbyOrders, why: str) -> NoReturn:
    """Exec the worker of `orders` without what the standby has prepared, because of `why`."""
    print(f"the standby does not fit any more ({why}): a cold start", flush=True)
    kept = {orders.env[name] for name in orders.descriptors if name in orders.env}
    for place in Path("/proc/self/fd").iterdir():
        if int(place.name) > 2 and place.name not in kept:
            with suppress(OSError):  # the descriptor by which they are listed
                os.set_inheritable(int(place.name), False)
    os.execvpe(orders.argv[0], list(orders.argv), orders.env)


def _put_in_place(names: Sequence[str], descriptors: Sequence[int]) -> dict[str, str]:
    """Redirect the output; returns the variables with the numbers of the other descriptors."""
    sys.stdout.flush()
    sys.stderr.flush()
    numbers = {}
    for name, descriptor in zip(names, descriptors, strict=True):
        if name == OUTPUT:
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            os.close(descriptor)
        else:
            os.set_inheritable(descriptor, True)
            numbers[name] = str(descriptor)
    return numbers


def _set_environment(env: Mapping[str, str], own: Mapping[str, str | None]) -> None:
    """Set the environment to `env` with the changes that the imports made (`own`)."""
    os.environ.clear()
    os.environ.update(env)
    for name, value in own.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def changed_variables(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    """Return the variables that differ between two environments, with the later value (None:
    removed)."""
    names = sorted(before.keys() | after.keys())
    return {name: after.get(name) for name in names if before.get(name) != after.get(name)}


_Stamp = tuple[int, int]


def _loaded_files() -> dict[str, _Stamp | None]:
    """Return the files of the loaded modules, each with its mtime (ns) and size (bytes)."""
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return {file: _stamp(file) for file in files if isinstance(file, str)}


def _changed_file_complaint(loaded: Mapping[str, _Stamp | None], began: int) -> str | None:
    """Return a complaint if a file has changed since it was loaded, or since the time `began` (ns);
    None: none has."""
    for file, stamp in loaded.items():
        if _stamp(file) != stamp or (stamp is not None and stamp[0] > began):
            return f"{file} was changed"
    return None


def _stamp(file: str) -> _Stamp | None:
    try:
        status = os.stat(file)  # noqa: PTH116  (with a Path, a thousand files take twice as long)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
