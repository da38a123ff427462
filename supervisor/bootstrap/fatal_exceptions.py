"""Records the exceptions that end the program, as the failure record for the supervisor.

This module replaces `os._exit`, the function of `threading` that creates each thread's excepthook,
and, once the main module has ended, `sys.unraisablehook`. It leaves `sys.excepthook` and
`threading.excepthook` to the program; signal handlers are in `sigterm`. It keeps only descriptions,
no exceptions: an exception keeps everything alive that its frames refer to.
"""

from __future__ import annotations

import os
import sys

from .worker import SupervisedWorker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType, TracebackType
    from typing import Any

    from ..protocol.failure_record import FailureRecord

_AT_EXIT = "atexit", "threading shutdown"
"""How the interpreter's messages about exceptions that it ignores during shutdown begin."""


class FatalErrorRecorder:
    """Context manager around the program's main module: records the exception that ends it."""

    def __init__(self, worker: SupervisedWorker) -> None:
        self._worker = worker
        self._of_thread: FailureRecord | None = None
        self._exit = os._exit
        os._exit = self._leave  # type: ignore[assignment]
        worker.when_imported("threading", self._watch_threads)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Record what the main module raised. The exception goes on to the interpreter."""
        record = None
        if error is not None:
            self._worker.frames.forget(error)
            if not (isinstance(error, SystemExit) and _means_success(error.code)):
                record = self._record(error)
        self._worker.report_end(record)
        self._watch_exit()

    def _record(self, error: BaseException | None) -> FailureRecord | None:
        """Returns the record of `error`; where `error` says nothing (a plain exit or interrupt),
        the record of the thread that failed before. None: nothing failed."""
        says_nothing = error is None or (
            isinstance(error, (SystemExit, KeyboardInterrupt))
            and error.__cause__ is None
            and error.__context__ is None
        )
        if self._of_thread is not None and says_nothing:
            return self._of_thread
        return None if error is None else self._worker.describe(error)

    def _leave(self, status: int) -> None:
        failed = not _means_success(status)
        self._worker.report_end(self._record(sys.exc_info()[1]) if failed else None)
        with self._worker.frames:
            self._exit(status)

    def _watch_threads(self, threading: ModuleType) -> None:
        """Record an exception that ends a thread: it may be why the program ends next."""
        make = getattr(threading, "_make_invoke_excepthook", None)
        if make is None:
            return

        def make_noting() -> Any:
            invoke = make()

            def note_and_invoke(thread: Any) -> None:
                error = sys.exc_info()[1]
                if error is not None and not isinstance(error, SystemExit):
                    self._of_thread = self._worker.describe(error)
                invoke(thread)

            return note_and_invoke

        threading._make_invoke_excepthook = make_noting  # type: ignore[attr-defined]

    def _watch_exit(self) -> None:
        """Record exceptions that the interpreter ignores during shutdown. Called once the main
        module has ended, so exceptions that were ignored earlier do not count."""
        shown = sys.unraisablehook

        def note(unraisable: Any) -> None:
            what, where = unraisable.err_msg or "", unraisable.object
            last = where is sys.modules.get("threading") or any(text in what for text in _AT_EXIT)
            if last or (where is not None and where in (sys.stdout, sys.stderr)):
                record = self._record(unraisable.exc_value)
                if record is not None:
                    self._worker.save(record)
            shown(unraisable)

        sys.unraisablehook = note


def _means_success(status: object) -> bool:
    """Whether a process that exits with `status` has the exit code 0."""
    return status is None or (isinstance(status, int) and status & 0xFF == 0)
