"""A transition together with its log lines: the input of all that renders the log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from supervisor.core.events import SupervisorStarted
from supervisor.core.policy import RestartPolicy
from supervisor.narrative import render
from supervisor.narrative.event_line import Line
from supervisor.ports import Transition


@dataclass(frozen=True, slots=True)
class RenderedTransition(Transition):
    """A transition and its log lines."""

    lines: tuple[Line, ...]


def with_lines(t: Transition, policy: RestartPolicy) -> RenderedTransition:
    """Returns the transition with its lines."""
    return RenderedTransition(
        t.event, t.before, t.after, t.decisions, t.wall, tuple(render(t, policy))
    )


def without_lines(t: Transition) -> RenderedTransition:
    """Returns the transition with no lines, for a transition whose lines cannot be made."""
    return RenderedTransition(t.event, t.before, t.after, t.decisions, t.wall, ())


def render_history(
    transitions: Iterable[Transition], policy: RestartPolicy
) -> Iterator[RenderedTransition]:
    """Yields earlier transitions with their lines, each under the policy of its time.

    `policy` is the policy of the first.
    """
    for transition in transitions:
        if isinstance(transition.event, SupervisorStarted):
            policy = transition.event.policy
        yield with_lines(transition, policy)
