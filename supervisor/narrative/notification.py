"""Chooses what people are notified of, and makes a message of it: a fold over the log's events.

All lines of one transition make one message. So an attempt that fails and is restarted at once is
one message, which says what happened, why, what the supervisor does and what a person should do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from supervisor.core.state import Status
from supervisor.narrative.event_line import MAIN, Line

_TITLES = (
    "job-ended",
    "attempt-failed",
    "launch-failed",
    "process-unkillable",
    "rung-changed",
    "capacity-awaited",
    "livelock",
    "attempt-started",
)
"""The events that a message may be about; the first of them in a transition is its title."""
_TOLD = frozenset(
    {
        *_TITLES,
        "advice",
        "attempt-stopped",
        "backoff",
        "budget-used",
        "devices-missing",
        "notice-used",
        "success-doubted",
        "verdict",
        "verdict-grounds",
    }
)
"""The events whose sentences are in a message."""
_KEYS = {
    "attempt-failed": (
        "attempt",
        "rank",
        "step",
        "code",
        "verdict",
        "cause",
        "root_cause",
        "place",
    ),
    "rung-changed": ("before", "num_devices"),
    "advice": ("advice",),
}
"""By event, the keys that a message has too."""


@dataclass(frozen=True, slots=True)
class Notification:
    """A message to people."""

    kinds: tuple[str, ...]
    """What it tells of, in the words of `init.notify.on`."""
    title: str
    details: tuple[str, ...]
    """Further sentences, in the order of the log."""
    keys: dict[str, Any] = field(default_factory=dict)
    """The facts, for tools."""


class Notifications:
    """Makes the messages of a job."""

    def __init__(self) -> None:
        self._has_ended = False
        """Whether an attempt of the phase has ended, and none was started since."""
        self._awaits = False
        """Whether people know that the job waits for devices."""

    def take(self, lines: Sequence[Line]) -> Notification | None:
        """Returns the message about the lines of one transition; None: they are not worth one."""
        kinds = list(dict.fromkeys(kind for line in lines for kind in self._kinds(line)))
        if not kinds:
            return None
        title = next(line for name in _TITLES for line in lines if line.event == name)
        told = [line for line in lines if line.event in _TOLD and line is not title]
        return Notification(
            tuple(kinds), _sentence(title), tuple(map(_sentence, told)), _facts(lines)
        )

    def _kinds(self, line: Line) -> Iterator[str]:
        keys = line.keys
        match line.event:
            case "attempt-failed" | "launch-failed":
                yield "failure"
            case "attempt-started" if self._has_ended:
                yield "restart"
            case "rung-changed" if keys["num_devices"] < keys["before"]:
                yield "shrink"
            case "job-ended":
                yield "finish"
        if self._needs_person(line):
            yield "person"
        self._follow(line)

    def _needs_person(self, line: Line) -> bool:
        match line.event:
            case "capacity-awaited":
                return not self._awaits
            case "livelock":
                return line.level == "warning"
            case "job-ended":
                return line.keys["status"] is Status.FAILED
        return line.event == "process-unkillable"

    def _follow(self, line: Line) -> None:
        match line.event:
            case "job-resumed" | "attempt-ended" | "launch-failed":
                self._has_ended = True
            case "phase-began":
                self._has_ended = False
            case "attempt-started":
                self._has_ended = self._awaits = False
            case "capacity-awaited":
                self._awaits = True


def _sentence(line: Line) -> str:
    return line.text if line.source == MAIN else f"{line.source}: {line.text}"


def _facts(lines: Iterable[Line]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for line in lines:
        if line.event == "job-ended":
            found |= {"status": line.keys["status"], "exit_code": line.keys["code"]}
        for key in _KEYS.get(line.event, ()):
            found[key] = line.keys[key]
    return found
