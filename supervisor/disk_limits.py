"""Keeps what a job leaves below model_dir within the limits of its config, while the job runs.

To look through thousands of folders takes a while, and a file system may hang. So a thread of its
own does it, some seconds after an attempt began, when nobody waits for its start any more, and now
and then while it runs. What cannot be looked at or deleted costs nothing but its room.

A look that fails is not the last one: a job that runs for weeks would fill its disk after one
moment without a free thread. It is told once until a look begins again.

The journal is never cut: it is the truth. It grows by some kilobytes with each attempt, as run.log
and attempts.jsonl do.
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
    """Applies the limits of a job, see `ports.Observer`."""

    def __init__(
        self,
        limits: Limits,
        space: Space,
        cache: CompileCache,
        tell: Tell,
        call_later: CallLater,
    ) -> None:
        """A person is told by `tell`."""
        self._limits = limits
        self._space = space
        self._cache = cache
        self._tell = tell
        self._call_later = call_later
        self._is_refused = False
        self._is_due = False
        self._thread = threading.Thread()
        """That of the last look."""
        call_later(_INTERVAL, self._again)

    def observe(self, transition: Transition) -> None:
        """Have a look soon after an attempt has begun."""
        if isinstance(transition.event, WorkersStarted) and not self._is_due:
            self._is_due = True
            self._call_later(_AFTER_START, self._look)

    def _again(self) -> None:
        self._call_later(_INTERVAL, self._again)
        self._look()

    def _look(self) -> None:
        self._is_due = False
        if self._thread.is_alive():
            return
        thread = threading.Thread(target=self._keep_within, name="bounds", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # there can be no more threads now
            if not self._is_refused:
                self._tell(
                    Notice(
                        "limits-not-applied",
                        f"the limits of model_dir are not applied now ({error}): tried again",
                        reason=str(error),
                    )
                )
            self._is_refused = True
            return
        self._thread, self._is_refused = thread, False

    def _keep_within(self) -> None:
        self._space.keep_within(self._limits)
        self._cache.keep_within(self._limits.compile_cache)
