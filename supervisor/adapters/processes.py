"""Starts worker processes, and makes sure that nothing of them stays behind.

A worker gets a session and a process group of its own and is killed by the kernel when the
supervisor dies. The supervisor is a *child subreaper*: whatever a worker leaves behind, also in a
session of its own, becomes our child and stays below us in the process tree. So "everything of the
attempt" is all of our descendants, and no bookkeeping can miss one.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from supervisor.core.failure import WorkerExit
from supervisor.protocol import environment

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_prctl = ctypes.CDLL(None, use_errno=True).prctl


class WorkerProcess:
    """A worker that was started: a direct child of the supervisor's main thread."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        output: int,
        inherit: Sequence[int] = (),
    ) -> None:
        """Start `argv` with stdout and stderr on `output`, and the descriptors `inherit` open.

        Raises:
            OSError: it cannot be started.
        """
        parent = os.getpid()

        def die_with_parent() -> None:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # the supervisor died before the line above
                os._exit(1)

        with warnings.catch_warnings():
            # Python warns of fork in a process with threads; between it and exec the child runs
            # only the two system calls above.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process = subprocess.Popen(
                list(argv),
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=tuple(inherit),
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self.pid = self._process.pid
        self.pidfd = os.pidfd_open(self.pid)

    def poll(self, rank: int) -> WorkerExit | None:
        """How it ended; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        if code < 0:
            return WorkerExit(rank, signal=_signal_name(-code))
        return WorkerExit(rank, code=code)

    def signal(self, number: signal.Signals) -> None:
        """Signal this process alone: its data loaders must live until it has saved."""
        self._process.send_signal(number)

    def close(self) -> None:
        """Free the descriptor; the process has ended."""
        os.close(self.pidfd)


def become_subreaper() -> None:
    """Let orphaned descendants become our children instead of init's."""
    if _prctl(_PR_SET_CHILD_SUBREAPER, 1) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(number)}")


def kill_descendants(workers: Sequence[int]) -> int:
    """SIGKILL every descendant and reap those that are ours; returns how many still live.

    `workers` are the direct children that `WorkerProcess` reaps itself.
    """
    alive = 0
    for process in psutil.Process().children(recursive=True):
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                if process.pid not in workers:
                    _reap(process.pid)
                continue
            alive += 1
            process.kill()
        except psutil.NoSuchProcess:
            continue
    return alive


def sweep(job: str) -> list[int]:
    """SIGKILL the processes that an earlier supervisor of `job` left behind; returns their pids."""
    mark = f"{environment.JOB}={job}".encode()
    found = []
    for process in psutil.process_iter():
        try:
            variables = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
            if mark in variables and process.pid != os.getpid():
                process.kill()
                found.append(process.pid)
        except (OSError, psutil.NoSuchProcess):  # gone, or another user's: not our worker
            continue
    return found


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # a zombie of a parent that still lives
        return


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
