"""Makes the observers of a job (see `ports.Observer`) and isolates them: none can harm the job.

If an observer raises, it is reported once and is off from then on; the job and the other observers
go on. An observer handles errors that may pass (a full disk, no free thread) itself, and stays on.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, Protocol, TypeVar

from supervisor.adapters.stores.compile_cache import CompileCache
from supervisor.adapters.stores.journal import FileJournal, History, JournalError
from supervisor.adapters.stores.storage import LocalStorage
from supervisor.adapters.telling.console import JsonConsole, PlainConsole
from supervisor.adapters.telling.deliveries import CommandDelivery, WebhookDelivery
from supervisor.adapters.telling.goodput_keeper import GoodputKeeper
from supervisor.adapters.telling.messenger import Messenger, Receiver
from supervisor.adapters.telling.metrics_keeper import MetricsKeeper
from supervisor.adapters.telling.runlog import RunLog, ShowLine, as_json
from supervisor.adapters.telling.status_file import IN_BUCKET, ON_DISK, StatusFile
from supervisor.adapters.telling.summary import Summary
from supervisor.adapters.telling.systemd import (
    ServiceManager,
    SystemdWatchdog,
    notifier_of,
    watchdog_period,
)
from supervisor.checkpoint_warning import CheckpointWarning
from supervisor.config.notify import Notify, checked_url
from supervisor.core.policy import RestartPolicy
from supervisor.core.state import JobState
from supervisor.disk_limits import DiskLimits
from supervisor.goodput.kept import GOODPUT
from supervisor.host.invocation import own_invocation
from supervisor.host.notice import Notice, Tell
from supervisor.narrative.attempt_records import SUMMARY
from supervisor.narrative.failure_text import failure_line
from supervisor.narrative.rendered import (
    RenderedTransition,
    render_history,
    with_lines,
    without_lines,
)
from supervisor.open_model_dir import OpenModelDir
from supervisor.ports import CallLater, ProcessStarter, Transition
from supervisor.prepare import Prepared
from supervisor.supervision import Supervision

T = TypeVar("T")
Made = TypeVar("Made", bound="LineObserver", covariant=True)


class LongestSave:
    """The longest save of the job so far, for the threads that ask whether a save still fits."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds

    def observe(self, told: Transition) -> None:
        """See `Observer`."""
        self.seconds = told.after.longest_save


class LineObserver(Protocol):
    """Shows or writes transitions with their lines, for people or for tools.

    An `Observer` fits too: it ignores the lines.
    """

    def observe(self, told: RenderedTransition) -> None:
        """Take note of a transition; all observers get the same lines."""
        ...


class IsolatedObservers:
    """Observers whose errors, also in timers, harm neither the job nor another observer."""

    def __init__(self, policy: RestartPolicy, call_later: CallLater, tell: Tell) -> None:
        """`tell` gets a notice about each observer that failed."""
        self._policy = policy
        self._call_later = call_later
        self._tell = tell
        self._line_failure_reported = False
        """Whether making the lines of a transition has failed, which is reported once."""
        self._isolated: list[_Isolated[LineObserver]] = []

    def add(self, *observers: LineObserver) -> None:
        """Add observers; each transition goes to them in the order in which they were added."""
        for observer in observers:
            self.add_with_timers(partial(_without_timers, observer))

    def add_with_timers(self, make: Callable[[CallLater], Made]) -> Made:
        """Add and return the observer that `make` returns; it must set its timers with the
        `CallLater` that `make` gets."""
        isolated = _Isolated(make, self._call_later, self._tell)
        self._isolated.append(isolated)
        return isolated.observer

    def isolated_view(
        self, observer: LineObserver, view: Callable[[], T]
    ) -> Callable[[], T | None]:
        """Returns a function that calls `view`, a method of `observer`, and returns its result;
        None if it fails, or once the observer is off."""
        (found,) = (each for each in self._isolated if each.observer is observer)
        return partial(found.call, view)

    def observe(self, transition: Transition) -> None:
        """See `ports.Observer`."""
        now = self._with_lines(transition)
        for isolated in self._isolated:
            isolated.observe(now)

    def _with_lines(self, transition: Transition) -> RenderedTransition:
        try:
            return with_lines(transition, self._policy)
        except Exception as error:
            sys.excepthook(type(error), error, error.__traceback__)
            if not self._line_failure_reported:
                self._line_failure_reported = True
                text = f"an event cannot be rendered ({error!r}); the job goes on"
                self._tell(Notice("observer-failed", text, reason=repr(error)))
            return without_lines(transition)


class _Isolated(Generic[Made]):
    """One observer, which is off once it or one of its timers has failed."""

    def __init__(
        self,
        make: Callable[[CallLater], Made],
        call_later: CallLater,
        tell: Tell,
    ) -> None:
        self._call_later = call_later
        self._tell = tell
        self._is_off = False
        self.observer = make(self._later)

    def observe(self, now: RenderedTransition) -> None:
        """See `LineObserver`."""
        self._try(partial(self.observer.observe, now))

    def _later(self, delay: float, callback: Callable[[], None]) -> None:
        self._call_later(delay, partial(self._try, callback))

    def call(self, view: Callable[[], T]) -> T | None:
        """Returns the result of `view`, a method of the observer; None if it fails or is off."""
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


def _without_timers(observer: LineObserver, call_later: CallLater) -> LineObserver:
    return observer


class FailureLine:
    """Writes to standard error why the job has failed."""

    def __init__(self, place: str, complain: Callable[[str], None]) -> None:
        """`place` is where the job is, for people; `complain` writes to standard error."""
        self._place = place
        self._complain = complain

    def observe(self, now: RenderedTransition) -> None:
        """See `LineObserver`."""
        line = failure_line(now.lines, now.after.directory, self._place)
        if line is not None:
            self._complain(line)


@dataclass(frozen=True, slots=True)
class Display:
    """The means to show the job to a person."""

    line: ShowLine
    """Shows a line of the supervisor."""
    mirror: Callable[[int, bytes], None]
    """Shows a part of rank 0's output in an attempt; empty bytes mark the end of the output."""
    has_shown: Callable[[Sequence[str]], bool] = lambda lines: False
    """Whether rank 0's output has just shown these lines, so that they need not be repeated."""
    observers: tuple[LineObserver, ...] = ()


def make_display(supervision: Supervision) -> Display:
    """Returns what shows the job on our standard output, until the run ends."""
    clock, tell = supervision.clock, supervision.notice
    is_json = supervision.options.log_format == "json"
    if is_json or not _is_read_by_a_person(os.environ):
        console = JsonConsole(1, tell, clock, as_json) if is_json else PlainConsole(1, tell)
        supervision.stack.callback(console.close)
        return Display(console.line, console.mirror, console.has_shown)
    from supervisor.adapters.telling.terminal import TerminalView  # rich, only where somebody looks

    view = TerminalView(supervision.prepared.plans, supervision.prepared.policy, clock, tell)
    supervision.stack.callback(view.close)
    return Display(view.line, view.mirror, view.has_shown, (view,))


def _is_read_by_a_person(environ: Mapping[str, str]) -> bool:
    """Whether standard output is a terminal that can draw. A CI service that gives a terminal to
    its jobs keeps all that is written to it as a log."""
    is_ci = environ.get("CI", "").lower() not in ("", "0", "false")
    return os.isatty(1) and environ.get("TERM", "") not in ("", "dumb") and not is_ci


def observers_of(
    supervision: Supervision,
    opened: OpenModelDir,
    cache: CompileCache,
    log: RunLog,
    display: Display,
    helper_environ: Mapping[str, str],
) -> IsolatedObservers:
    """Returns all observers of the job, in the order in which they get transitions; they work until
    the run ends. The commands of notifications have the environment `helper_environ`."""
    prepared, redact = supervision.prepared, supervision.redactor.text
    job, plans, policy = prepared.job, prepared.plans, prepared.policy
    notice, space, warn = supervision.notice, opened.space, partial(log.say, level="warning")
    space.recall(opened.history.past)
    limits = job.phases[0].init.limits
    observers = IsolatedObservers(policy, supervision.reactor.call_later, notice)
    _add_kept(observers, prepared, opened, log, warn)
    observers.add(MetricsKeeper(job.model_dir, plans, redact, notice))
    observers.add_with_timers(partial(DiskLimits, limits, space, cache, notice))
    warning = observers.add_with_timers(
        lambda call_later: CheckpointWarning(plans, job.model_dir, call_later, warn, notice)
    )
    _add_status_file(observers, supervision, opened.history, warning)
    observers.add(*display.observers)
    _add_messenger(observers, supervision, helper_environ)
    _add_service_manager(observers, supervision)
    if not os.path.samestat(os.fstat(1), os.fstat(2)):
        observers.add(FailureLine(str(job.shown_model_dir), supervision.complain))
    return observers


def _add_kept(
    observers: IsolatedObservers, prepared: Prepared, opened: OpenModelDir, log: RunLog, warn: Tell
) -> None:
    """Add run.log, `opened.space`, and those whose view the journal keeps, which are restored."""
    journal, history = opened.journal, opened.history
    summary = Summary(opened.storage, prepared.plans, prepared.policy, warn)
    observers.add(log, summary, opened.space)
    restore = partial(_restore_summary, summary, prepared.policy, journal, history, warn)
    observers.isolated_view(summary, restore)()
    journal.add_view(SUMMARY, observers.isolated_view(summary, summary.view))
    keeper = GoodputKeeper(log.say)
    observers.add(keeper)
    observers.isolated_view(keeper, partial(keeper.restore, history))()
    journal.add_view(GOODPUT, observers.isolated_view(keeper, keeper.view))


def _add_status_file(
    observers: IsolatedObservers,
    supervision: Supervision,
    history: History,
    warning: CheckpointWarning,
) -> None:
    prepared, clock, notice = supervision.prepared, supervision.clock, supervision.notice
    period = ON_DISK if prepared.job.remote is None else IN_BUCKET
    storage = LocalStorage(prepared.job.model_dir)  # nothing is deleted to make room for this file
    redact = supervision.redactor.text
    if (invocation := own_invocation()) is not None:
        invocation = replace(invocation, command=redact(invocation.command))
    make = partial(StatusFile, storage, prepared.policy, clock, period, notice)

    def unseen() -> str | None:
        return None if (told := warning.told) is None else redact(told)

    def checkpoints(state: JobState) -> str:
        plan = prepared.plans[state.phase].saving_in(state.checkpoints)
        return redact(str(plan.checkpoint_dir))

    make = partial(make, invocation=invocation, unseen=unseen, checkpoints=checkpoints)
    file = observers.add_with_timers(make)
    observers.isolated_view(file, partial(file.restore, history.transitions))()
    supervision.stack.callback(observers.isolated_view(file, file.close))


def _add_messenger(
    observers: IsolatedObservers, supervision: Supervision, helper_environ: Mapping[str, str]
) -> None:
    """Add what sends the messages of `init.notify`, if there are any."""
    job, redact = supervision.prepared.job, supervision.redactor.text
    if not job.phases[0].init.notify:
        return
    receivers = receivers_of(job.phases[0].init.notify, supervision.guard, helper_environ, redact)
    place, host = str(job.shown_model_dir), socket.gethostname()
    messenger = Messenger(receivers, place, host, redact, supervision.notice)
    observers.add(messenger)

    def close() -> None:
        if (undelivered := messenger.close()) is not None:
            supervision.complain(undelivered)

    supervision.stack.callback(observers.isolated_view(messenger, close))


def _add_service_manager(observers: IsolatedObservers, supervision: Supervision) -> None:
    """Add what tells systemd of the job, and feed its watchdog, if it started us."""
    if (notifier := notifier_of(os.environ)) is None:
        return
    supervision.stack.callback(notifier.close)
    if (period := watchdog_period(os.environ)) is not None:
        SystemdWatchdog(notifier, period, supervision.reactor.call_later)
    policy, clock = supervision.prepared.policy, supervision.clock
    observers.add_with_timers(partial(ServiceManager, notifier, policy, clock))


def receivers_of(
    notify: Sequence[Notify],
    starter: ProcessStarter,
    environ: Mapping[str, str],
    redact: Callable[[str], str],
) -> list[Receiver]:
    """Returns the receivers of `init.notify`."""
    return [
        _receiver(f"init.notify[{index}]", each, starter, environ, redact)
        for index, each in enumerate(notify)
    ]


def _receiver(
    key: str,
    notify: Notify,
    starter: ProcessStarter,
    environ: Mapping[str, str],
    redact: Callable[[str], str],
) -> Receiver:
    kinds = frozenset[str](notify.on)
    if notify.webhook is None:
        command = CommandDelivery(notify.command or (), environ, starter, redact)
        return Receiver(f"the command of {key}", kinds, command)
    name, url, problem = f"the webhook of {key}", notify.webhook.url_in(environ), ""
    try:
        checked_url(url)
    except ValueError as error:
        what = str(error) if url else "is not set"
        problem = f"the variable {notify.webhook.env} {what}"
    return Receiver(name, kinds, WebhookDelivery(url, notify.format or "slack"), problem)


def _restore_summary(
    summary: Summary, policy: RestartPolicy, journal: FileJournal, history: History, warn: Tell
) -> None:
    """Restore the summary's view from the journal's snapshot and replay the transitions since; if
    the view cannot be used, replay the whole journal."""
    snapshot = history.snapshot
    if snapshot is None or summary.restore(snapshot.views.get(SUMMARY)):
        first = snapshot.policy if snapshot is not None else None
        summary.replay(render_history(history.transitions, first or policy))
        return
    try:
        summary.replay(render_history(journal.all_transitions(history), policy))
    except JournalError as error:
        text = f"the summary lacks what cannot be read: {error}"
        warn(Notice("summary-incomplete", text, reason=str(error)))
