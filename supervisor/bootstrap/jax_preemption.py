"""Knows whether jax has told the program to stop.

Under `jax.distributed`, jax handles SIGTERM in native code and keeps it to itself: a process hears
of it only if it asks at a step, and jax answers yes (`reached_preemption_sync_point`). A program
that never got a yes works on to its end as if nobody had sent a signal, so its exit code says as
much as that of any other run. The object that answers is private to jax; where another version has
no such object, nothing is known.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any


class PreemptionWatch:
    """Hears what jax answers."""

    def __init__(self, on_told: Callable[[], None]) -> None:
        """Call `on_told` whenever jax tells the program to stop."""
        self.on_told = on_told
        self.has_begun = False
        """Whether jax handles SIGTERM, and all that it tells the program is heard."""

    def watch(self, distributed: ModuleType) -> None:
        """Listen to jax's object once `jax.distributed` is initialised."""
        from functools import wraps

        state = distributed.State
        initialize = state.initialize_preemption_sync_manager

        @wraps(initialize)
        def initialize_preemption_sync_manager(self: Any) -> None:
            initialize(self)
            if self.preemption_sync_manager is not None:
                self.preemption_sync_manager = _Heard(self.preemption_sync_manager, watch)
                watch.has_begun = True

        watch = self
        state.initialize_preemption_sync_manager = initialize_preemption_sync_manager


class _Heard:
    """Jax's object, as the program sees it."""

    def __init__(self, given: Any, watch: PreemptionWatch) -> None:
        self._given = given
        self._watch = watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._given, name)

    def reached_sync_point(self, *arguments: Any, **named: Any) -> Any:
        is_told = self._given.reached_sync_point(*arguments, **named)
        if is_told:
            self._watch.on_told()
        return is_told
