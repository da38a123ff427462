"""Keeps the files of a job below model_dir within the config's `limits`, while the job runs.

Looking through thousands of folders takes a while, and a file system may hang. So a thread does it:
some seconds after an attempt began, so as not to delay its start, and every few minutes from then
on. Files that cannot be read or deleted are left; they only take up room.

If no thread can be started, the next look tries again; otherwise one short lack of threads would
let a job that runs for weeks fill its disk. People are told once, and again only if a look could
start in between.

The journal is never cut, because all decisions rest on it. It grows by some kilobytes with each
attempt, as run.log and attempts.jsonl do.
"""

from __future__ import annotations

import threading

from supervisor.adapters.stores.compile_cache import CompileCache
from supervisor.adapters.stores.space import Space
from supervisor.config.schema import Limits
from supervisor.core.events import WorkersStarted
from supervisor.host.notice import Notice, Tell
from supervisor.ports import CallLater, Transition

_AFTER_START = 5.0
_INTERVAL = 300.0


class DiskLimits:
    """Applies the limits of a job; see `ports.Observer`."""

    def __init__(
        self,
        limits: Limits,
        space: Space,
        cache: CompileCache,
        tell: Tell,
        call_later: CallLater,
    ) -> None:
        """`tell` tells a person."""
        self._limits = limits
        self._space = space
        self._cache = cache
        self._tell = tell
        self._call_later = call_later
        self._is_thread_refused = False
        self._is_due = False
        self._thread = threading.Thread()
        """The thread of the last look."""
        call_later(_INTERVAL, self._start_periodically)

    def observe(self, transition: Transition) -> None:
        """Schedule a look some seconds after an attempt has begun."""
        if isinstance(transition.event, WorkersStarted) and not self._is_due:
            self._is_due = True
            self._call_later(_AFTER_START, self._start_look)

    def _start_periodically(self) -> None:
        self._call_later(_INTERVAL, self._start_periodically)
        self._start_look()

    def _start_look(self) -> None:
        self._is_due = False
        if self._thread.is_alive():
            return
        thread = threading.Thread(target=self._keep_within, name="bounds", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads are allowed now
            if not self._is_thread_refused:
                self._tell(
                    Notice(
                        "limits-not-applied",
                        f"the limits of model_dir are not applied now ({error}); tried again later",
                        reason=str(error),
                    )
                )
            self._is_thread_refused = True
            return
        self._thread, self._is_thread_refused = thread, False

    def _keep_within(self) -> None:
        self._space.keep_within(self._limits)
        self._cache.keep_within(self._limits.compile_cache)
