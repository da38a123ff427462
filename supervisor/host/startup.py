"""What a process of ours does before anything else, whatever it was started with, and as which."""

from __future__ import annotations

import os
import signal
import sys

_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP}


def complete_streams() -> None:
    """Open what is missing of standard input, output and error on /dev/null.

    A shell can close them (`>&-`). The next file that is opened would take the number of the
    missing one, and get what is meant for that: call this before any file is opened.
    """
    for number, (name, mode) in enumerate({"stdin": "r", "stdout": "w", "stderr": "w"}.items()):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def stay_behind_as_init() -> None:
    """Go on in a child of process 1, which stays behind; where this returns we are that child.

    The kernel treats process 1, that of a container, differently: signals that nobody handles are
    dropped, and every orphan of the container becomes its child, also one left by a person's
    `docker exec`. Instead of teaching the supervisor both, it is made an ordinary process: what
    stays behind is a tiny init that reaps whatever dies, passes on signals, and ends with the
    supervisor's exit code. With it the kernel ends whatever is left in the container.
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
    """Reap all that is dead; the exit code once `child` is among it."""
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
