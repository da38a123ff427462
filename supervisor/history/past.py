"""Facts about a job's past that commands need again and again.

They are kept beside its state, so that no command reads thousands of records for them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from supervisor.core.decisions import TellRecovery
from supervisor.core.events import LaunchFailed, SupervisorStarted, WorkersGone
from supervisor.ports import Transition


@dataclass(frozen=True, slots=True)
class Past:
    """Facts about a job's past: a fold over all its transitions."""

    directories: tuple[str, ...] = ()
    """The folders of its phases, oldest first."""
    last_failed: int | None = None
    """The number of the last attempt that failed; None: none has."""
    stepped: tuple[int, ...] = ()
    """The indices of the phases in which an attempt has reported a step."""
    last_end: WorkersGone | None = None
    """The end of the last attempt; None: none has ended."""
    was_asked: bool = False
    """True: the job was being stopped when the last attempt ended."""
    reached: int | None = None
    """The highest step that was run before a recovery which is not over; None: none is known, or no
    recovery goes on."""
    version: str = ""
    """The version of the last supervisor; empty: it did not record it."""

    def after(self, transition: Transition) -> Past:
        """Returns the past after one more transition."""
        event, before, after = transition.event, transition.before, transition.after
        past = self
        if after.directory is not None and after.directory not in past.directories:
            past = replace(past, directories=(*past.directories, after.directory))
        if isinstance(event, WorkersGone | LaunchFailed) and event.failure is not None:
            past = replace(past, last_failed=event.attempt)
        if isinstance(event, SupervisorStarted):
            past = replace(past, version=event.version)
        if isinstance(event, WorkersGone):
            past = past._ended(event, before.phase, was_asked=before.drains)
        told = any(isinstance(decision, TellRecovery) for decision in transition.decisions)
        if told or after.phase != before.phase:
            past = replace(past, reached=None)
        return past

    def _ended(self, event: WorkersGone, phase: int, *, was_asked: bool) -> Past:
        known = [step for step in (self.reached, event.step) if step is not None]
        stepped = self.stepped
        if event.step is not None and not event.step_recognised and phase not in stepped:
            stepped = (*stepped, phase)
        reached = max(known, default=None)
        return replace(self, last_end=event, was_asked=was_asked, stepped=stepped, reached=reached)
