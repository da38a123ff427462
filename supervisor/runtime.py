"""The loop: take the next event or deadline, decide, journal, carry out; until the job ends.

Decisions that only stop or kill workers are carried out before the journal is written, because
killing a hung trainer must not wait for a slow disk. Decisions that start something or end the job
are carried out only after the journal is durable, so that a supervisor killed in between repeats
nothing. Observers come last: a trainer need not wait for texts that are written for people.
"""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.core.decisions import NEEDS_DURABLE_JOURNAL
from supervisor.core.events import VOLATILE, DeadlineReached, Event, StopRequested
from supervisor.core.machine import step
from supervisor.core.policy import RestartPolicy
from supervisor.core.state import JobState
from supervisor.ports import Clock, Journal, Observer, Transition, World


class Runtime:
    """Drives one job from `state` to its end."""

    def __init__(
        self,
        world: World,
        journal: Journal,
        clock: Clock,
        observers: Sequence[Observer],
        state: JobState,
        policy: RestartPolicy,
    ) -> None:
        self._world = world
        self._journal = journal
        self._clock = clock
        self._observers = observers
        self._policy = policy
        self.state = state

    def run(self, first: Event) -> JobState:
        """Handle `first` and all events after it; returns the terminal state."""
        self._handle(first)
        while not self.state.status.terminal:
            began = self._clock.now()
            events = self._world.wait(self.state.deadline)
            for event in sorted(events, key=lambda event: not isinstance(event, StopRequested)):
                self._handle(event)
            # If events came, the workers' silence is certain only up to the moment when this wait
            # began: a supervisor that was frozen meanwhile may have more events to read.
            known = began if events else self._clock.now()
            if self.state.deadline is not None and known >= self.state.deadline:
                self._handle(DeadlineReached(known, self.state.silence(known)))
        return self.state

    def _handle(self, event: Event) -> None:
        before = self.state
        after, decisions = step(before, event, self._policy)
        self.state = after
        transition = Transition(event, before, after, decisions, self._clock.wall())
        durable = [d for d in decisions if isinstance(d, NEEDS_DURABLE_JOURNAL)]
        for decision in decisions:
            if decision not in durable:
                self._world.carry_out(decision)
        if decisions or (not isinstance(event, VOLATILE) and after != before):
            self._journal.append(transition, durable=bool(durable))
        try:
            for decision in durable:
                self._world.carry_out(decision)
        finally:
            for observer in self._observers:
                observer.observe(transition)
