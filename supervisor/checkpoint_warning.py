"""Warns, once a phase, if a program saves checkpoints that the supervisor does not see.

`core.unseen_saves` decides whether there is a reason to warn. While the program runs, the warning
waits some seconds for the commit to appear, and a thread looks for the checkpoints. When the
attempt is over, no commit can follow, so the warning comes at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from supervisor.adapters.stores.nearby import found_nearby
from supervisor.config.plan import PhasePlan
from supervisor.core.decisions import StartWorkers
from supervisor.core.events import Event, WorkersGone
from supervisor.core.unseen_saves import UnseenSaves
from supervisor.host.aside import aside
from supervisor.host.notice import Notice, Tell
from supervisor.ports import CallLater, Transition
from supervisor.protocol.location import Uri

_COMMIT_TIMEOUT = 10.0
"""Seconds in which the commit of a save must be seen after the first sign of the save."""


class CheckpointWarning:
    """See `ports.Observer`."""

    def __init__(
        self,
        plans: Sequence[PhasePlan],
        model_dir: Path,
        call_later: CallLater,
        say: Tell,
        notice: Tell,
    ) -> None:
        """`say` tells a person in the main thread, `notice` in another thread."""
        self._plans = plans
        self._model_dir = model_dir
        self._call_later = call_later
        self._say = say
        self._notice = notice
        self._unseen = UnseenSaves()
        self._phase = 0
        self._began = 0.0
        self._is_waiting = False
        self._has_warned = False

    def observe(self, transition: Transition) -> None:
        """See `ports.Observer`."""
        event, state = transition.event, transition.after
        phase = transition.before.phase  # the event that ends a phase belongs to it
        if phase != self._phase:
            self._unseen, self._phase, self._has_warned = UnseenSaves(), phase, False
        self._unseen = self._unseen.after(event)
        self._warn(event)
        if any(isinstance(decision, StartWorkers) for decision in transition.decisions):
            self._began = transition.wall.timestamp()
            self._unseen = self._unseen.begun(state.newest)

    def _warn(self, event: Event) -> None:
        if self._unseen.reason is None or self._has_warned or not self._plan.is_command:
            return
        if isinstance(event, WorkersGone):
            self._has_warned = True
            try:
                self._say(aside(str(self._model_dir)).ask(self._warning_maker(self._unseen.reason)))
            except TimeoutError as error:
                text = f"{self._unseen.reason}, but no checkpoint is seen: {error}"
                self._say(_unseen_in(self._plan.checkpoint_dir, text))
        elif not self._is_waiting:
            self._is_waiting = True
            self._call_later(_COMMIT_TIMEOUT, self._warn_from_thread)

    def _warn_from_thread(self) -> None:
        """Warn while the program runs, if there is still a reason; a thread does it."""
        self._is_waiting = False
        reason = self._unseen.reason
        if reason is None or self._has_warned:
            return
        self._has_warned = True
        make_warning = self._warning_maker(reason)
        threading.Thread(
            target=lambda: self._notice(make_warning()), name="unseen", daemon=True
        ).start()

    @property
    def _plan(self) -> PhasePlan:
        return self._plans[self._phase]

    def _warning_maker(self, reason: str) -> Callable[[], Notice]:
        """Returns a function that looks for the checkpoints and returns the warning.

        The function reads no state of this object, so any thread may call it.
        """
        place, since = self._plan.checkpoint_dir, self._began
        on_disk = place if isinstance(place, Path) else None
        roots = [self._model_dir]
        if on_disk is not None and not on_disk.is_relative_to(self._model_dir):
            roots.append(on_disk.parent)

        def make_warning() -> Notice:
            found = found_nearby(on_disk, roots, since)
            return _unseen_in(
                place,
                f"{reason}, but no new checkpoint is seen in {place}, where progress is looked "
                f"for: the restart budget is not refilled; {found}",
            )

        return make_warning


def _unseen_in(place: Path | Uri, text: str) -> Notice:
    return Notice("checkpoints-unseen", text, place=str(place))
