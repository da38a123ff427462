"""Signals that ask a process of ours for nothing, but would end it without a word.

A batch system may send one as a warning (Slurm: `--signal=USR1@120`), and libraries use them among
themselves. Signals that a fault of the process itself raises are not among them.
"""

from __future__ import annotations

import signal

_REAL_TIME = range(signal.SIGRTMIN, signal.SIGRTMAX + 1)

IDLE = frozenset(
    {
        *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF),
        *(signal.SIGIO, signal.SIGPWR, signal.SIGXCPU, signal.SIGSTKFLT, *_REAL_TIME),
    }
)


def name_of(number: int) -> str:
    """Returns the name of a signal; of a real-time signal without one, as `kill -l` shows it."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"


def ignored(number: int) -> str:
    """Returns the sentence that such a signal came."""
    return (
        f"{name_of(number)} came, which asks for nothing: the job goes on. SIGTERM has it save and "
        "end, also as the warning of a batch system (Slurm: --signal=TERM@SECONDS)"
    )
