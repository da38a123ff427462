"""What a check has found: one line for a person, and what to do about it. Makes the checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from supervisor.host.aside import DEADLINE, Aside


class Level(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    NOTE = "note"
    """It limits something, or is unusual, but hurts no job."""
    WRONG = "WRONG"
    """It would hurt a job."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check has found."""

    check: str
    """The name of the check."""
    level: Level
    text: str
    remedy: str = ""
    """What to do; empty: nothing, or the text says it."""


class NoAnswer(Finding):
    """A check that found nothing out, because what it asks does not answer: to ask that again would
    find no more."""


def ok(check: str, text: str) -> Finding:
    """Returns a finding that something is as it should be."""
    return Finding(check, Level.OK, text)


def note(check: str, text: str, remedy: str = "") -> Finding:
    """Returns a finding that a person should know, and that hurts no job."""
    return Finding(check, Level.NOTE, text, remedy)


def wrong(check: str, text: str, remedy: str = "") -> Finding:
    """Returns a finding that would hurt a job."""
    return Finding(check, Level.WRONG, text, remedy)


@dataclass(frozen=True, slots=True)
class Check:
    """A check that is still to be made."""

    name: str
    look: Callable[[], Iterator[Finding]]
    seconds: float = DEADLINE
    """How long it may take."""


def findings_of(checks: Iterable[Check]) -> Iterator[Finding]:
    """Make the checks one after the other, and yield what each has found as soon as it is known.

    A check that takes too long is abandoned in its thread, and a `NoAnswer` is what it has found.
    """
    for check in checks:
        try:
            yield from Aside(check.name, check.seconds).ask(partial(_all, check))
        except TimeoutError as error:
            text = error.strerror or str(error)
            remedy = "find out what hangs (dmesg, mount): a job would hang there too"
            yield NoAnswer(check.name, Level.WRONG, text, remedy)
        except OSError as error:
            yield wrong(check.name, f"cannot be checked: {error}")


def _all(check: Check) -> list[Finding]:
    return list(check.look())
