"""Process 1 of a container: a tiny init above the supervisor.

The kernel treats process 1 differently: signals that nobody handles are dropped, and every orphan
of the container becomes its child, also one left by a person's `docker exec`. Instead of teaching
the supervisor both, it is made an ordinary process: what starts as process 1 forks, goes on as the
supervisor in the child, and stays behind as an init that reaps whatever dies, passes on signals,
and ends with the supervisor's exit code. With it the kernel ends whatever is left in the container.
"""

from __future__ import annotations

import os
import signal

_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP}


def stay_behind_as_init() -> None:
    """Go on in a child; where this returns we are no longer process 1."""
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
