"""Prints the tracebacks of unexpected errors of ours to standard error, as Python does, but without
the secrets that their messages may contain."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType

from supervisor.host.outlet import say_on_stderr


def redact_tracebacks(redact: Callable[[str], str]) -> None:
    """From now on, print the traceback of every uncaught exception, in any thread, with `redact`
    applied."""

    def print_redacted(
        kind: type[BaseException], error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lines = traceback.format_exception(kind, error, trace)
        say_on_stderr(redact("".join(lines)).rstrip())

    def print_redacted_of_thread(failed: threading.ExceptHookArgs) -> None:
        print_redacted(failed.exc_type, failed.exc_value, failed.exc_traceback)

    sys.excepthook = print_redacted
    threading.excepthook = print_redacted_of_thread
