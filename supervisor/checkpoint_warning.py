"""Warns, once a phase, if a program saves checkpoints that the supervisor does not see.

`core.unseen_saves` decides whether there is a reason to warn. While the program runs, the warning
waits some seconds for the commit to appear, and a thread looks for the checkpoints. When the
attempt is over, no commit can follow, so the warning comes at once.

A spent budget is a reason too if no checkpoint was ever seen: the program may save and show nothing
of it. So is the end of a phase without any, if something is there that may be a checkpoint: a
program that was not killed this time may be killed the next time. And so is each failure without
any, if whole checkpoints are there: what the attempts after it make is not seen either. If the job
fails later without any, the warning is repeated as advice.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from supervisor.adapters.stores.nearby import checkpoints_nearby, found_nearby
from supervisor.config.plan import PhasePlan
from supervisor.core.decisions import Decision, FinishJob, StartWorkers
from supervisor.core.events import Event, WorkersGone
from supervisor.core.exit_codes import ExitCode
from supervisor.core.state import Status
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
        self._found: str | None = None
        """See `JobState.checkpoints`."""
        self._began: float | None = None
        """The Unix time at which the first attempt of the phase began; None: none has begun."""
        self._is_waiting = False
        self._has_warned = False
        self._warning: Notice | None = None
        """The warning of the phase, once it was told. Set in any thread."""

    @property
    def told(self) -> str | None:
        """The warning of the phase; None: none was told."""
        return None if self._warning is None else str(self._warning)

    def observe(self, transition: Transition) -> None:
        """See `ports.Observer`."""
        event, state = transition.event, transition.after
        phase = transition.before.phase  # the event that ends a phase belongs to it
        if phase != self._phase:
            self._unseen, self._phase, self._has_warned = UnseenSaves(), phase, False
            self._began = self._warning = None
        self._found = transition.before.checkpoints
        self._unseen = self._unseen.after(event)
        if self._warning is not None and _is_failed_without_checkpoint(transition):
            advice = f"see to it that what the program saves counts: {self._warning}"
            code = self._warning.event
            self._say(Notice("advice", f"what to do: {advice}", code=code, advice=advice))
        self._warn(event)
        if any(map(_spent, transition.decisions)) and transition.after.budget.highest is None:
            self._warn_at_end("the restart budget is spent")
        elif _is_end_without_checkpoint(transition):
            self._warn_at_end("the program has ended", only_if_found=True)
        elif _is_failure_without_checkpoint(transition):
            self._warn_at_end("an attempt has failed", only_if_found=True, only_whole=True)
        if any(isinstance(decision, StartWorkers) for decision in transition.decisions):
            if self._began is None:
                self._began = transition.wall.timestamp()
            self._unseen = self._unseen.begun(state.newest)

    def _warn(self, event: Event) -> None:
        if self._unseen.reason is None or self._has_warned or not self._plan.is_command:
            return
        if isinstance(event, WorkersGone):
            self._warn_at_end(self._unseen.reason)
        elif not self._is_waiting:
            self._is_waiting = True
            self._call_later(_COMMIT_TIMEOUT, self._warn_from_thread)

    def _warn_at_end(
        self, reason: str, *, only_if_found: bool = False, only_whole: bool = False
    ) -> None:
        """Warn at once: the attempt is over. With `only_if_found`, only if something new may be a
        checkpoint; with `only_whole`, only if it is a whole one."""
        if self._has_warned or not self._plan.is_command:
            return
        make_warning = self._warning_maker(
            reason, only_if_found=only_if_found, only_whole=only_whole
        )
        try:
            # If that place hangs, the engine has waited for it already.
            warning = aside(str(self._plan.checkpoint_dir)).ask(make_warning)
        except TimeoutError as error:
            text = f"{reason}, but no checkpoint is seen: {error}"
            warning = _unseen_in(self._plan.checkpoint_dir, text)
        self._has_warned = warning is not None or not only_whole
        self._tell(warning, self._say)

    def _warn_from_thread(self) -> None:
        """Warn while the program runs, if there is still a reason; a thread does it."""
        self._is_waiting = False
        reason = self._unseen.reason
        if reason is None or self._has_warned:
            return
        self._has_warned = True
        make_warning = self._warning_maker(reason)
        threading.Thread(
            target=lambda: self._tell(make_warning(), self._notice), name="unseen", daemon=True
        ).start()

    def _tell(self, warning: Notice | None, tell: Tell) -> None:
        if warning is not None:
            self._warning = warning
            tell(warning)

    @property
    def _plan(self) -> PhasePlan:
        return self._plans[self._phase].saving_in(self._found)

    def _warning_maker(
        self, reason: str, *, only_if_found: bool = False, only_whole: bool = False
    ) -> Callable[[], Notice | None]:
        """Returns a function that looks for the checkpoints and returns the warning; None: with
        `only_if_found` nothing new may be one.

        The function reads no state of this object, so any thread may call it.
        """
        place, since = self._plan.checkpoint_dir, self._began or 0.0
        own = self._plan.own_layout
        described = own if own is not None and own.is_described else None
        on_disk = place if isinstance(place, Path) else None
        roots = [self._model_dir]
        if on_disk is not None and not on_disk.is_relative_to(self._model_dir):
            roots.append(on_disk.parent)
        finds = self._plan.finds_checkpoints
        is_named = on_disk is not None and not finds
        also = "nor where the program was seen to write, " if finds else ""
        shared = _working_directory() if finds else ()

        def make_warning() -> Notice | None:
            if only_if_found:
                found = checkpoints_nearby(
                    on_disk,
                    roots,
                    since,
                    shared,
                    described,
                    only_new=True,
                    only_whole=only_whole,
                )
            else:
                found = found_nearby(on_disk, roots, since, shared, described, is_named=is_named)
            if found is None:
                return None
            return _unseen_in(
                place,
                f"{reason}, but no new checkpoint is seen in {place}, {also}where progress is "
                f"looked for: the restart budget is not refilled; {found}",
            )

        return make_warning


def _is_end_without_checkpoint(transition: Transition) -> bool:
    """Whether a phase is over in which no checkpoint was seen."""
    event, before, after = transition.event, transition.before, transition.after
    if not isinstance(event, WorkersGone) or event.committed is not None:
        return False
    is_over = after.phase != before.phase or any(
        isinstance(each, FinishJob) for each in transition.decisions
    )
    return is_over and before.newest is None and before.budget.highest is None


def _is_failure_without_checkpoint(transition: Transition) -> bool:
    """Whether an attempt has failed, and no checkpoint was ever seen in the phase."""
    event, after = transition.event, transition.after
    is_failure = isinstance(event, WorkersGone) and event.failure is not None
    return is_failure and after.newest is None and after.budget.highest is None


def _is_failed_without_checkpoint(transition: Transition) -> bool:
    """Whether the job has failed, and no checkpoint was ever seen in the phase."""
    has_failed = any(
        isinstance(each, FinishJob) and each.status is Status.FAILED
        for each in transition.decisions
    )
    return has_failed and transition.after.budget.highest is None


def _spent(decision: Decision) -> bool:
    return isinstance(decision, FinishJob) and decision.exit_code is ExitCode.BUDGET_SPENT


def _working_directory() -> tuple[Path, ...]:
    """Returns the working directory, unless it is a whole home or disk, or was removed."""
    with suppress(OSError):
        here = Path.cwd()
        if here not in (Path("/"), Path(os.path.expanduser("~"))):  # noqa: PTH111 (never raises)
            return (here,)
    return ()


def _unseen_in(place: Path | Uri, text: str) -> Notice:
    return Notice("checkpoints-unseen", text, place=str(place))
