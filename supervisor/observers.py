"""The observers of a job (see `ports.Observer`), isolated: none can harm the job.

An observer that fails is reported once and is off from then on; the job and the others go on. What
may pass (a full disk, no free thread) is no such failure: the observer handles it and goes on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from supervisor.adapters.kernel.reactor import Reactor
from supervisor.adapters.stores.compile_cache import CompileCache
from supervisor.adapters.stores.journal import FileJournal, History, JournalError
from supervisor.adapters.stores.space import Space
from supervisor.adapters.telling.console import JsonConsole, PlainConsole
from supervisor.adapters.telling.runlog import Console, LogFormat, RunLog, as_json
from supervisor.adapters.telling.status_file import StatusFile
from supervisor.adapters.telling.summary import Summary
from supervisor.adapters.telling.systemd import (
    ServiceManager,
    Watchdog,
    notifier_of,
    watchdog_period,
)
from supervisor.checkpoint_warning import CheckpointWarning
from supervisor.core.events import Noticed
from supervisor.core.policy import RestartPolicy
from supervisor.disk_limits import DiskLimits
from supervisor.host.notice import Notice, Tell
from supervisor.narrative.failure_text import failure_line
from supervisor.narrative.told import Told, told_again, with_lines, without_words
from supervisor.ports import CallLater, Clock, Post, Storage, Transition
from supervisor.prepare import Prepared

T = TypeVar("T")
_SUMMARY = "summary"
"""The name of its view in the journal."""


class Rendering(Protocol):
    """Renders what is told, for people or for tools; or is an `Observer`, which needs less."""

    def observe(self, told: Told) -> None:
        """Take note of a transition; its lines are made once, for all."""
        ...


class IsolatedObservers:
    """Observers that can harm neither the job nor one another, and their timers."""

    def __init__(self, policy: RestartPolicy, call_later: CallLater, tell: Tell) -> None:
        """`tell` is told of an observer that failed."""
        self._policy = policy
        self._call_later = call_later
        self._tell = tell
        self._is_speechless = False
        """Whether the events of a transition could not be made."""
        self._isolated: list[_Isolated] = []

    def add(self, *observers: Rendering) -> None:
        """Add observers; they are told in the order in which they were added."""
        for observer in observers:
            self.add_with_timers(partial(_without_timers, observer))

    def add_with_timers(self, make: Callable[[CallLater], Rendering]) -> None:
        """Add the observer that `make` returns; it sets its timers by what `make` is given."""
        self._isolated.append(_Isolated(make, self._call_later, self._tell))

    def view_of(self, observer: Rendering, view: Callable[[], T]) -> Callable[[], T | None]:
        """Return `view`, something that `observer` tells of itself; None once that is off."""
        (found,) = (each for each in self._isolated if each.observer is observer)
        return partial(found.ask, view)

    def observe(self, transition: Transition) -> None:
        """See `ports.Observer`."""
        now = self._told(transition)
        for isolated in self._isolated:
            isolated.observe(now)

    def _told(self, transition: Transition) -> Told:
        try:
            return with_lines(transition, self._policy)
        except Exception as error:
            sys.excepthook(type(error), error, error.__traceback__)
            if not self._is_speechless:
                self._is_speechless = True
                text = f"what happened cannot be told ({error!r}), and the job goes on"
                self._tell(Notice("observer-failed", text, reason=repr(error)))
            return without_words(transition)


class _Isolated:
    """One observer, which is off once it or one of its timers has failed."""

    def __init__(
        self,
        make: Callable[[CallLater], Rendering],
        call_later: CallLater,
        tell: Tell,
    ) -> None:
        self._call_later = call_later
        self._tell = tell
        self._is_off = False
        self.observer = make(self._later)

    def observe(self, now: Told) -> None:
        """See `Rendering`."""
        self._try(partial(self.observer.observe, now))

    def _later(self, delay: float, callback: Callable[[], None]) -> None:
        self._call_later(delay, partial(self._try, callback))

    def ask(self, view: Callable[[], T]) -> T | None:
        """What `view`, of the observer, returns; None where it is off."""
        return self._try(view)

    def _try(self, act: Callable[[], T]) -> T | None:
        if self._is_off:
            return None
        try:
            return act()
        except Exception as error:
            self._is_off = True
            sys.excepthook(type(error), error, error.__traceback__)
            name = type(self.observer).__name__
            self._tell(
                Notice(
                    "observer-failed",
                    f"{name} failed ({error!r}): it is off, and the job goes on",
                    reason=repr(error),
                )
            )
        return None


def _without_timers(observer: Rendering, call_later: CallLater) -> Rendering:
    return observer


class FailureLine:
    """Says why the job has failed, where standard output does not show it."""

    def __init__(self, place: str, complain: Callable[[str], None]) -> None:
        """The job is in `place`; `complain` says it on standard error."""
        self._place = place
        self._complain = complain

    def observe(self, now: Told) -> None:
        """See `Rendering`."""
        line = failure_line(now.lines, now.after.directory, self._place)
        if line is not None:
            self._complain(line)


@dataclass(frozen=True, slots=True)
class Screen:
    """What shows the job to a person."""

    line: Console
    """Shows a line of our own."""
    mirror: Callable[[int, bytes], None]
    """Shows a part of the output of rank 0 in an attempt; an empty one is its end."""
    has_shown: Callable[[Sequence[str]], bool] = lambda lines: False
    """Whether rank 0's output has just shown these lines, so that nobody needs them once more."""
    observers: tuple[Rendering, ...] = ()


def screen(
    prepared: Prepared, clock: Clock, post: Post, stack: ExitStack, log_format: LogFormat
) -> Screen:
    """What shows the job on our standard output, until `stack` ends."""

    def tell(told: Notice) -> None:
        post(Noticed(clock.now(), told))

    if log_format == "json" or not os.isatty(1):
        is_json = log_format == "json"
        console = JsonConsole(1, tell, clock, as_json) if is_json else PlainConsole(1, tell)
        stack.callback(console.close)
        return Screen(console.line, console.mirror)
    from supervisor.adapters.telling.terminal import TerminalView  # rich, only where somebody looks

    view = TerminalView(prepared.plans, prepared.policy, clock, tell)
    stack.callback(view.close)
    return Screen(view.line, view.mirror, view.has_shown, (view,))


def observers_of(
    prepared: Prepared,
    clock: Clock,
    reactor: Reactor,
    storage: Storage,
    space: Space,
    cache: CompileCache,
    journal: FileJournal,
    history: History,
    log: RunLog,
    shown: Screen,
    complain: Callable[[str], None],
    stack: ExitStack,
) -> IsolatedObservers:
    """All observers of the job, in the order in which they are told; until `stack` ends.

    `complain` says a line on standard error.
    """

    def warn(told: Notice) -> None:
        log.say(told, level="warning")

    def notice(told: Notice) -> None:
        reactor.post(Noticed(clock.now(), told))

    job, plans, policy = prepared.job, prepared.plans, prepared.policy
    space.recall(history.past)
    limits = job.phases[0].init.limits
    observers = IsolatedObservers(policy, reactor.call_later, notice)
    summary = Summary(storage, plans, policy, warn)
    observers.add(log, summary, space)
    observers.view_of(summary, partial(_recall, summary, policy, journal, history, warn))()
    journal.keep(_SUMMARY, observers.view_of(summary, summary.view))
    observers.add_with_timers(partial(DiskLimits, limits, space, cache, notice))
    observers.add_with_timers(
        lambda call_later: CheckpointWarning(plans, job.model_dir, call_later, warn, notice)
    )
    if job.remote is not None:
        observers.add(StatusFile(storage, policy, notice))
    observers.add(*shown.observers)
    if (notifier := notifier_of(os.environ)) is not None:
        stack.callback(notifier.close)
        if (period := watchdog_period(os.environ)) is not None:
            Watchdog(notifier, period, reactor.call_later)
        observers.add_with_timers(partial(ServiceManager, notifier, policy, clock))
    if not os.path.samestat(os.fstat(1), os.fstat(2)):
        observers.add(FailureLine(str(job.place), complain))
    return observers


def _recall(
    summary: Summary, policy: RestartPolicy, journal: FileJournal, history: History, warn: Tell
) -> None:
    """Have the summary know what was before this supervisor."""
    snapshot = history.snapshot
    if snapshot is None or summary.restore(snapshot.views.get(_SUMMARY)):
        first = snapshot.policy if snapshot is not None else None
        summary.replay(told_again(history.transitions, first or policy))
        return
    try:
        summary.replay(told_again(journal.everything(history), policy))
    except JournalError as error:
        text = f"the summary lacks what cannot be read: {error}"
        warn(Notice("summary-incomplete", text, reason=str(error)))
