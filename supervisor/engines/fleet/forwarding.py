"""Posts what the engines of the agents have told them as events of the leader's own engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from supervisor.core.events import (
    CheckpointsFound,
    Noticed,
    StragglerFound,
    WorkerReported,
    WorkersIdle,
)
from supervisor.engines.fleet.fleet_attempt import FleetAttempt
from supervisor.engines.fleet.fleet_means import Means
from supervisor.engines.fleet.fleet_messages import Forwarded, Told, ToldNotice
from supervisor.engines.fleet.spare_standbys import SpareStandbys
from supervisor.engines.host_port import Compilations
from supervisor.engines.manifest_keeping import ManifestKeeping
from supervisor.engines.straggler_watch import StragglerWatch
from supervisor.host.notice import Notice
from supervisor.protocol.messages import HostTimeMessage, NoticeMessage, StepMessage
from supervisor.protocol.reading import UnreadableError, parse_object

_RECENT = 10.0
"""Seconds for which it counts that the ranks of a host were idle: two looks of its agent."""


class Forwarding:
    """Passes events on, and has the parts of the leader hear those that they need."""

    def __init__(
        self,
        means: Means,
        compile_cache: Compilations,
        spares: SpareStandbys,
        manifests: ManifestKeeping,
    ) -> None:
        self._means = means
        self._compile_cache = compile_cache
        self._spares = spares
        self._manifests = manifests
        self._stragglers = StragglerWatch()
        self._idle: dict[str, tuple[float, float]] = {}
        """By agent: when it told that its ranks are idle, and for how long they were."""
        self._has_stepped = False

    def begin(self) -> None:
        """Another attempt starts."""
        self._idle.clear()
        self._has_stepped = False

    def hear(self, agent: str, report: Told, attempt: FleetAttempt | None) -> None:
        """An agent has told something, while `attempt` runs."""
        now = self._means.clock.now()
        is_of_attempt = attempt is not None and report.attempt == attempt.number
        for event in report.events:
            if is_of_attempt or isinstance(event, ToldNotice):
                self._spares.hear(event, now)
                self._pass_on(agent, event, attempt, now)

    def _pass_on(
        self, agent: str, event: Forwarded, attempt: FleetAttempt | None, now: float
    ) -> None:
        means = self._means
        match event:
            case ToldNotice(name, text, keys, routine):
                told = f"[{means.host_of(agent)}] {means.redact(text)}"
                means.post(Noticed(now, Notice(name, told, **self._keys(keys)), routine))
                return
            case WorkerReported(message=NoticeMessage() as message):
                message = replace(message, text=means.redact(message.text))
                event = replace(event, message=message)
            case WorkerReported(_, number, rank, HostTimeMessage() as message):
                found = self._stragglers.hear(number, rank, message)
                if found is not None:
                    found = replace(found, host=means.host_of(agent))
                    means.post(StragglerFound(now, number, found))
                return
            case WorkerReported(message=StepMessage()) if not self._has_stepped:
                self._has_stepped = True
                self._compile_cache.take_over()
            case CheckpointsFound(directory=directory):
                self._manifests.found(Path(directory))
            case WorkersIdle(_, _, seconds):
                self._idle[agent] = (now, seconds)
                idle = self._idle_for(attempt, now)
                if idle is None:
                    return
                event = replace(event, seconds=idle)
        means.post(replace(event, at=now))

    def _keys(self, text: str) -> dict[str, object]:
        """Returns the keys of a notice, redacted; none if a secret was so cut out that they cannot
        be read."""
        try:
            return parse_object(self._means.redact(text).encode(), "notice")
        except UnreadableError:
            return {}

    def _idle_for(self, attempt: FleetAttempt | None, now: float) -> float | None:
        """Returns for how long the ranks of all hosts have been idle; None: some are not."""
        agents = attempt.agents if attempt is not None else ()
        looks = [self._idle.get(agent, (0.0, 0.0)) for agent in agents]
        recent = all(now - at < _RECENT for at, _ in looks)
        return min(seconds for _, seconds in looks) if looks and recent else None
