"""The observers of a job (see `ports.Observer`), isolated: none can harm the job.

An observer that fails is reported once and is off from then on; the job and the others go on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from supervisor.adapters.console import PlainConsole
from supervisor.adapters.systemd import service_manager
from supervisor.core.decisions import FinishJob
from supervisor.core.events import Noticed
from supervisor.core.state import Status
from supervisor.narrative.failures import last_word
from supervisor.ports import Clock, Observer, Post, Transition
from supervisor.prepare import Prepared


class Observers:
    """Observers that neither the job nor one another can be harmed by."""

    def __init__(self, observers: Sequence[Observer], tell: Callable[[str], None]) -> None:
        """`tell` is told of an observer that failed."""
        self._observers = list(observers)
        self._tell = tell

    def observe(self, transition: Transition) -> None:
        """See `ports.Observer`."""
        for observer in tuple(self._observers):
            try:
                observer.observe(transition)
            except Exception as error:
                self._observers.remove(observer)
                sys.excepthook(type(error), error, error.__traceback__)
                name = type(observer).__name__
                self._tell(f"{name} failed ({error!r}): it is off, and the job goes on")


class LastWord:
    """Tells whoever sent standard output elsewhere why the job has failed."""

    def __init__(self, place: str, complain: Callable[[str], None]) -> None:
        """The job is in `place`; `complain` says it on standard error."""
        self._place = place
        self._complain = complain

    def observe(self, transition: Transition) -> None:
        """See `ports.Observer`."""
        for decision in transition.decisions:
            if isinstance(decision, FinishJob) and decision.status is Status.FAILED:
                self._complain(last_word(decision, transition.after, self._place))


def last_words(prepared: Prepared, complain: Callable[[str], None]) -> tuple[Observer, ...]:
    """A `LastWord`, unless standard error shows what standard output does."""
    same = os.path.samestat(os.fstat(1), os.fstat(2))
    return () if same else (LastWord(str(prepared.job.place), complain),)


@dataclass(frozen=True, slots=True)
class Screen:
    """What shows the job to a person."""

    line: Callable[[str], None]
    """Shows a line of our own."""
    mirror: Callable[[bytes], None]
    """Shows the output of rank 0."""
    has_shown: Callable[[Sequence[str]], bool] = lambda lines: False
    """Whether rank 0's output has just shown these lines, so that nobody needs them once more."""
    observers: tuple[Observer, ...] = ()


def screen(prepared: Prepared, clock: Clock, post: Post, stack: ExitStack) -> Screen:
    """What shows the job on our standard output, until `stack` ends."""

    def tell(text: str) -> None:
        post(Noticed(clock.now(), text))

    if not os.isatty(1):
        console = PlainConsole(1, tell)
        stack.callback(console.close)
        return Screen(console.line, console.mirror)
    from supervisor.adapters.terminal import TerminalView  # rich, only where somebody looks

    view = TerminalView(prepared.plans, prepared.policy, clock, tell)
    stack.callback(view.close)
    return Screen(view.line, view.mirror, view.has_shown, (view,))


def told_systemd(
    prepared: Prepared,
    clock: Clock,
    call_later: Callable[[float, Callable[[], None]], None],
    stack: ExitStack,
) -> tuple[Observer, ...]:
    """What tells systemd, until `stack` ends; nothing where it does not listen."""
    manager = service_manager(os.environ, prepared.policy, clock, call_later)
    if manager is None:
        return ()
    stack.callback(manager.close)
    return (manager,)
