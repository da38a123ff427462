"""A transition together with its log lines: the input of all that renders the log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from supervisor.core.events import SupervisorStarted
from supervisor.core.policy import RestartPolicy
from supervisor.narrative import tell
from supervisor.narrative.event_line import Line
from supervisor.ports import Transition


@dataclass(frozen=True, slots=True)
class Told(Transition):
    """A transition and its log lines."""

    lines: tuple[Line, ...]


def with_lines(t: Transition, policy: RestartPolicy) -> Told:
    """Returns the transition with its lines."""
    return Told(t.event, t.before, t.after, t.decisions, t.wall, tuple(tell(t, policy)))


def without_words(t: Transition) -> Told:
    """Returns the transition with no lines, for a transition whose lines cannot be made."""
    return Told(t.event, t.before, t.after, t.decisions, t.wall, ())


def told_again(transitions: Iterable[Transition], policy: RestartPolicy) -> Iterator[Told]:
    """Yields earlier transitions with their lines, each under the policy of its time.

    `policy` is the policy of the first.
    """
    for transition in transitions:
        if isinstance(transition.event, SupervisorStarted):
            policy = transition.event.policy
        yield with_lines(transition, policy)
