"""The only table of signals: what the signal that ended a process says about its end.

Add a signal here, and to the rule about it in `rules/exits.py`.
"""

from __future__ import annotations

from supervisor.diagnosis.failure import WorkerExit

FROM_OUTSIDE = frozenset({"SIGKILL", "SIGTERM", "SIGHUP", "SIGINT", "SIGUSR1", "SIGUSR2"})
"""Signals that others send. The program need not have done anything wrong, and what it had caught
and logged before says nothing about its end."""
CRASHES = frozenset({"SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGTRAP", "SIGSYS"})
"""Signals for native code that did something forbidden. SIGABRT is not one of them: a rank that
loses a peer ends with it too."""
NATIVE_ENDS = CRASHES | {"SIGABRT"}
"""Signals that end a program after its native code has printed why."""
WITH_STACKS = frozenset({"SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT"})
"""Signals on which `faulthandler` writes the Python stacks:
https://docs.python.org/3/library/faulthandler.html#faulthandler.enable"""

_SHELL_CODES = {
    128 + 1: "SIGHUP",
    128 + 2: "SIGINT",
    128 + 4: "SIGILL",
    128 + 5: "SIGTRAP",
    128 + 6: "SIGABRT",
    128 + 7: "SIGBUS",
    128 + 8: "SIGFPE",
    128 + 9: "SIGKILL",
    128 + 11: "SIGSEGV",
    128 + 15: "SIGTERM",
    128 + 31: "SIGSYS",
}
"""Exit codes of a shell whose program was ended by a signal (signal(7), x86 and Arm)."""


def signal_of(ended: WorkerExit) -> str | None:
    """Returns the signal that ended a process, also if a shell's exit code says so; None: none."""
    return ended.signal if ended.code is None else _SHELL_CODES.get(ended.code)
