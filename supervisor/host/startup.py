"""First steps of a process of ours: complete its standard streams, and do not run as process 1."""

from __future__ import annotations

import os
import signal
import sys

_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP}


def complete_streams() -> None:
    """Open /dev/null for each of standard input, output and error that is closed.

    A shell can close them (`>&-`). The next opened file would get the missing number, and receive
    what is written to that stream: call this before any file is opened.
    """
    for number, (name, mode) in enumerate({"stdin": "r", "stdout": "w", "stderr": "w"}.items()):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def stay_behind_as_init() -> None:
    """Fork if this is process 1; returns in the child, which goes on as the supervisor.

    The kernel treats process 1 of a container differently: it drops signals without a handler, and
    makes every orphan of the container its child, also one left by a person's `docker exec`. So
    that the supervisor need not handle either, process 1 stays behind as a tiny init: it reaps
    whatever dies, passes signals on, and exits with the supervisor's exit code. When it ends, the
    kernel kills whatever is left in the container.
    """
    watched = signal.valid_signals() - _FAULTS
    # Blocked signals wait for `sigwaitinfo`, in process 1 also those it would otherwise not get.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    while True:
        info = signal.sigwaitinfo(watched)
        if info.si_signo == signal.SIGCHLD:
            if (code := _reap_until(child)) is not None:
                os._exit(code)
        elif info.si_code <= 0:  # above: from the terminal, to its whole process group
            os.kill(child, info.si_signo)


def _reap_until(child: int) -> int | None:
    """Reap all dead processes; returns the exit code of `child` once it is among them."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        if pid == 0:
            return None
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
