"""What the signal that ended a process tells: the one table of them.

Add a signal here, and to the rule that is about it in `rules/exits.py`.
"""

from __future__ import annotations

from supervisor.diagnosis.failure import WorkerExit

FROM_OUTSIDE = frozenset({"SIGKILL", "SIGTERM", "SIGHUP", "SIGINT", "SIGUSR1", "SIGUSR2"})
"""End a program which need not have done anything wrong: what it had caught and logged before says
nothing about its end."""
CRASHES = frozenset({"SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGTRAP", "SIGSYS"})
"""End a program whose native code did something that is forbidden. SIGABRT is not one of them: who
loses a peer ends by it, too."""
NATIVE_ENDS = CRASHES | {"SIGABRT"}
"""End a program after its native code has said why."""
WITH_STACKS = frozenset({"SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT"})
"""`faulthandler` writes the Python stacks on these:
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
"""With which a shell exits when its program was ended by a signal (signal(7), x86 and Arm)."""


def signal_of(ended: WorkerExit) -> str | None:
    """The signal that ended a process, also where a shell tells it by its exit code."""
    return ended.signal if ended.code is None else _SHELL_CODES.get(ended.code)
