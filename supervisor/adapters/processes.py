"""Starts worker processes, and makes sure that nothing of them stays behind.

A worker gets a session and a process group of its own and is killed by the kernel when the
supervisor dies. The supervisor is a *child subreaper*: whatever a worker leaves behind, also in a
session of its own, becomes our child and stays below us in the process tree. So "everything of the
attempt" is all of our descendants, and no bookkeeping can miss one. All but those in our own
session: a worker starts in another one and no process can join a session, so these are the guard,
our helpers, and what the shell that became us by `exec` had in the background.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil

from supervisor.core.failure import WorkerExit
from supervisor.host.guard import marked
from supervisor.protocol import environment

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_EXITING_TIMEOUT = 1.0
_PATIENCE = 0.01
_ELF = b"\x7fELF"
_PF_EXITING = 0x4  # of the kernel's task flags
_prctl = ctypes.CDLL(None, use_errno=True).prctl
_LISTS_CHILDREN = Path("/proc/thread-self/children").exists()


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
        setpriv = _setpriv(argv[0], env)
        with warnings.catch_warnings():
            # Python warns of fork in a process with threads; between it and exec the child runs
            # only the two system calls above.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process = subprocess.Popen(
                [*setpriv, *argv],
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=tuple(inherit),
                start_new_session=True,
                preexec_fn=None if setpriv else _dying_with(os.getpid()),
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


def _dying_with(parent: int) -> Callable[[], None]:
    """What has a forked process killed when its parent dies."""

    def die_with_parent() -> None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the supervisor died before the line above
            os._exit(1)

    return die_with_parent


def _setpriv(program: str, env: Mapping[str, str]) -> tuple[str, ...]:
    """The command of util-linux that does the same for the program behind it, in its own place.

    A fork of a whole Python takes 3 ms and more, a vfork and this 1 ms. Only where it is certain
    to behave as the program itself would: there is such a command, and the program can be run.
    Should the supervisor die before the command has done it, there is the guard.
    """
    found = shutil.which(program, path=env.get("PATH"))
    if found is None:
        return ()
    try:
        with Path(found).open("rb") as file:
            return _setpriv_command() if file.read(4) == _ELF else ()
    except OSError:
        return ()


@cache
def _setpriv_command() -> tuple[str, ...]:
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        return ()
    command = (setpriv, "--pdeathsig", "KILL", "--")
    tried = subprocess.run([*command, setpriv, "--version"], capture_output=True, check=False)
    return command if tried.returncode == 0 else ()


def become_subreaper() -> None:
    """Let orphaned descendants become our children instead of init's."""
    if _prctl(_PR_SET_CHILD_SUBREAPER, 1) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(number)}")


def kill_descendants(workers: Sequence[int], spared: Sequence[int] = ()) -> int:
    """SIGKILL every process of the job and reap those that are ours; returns how many were left.

    `workers` are the direct children that `WorkerProcess` reaps itself; the sessions of those in
    `spared` are left alone. Where some are left, it waits for their ends first, but not for long:
    it is time to look again.
    """
    left = []
    for process in _descendants(spared):
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                process.kill()
            elif process.pid in workers or _reap(process.pid):
                continue
            left.append(process.pid)  # a zombie that cannot be reaped yet has threads that live
        except psutil.NoSuchProcess:
            continue
    end = time.monotonic() + _PATIENCE
    for pid in left:
        with suppress(ProcessLookupError):
            _ends(os.pidfd_open(pid), end)
    return len(left)


def reap_orphans(workers: Sequence[int]) -> None:
    """Reap the zombies that `workers` left to us, and nothing that somebody here waits for."""
    waitable = os.WEXITED | os.WNOHANG | os.WNOWAIT
    try:
        if os.waitid(os.P_ALL, 0, waitable) is None:  # saves the look at all processes
            return
    except ChildProcessError:
        return
    for process in _descendants((), recursive=False):
        with suppress(psutil.NoSuchProcess):
            if process.pid not in workers and process.status() == psutil.STATUS_ZOMBIE:
                _reap(process.pid)


class SweepError(Exception):
    """Processes of an earlier supervisor of the job cannot be killed: nothing may be started."""


def sweep(job: str, timeout: float = 10.0) -> list[int]:
    """Kill what an earlier supervisor of `job` left behind; returns the pids, confirmed gone.

    Raises:
        SweepError: some were still there after `timeout` seconds.
    """
    marks = (f"\0{environment.JOB}={job}\0".encode(), f"{job}@".encode())
    end = time.monotonic() + timeout
    killed: list[int] = []
    while found := [(pid, pidfd) for pid, pidfd in marked(*marks) if pid != os.getpid()]:
        for _, pidfd in found:
            with suppress(OSError):  # it is gone, or another user's
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        left = [pid for pid, pidfd in found if not _ends(pidfd, end)]
        if left:
            pids = ", ".join(str(pid) for pid in left)
            raise SweepError(f"what an earlier supervisor left behind cannot be killed: pid {pids}")
        killed += [pid for pid, _ in found]
    for pidfd in _exiting():  # whose they are cannot be seen any more; it takes them an instant
        _ends(pidfd, min(end, time.monotonic() + _EXITING_TIMEOUT))
    return killed


def _ends(pidfd: int, end: float) -> bool:
    """Whether the process, with all of its threads, is gone by the time `end`."""
    try:
        return bool(select.select([pidfd], [], [], max(0.0, end - time.monotonic()))[0])
    finally:
        os.close(pidfd)


def _exiting() -> list[int]:
    """The processes that have lost their memory, hence their environment, but not yet all else."""
    found = []
    for pid in psutil.pids():
        with suppress(OSError):
            pidfd = os.pidfd_open(pid)
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            gone = fields[0] in "ZX" and int(fields[17]) <= 1
            if int(fields[6]) & _PF_EXITING and not gone:
                found.append(pidfd)
            else:
                os.close(pidfd)
    return found


def _descendants(spared: Sequence[int], *, recursive: bool = True) -> list[psutil.Process]:
    """Those of the job."""
    others = (os.getsid(0), *spared)
    found = []
    parents = [psutil.Process()]
    while parents:
        children = _children(parents.pop())
        parents += children if recursive else ()
        for child in children:
            with suppress(ProcessLookupError):
                if os.getsid(child.pid) not in others:
                    found.append(child)
    return found


def _children(parent: psutil.Process) -> list[psutil.Process]:
    """The living and the dead ones: from the kernel's own list, where it keeps one.

    A look at all processes instead takes milliseconds. The kernel's list may lack a child while
    another one is being reaped. Our own children only we reap, so of them it lacks none; and while
    something of a worker is missed, its parent is not, so that we look again.
    """
    if not _LISTS_CHILDREN:
        return parent.children()
    listed = []
    with suppress(OSError):  # it is gone, or one of its threads
        for path in Path(f"/proc/{parent.pid}/task").glob("*/children"):
            listed += path.read_text().split()
    found = []
    for pid in listed:
        with suppress(psutil.NoSuchProcess):
            child = psutil.Process(int(pid))
            if child.ppid() == parent.pid and parent.is_running():  # no other under its number
                found.append(child)
    return found


def _reap(pid: int) -> bool:
    """Whether a zombie is gone for good."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:  # its parent still lives, and is killed itself
        return False


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
