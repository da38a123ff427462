"""The relay of an agent: a Ray actor on the agent's host that carries bytes, and decides nothing.

It starts the agent's process, which knows nothing of Ray, and keeps what that says until a leader
has heard it. If the actor dies, the socket closes, and the agent ends. If the agent ends (it does
so when no leader is heard for long), the actor ends too: nothing has to clean up after a leader.

It imports next to nothing of us, and Ray only to give a slice back.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from supervisor.engines.fleet.payload_frames import FrameError, Frames, framed
from supervisor.host.birth import die_with_parent

_CHUNK = 1 << 16
_MAX_KEPT = 32 << 20
"""Bytes of payloads that are kept for a leader; the oldest are dropped first."""
_MAX_BATCH = 1 << 20
"""Bytes of payloads after which no more are added to one answer."""
_END_TIMEOUT = 5.0
"""Seconds that an agent has to end once its socket is closed. Its guard is alive all the while."""
_TOLD_TIMEOUT = 10.0
"""Seconds to wait for a leader that asks why the agent has ended."""


class OutdatedError(Exception):
    """A leader with a higher epoch has spoken to the agent."""


class Relay:
    """Starts an agent and relays payloads. Its methods run in several threads at once."""

    def __init__(
        self, arguments: Sequence[str], directory: str, node: str, slice_group: str | None
    ) -> None:
        """Start Python with these arguments and the descriptor of its socket, in `directory`.

        `slice_group` is the name of the placement group that holds the slice of this host; None:
        there is none.

        Raises:
            OSError: it cannot be started.
        """
        if not Path(directory).is_dir():
            text = f"the working directory {directory} of the leader is not there on this host"
            raise FileNotFoundError(text)
        self._node, self._slice_group = node, slice_group
        if (raylet := os.environ.get("RAY_RAYLET_PID")) is not None:
            die_with_parent(int(raylet))  # Ray looks for it every second or two
            _be_as_urgent_as(int(raylet))
        self._changed = threading.Condition()
        self._epoch = self._listeners = self._last = 0
        self._kept: deque[tuple[int, bytes]] = deque()
        self._size = 0
        self._ended: str | None = None
        ours, theirs = socket.socketpair()
        with theirs:
            descriptor = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, *arguments, str(descriptor)],
                pass_fds=(descriptor,),
                stdin=subprocess.DEVNULL,
                cwd=directory,
                env=_environment_of_the_host(),
            )
        self._connection = ours
        threading.Thread(target=self._read, name="from the agent", daemon=True).start()

    def lead(self, epoch: int) -> str:
        """Returns the node. From now on, leaders with a lower epoch are refused.

        Raises:
            OutdatedError: this one has a lower epoch.
        """
        with self._changed:
            self._follow(epoch)
        return self._node

    def hear(
        self, epoch: int, heard: int, patience: float
    ) -> tuple[list[tuple[int, bytes]], str | None]:
        """Returns the numbered payloads after `heard`, and why the agent has ended (None: it has
        not). Waits up to `patience` seconds for one of them.

        Payloads up to `heard` are forgotten. Only the last caller is answered: the one before it
        is gone, and gets nothing.

        Raises:
            OutdatedError: a leader with a higher epoch has spoken.
        """
        with self._changed:
            self._follow(epoch)
            self._listeners += 1
            mine = self._listeners
            self._changed.notify_all()
            self._forget(heard)
            self._changed.wait_for(
                lambda: self._kept or self._ended is not None or mine != self._listeners, patience
            )
            if mine != self._listeners:
                return [], None
            batch: list[tuple[int, bytes]] = []
            size = 0
            for number, payload in self._kept:
                if batch and size + len(payload) > _MAX_BATCH:
                    return batch, None
                batch.append((number, payload))
                size += len(payload)
            return batch, self._ended

    def tell(self, epoch: int, payloads: Sequence[bytes]) -> None:
        """Pass payloads on to the agent; they are lost if it has ended.

        Raises:
            OutdatedError: a leader with a higher epoch has spoken.
        """
        with self._changed:
            self._follow(epoch)
        try:
            self._connection.sendall(b"".join(map(framed, payloads)))
        except OSError:
            return  # `hear` says that it has ended

    def stop(self, epoch: int) -> int:
        """End the agent; its guard kills what is left. Returns its exit code.

        Raises:
            OutdatedError: a leader with a higher epoch has spoken.
        """
        with self._changed:
            self._follow(epoch)
        return self._stop()

    def _stop(self) -> int:
        with suppress(OSError):  # it has closed its end
            self._connection.shutdown(socket.SHUT_RDWR)
        try:
            return self._process.wait(_END_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _follow(self, epoch: int) -> None:
        if epoch < self._epoch:
            raise OutdatedError(f"a leader of epoch {self._epoch} commands this agent")
        self._epoch = epoch

    def _forget(self, heard: int) -> None:
        while self._kept and self._kept[0][0] <= heard:
            self._size -= len(self._kept.popleft()[1])

    def _keep(self, payload: bytes) -> None:
        with self._changed:
            self._last += 1
            self._kept.append((self._last, payload))
            self._size += len(payload)
            while self._size > _MAX_KEPT:
                self._size -= len(self._kept.popleft()[1])
            self._changed.notify_all()

    def _read(self) -> None:
        """Keep what the agent says until it ends; then end this actor."""
        frames = Frames()
        try:
            while data := self._connection.recv(_CHUNK):
                for payload in frames.feed(data):
                    self._keep(payload)
        except (OSError, FrameError):
            pass  # as if it had closed the socket
        code = self._stop()
        with self._changed:
            self._ended = f"its agent has ended (exit code {code})"
            self._changed.notify_all()
        time.sleep(_TOLD_TIMEOUT)
        if self._slice_group is not None:
            _give_back(self._slice_group)
        os._exit(0)


def _be_as_urgent_as(raylet: int) -> None:
    """Give all threads of this process, and so the agent and its ranks, the niceness of Ray's node.

    Ray starts actors with a niceness of 15: on a host with anything else to do, ranks would train
    slowly, and the guard would kill late. Where this is not allowed (`CAP_SYS_NICE` is missing),
    the niceness stays, unless Ray was started with `RAY_worker_niceness=0`.
    """
    wanted = os.getpriority(os.PRIO_PROCESS, raylet)
    with suppress(OSError):
        for thread in os.listdir("/proc/self/task"):  # noqa: PTH208
            os.setpriority(os.PRIO_PROCESS, int(thread), wanted)


def _give_back(slice_group: str) -> None:
    """Remove the placement group, unless another agent of the slice has done so."""
    from ray.util import get_placement_group, remove_placement_group

    with suppress(ValueError):
        remove_placement_group(get_placement_group(slice_group))


def _environment_of_the_host() -> dict[str, str]:
    """Returns the environment in which Ray was started on this host.

    Ray sets variables of its own for an actor, such as OMP_NUM_THREADS=1, and hides the GPUs of one
    that has asked for none: ranks must not see that. What it removes for an actor stays removed.
    """
    raw = Path(f"/proc/{os.getppid()}/environ").read_bytes()
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0") if entry)
    return {
        name: os.fsdecode(text)
        for key, _, text in pairs
        if (name := os.fsdecode(key)) in os.environ
    }
