"""Stack dumps: what every thread was doing when the worker hung or crashed.

`faulthandler` writes from the signal handler itself, so it also works while the interpreter is
deadlocked. The supervisor sends the signal only to a worker that has declared that it handles it.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Mapping

from supervisor.protocol import environment
from supervisor.protocol.reporter import Reporter

STACK_SIGNAL = signal.SIGUSR2


def enable_stack_dumps(reporter: Reporter, environ: Mapping[str, str] = os.environ) -> None:
    """Dump all stacks to the supervisor's file on `STACK_SIGNAL`, and when native code crashes.

    Without a supervisor this does nothing.
    """
    path = environ.get(environment.STACKS_FILE)
    if not path:
        return
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    faulthandler.register(STACK_SIGNAL, file=descriptor, all_threads=True, chain=False)
    if not faulthandler.is_enabled():  # if it is, somebody wants the dump on standard error
        faulthandler.enable(descriptor, all_threads=True)
    reporter.dumps_stacks()
