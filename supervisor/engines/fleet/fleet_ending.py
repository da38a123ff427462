"""Ends an attempt on all its hosts: kills it, waits until nothing of it can live, has it judged.

A host is done with an attempt once its agent says so, or once the fence does (`Fleet.safe_at`).
An attempt that an earlier leader has started is over as soon as the agents that had its ranks have
confirmed the end of each; else once no answer of that leader can hold any more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from supervisor.core.events import WorkersGone
from supervisor.diagnosis.failure import RankEvidence, WorkerExit
from supervisor.engines.fleet.fleet import MARGIN
from supervisor.engines.fleet.fleet_attempt import FleetAttempt
from supervisor.engines.fleet.fleet_judging import collected, judged_fleet
from supervisor.engines.fleet.fleet_means import Means
from supervisor.engines.fleet.fleet_messages import Evidences, Gone, KillRanks, ShowEvidence
from supervisor.engines.host_port import Compilations, Host
from supervisor.engines.judging import with_torn_step
from supervisor.engines.launch import Launch
from supervisor.engines.newest_step import steps_left

_EVIDENCE_WAIT = 2.0
"""Seconds to wait for the evidence of the suspects. Without it their digests are judged."""


@dataclass(slots=True)
class _Kill:
    """An attempt that is being killed, or judged."""

    launch: Launch
    exits: tuple[WorkerExit, ...]
    attempt: FleetAttempt
    everybody: bool
    """Whether an earlier leader has started it: then any agent may have ranks of it."""
    then: Callable[[], None]
    left: set[str] = field(default_factory=set)
    """The agents that may have ranks of it that live."""
    confirmed: set[str] = field(default_factory=set)
    gone_ranks: set[int] = field(default_factory=set)
    """The ranks of which the agents that had them say that they are gone."""
    world_size: int = 0
    """How many ranks it had, as such an agent says; 0: none has said so."""
    wanted: set[str] = field(default_factory=set)
    """The agents whose evidence is waited for."""
    known: dict[int, RankEvidence] = field(default_factory=dict)
    gone_at: float | None = None


class FleetEnding:
    """The attempt that is being ended, if there is one."""

    def __init__(
        self,
        means: Means,
        machine: Host,
        compile_cache: Compilations,
        over: Callable[[Launch, WorkersGone], None],
    ) -> None:
        """`over` gets an attempt that was judged, and its end."""
        self._means = means
        self._machine = machine
        self._compile_cache = compile_cache
        self._over = over
        self._kill: _Kill | None = None

    @property
    def is_on(self) -> bool:
        """Whether an attempt is being ended."""
        return self._kill is not None

    @property
    def attempt(self) -> int | None:
        """The number of that attempt."""
        return self._kill.launch.attempt if self._kill is not None else None

    def begin(
        self,
        launch: Launch,
        exits: tuple[WorkerExit, ...],
        attempt: FleetAttempt,
        then: Callable[[], None] | None = None,
        *,
        everybody: bool = False,
    ) -> None:
        """Kill an attempt on all its hosts. Once nothing of it can live, judge it, or do what
        `then` says. `everybody`: an earlier leader has started it, so any agent may have ranks of
        it."""
        kill = _Kill(launch, exits, attempt, everybody, then or self._ask_all)
        kill.left, kill.confirmed = set(attempt.agents), set(attempt.gone)
        self._kill = kill
        for agent in self._means.fleet.hosts if everybody else dict.fromkeys(attempt.agents):
            self._means.send(agent, KillRanks(self._means.lead.epoch, launch.attempt))
        self.look()

    def forget(self) -> None:
        """What was to be killed is gone, and nothing is to be judged."""
        self._kill = None

    def repeat(self, agent: str) -> None:
        """Tell an agent again what it has not done yet."""
        kill = self._kill
        if kill is None:
            return
        if agent not in kill.confirmed and (kill.everybody or agent in kill.attempt.agents):
            self._means.send(agent, KillRanks(self._means.lead.epoch, kill.launch.attempt))
        if agent in kill.wanted:
            self._ask(agent, kill)

    def note_gone(self, agent: str, report: Gone) -> None:
        """An agent says that nothing of an attempt lives on its host."""
        kill = self._kill
        if kill is None or report.attempt < kill.launch.attempt:
            return
        kill.confirmed.add(agent)
        if report.attempt == kill.launch.attempt and report.world_size:
            kill.world_size = report.world_size
            kill.gone_ranks |= {digest.end.exit.rank for digest in report.ranks}

    def note_evidence(self, agent: str, report: Evidences) -> None:
        """An agent has sent the evidence that it was asked for."""
        kill = self._kill
        if kill is not None and report.attempt == kill.launch.attempt and agent in kill.wanted:
            kill.known |= collected(report, self._means.clock.wall().timestamp())
            kill.wanted.discard(agent)
            self.look()

    def look(self) -> None:
        """Go on, if nothing of the attempt can live any more."""
        kill, now = self._kill, self._means.clock.now()
        if kill is None:
            return
        if kill.gone_at is None:
            if self._is_over(kill, now):
                kill.gone_at = now
                kill.then()
        elif not kill.wanted or now - kill.gone_at > _EVIDENCE_WAIT:
            self._judge(kill)

    def _is_over(self, kill: _Kill, now: float) -> bool:
        """Whether nothing of the attempt can live. It is asked for each report of thousands of
        agents, so it looks at no more than it must."""
        fleet, lost_after = self._means.fleet, self._means.lead.lost_after
        if kill.everybody:  # it may have ranks on hosts that nobody hears of
            if 0 < kill.world_size <= len(kill.gone_ranks):
                return True
            if now < fleet.began + lost_after + MARGIN:
                return False
            kill.left = set(fleet.hosts)
        while kill.left:
            agent = next(iter(kill.left))
            is_safe = now >= fleet.hosts[agent].safe_at(lost_after)
            if not is_safe and agent not in kill.confirmed and agent not in kill.attempt.gone:
                return False
            kill.left.remove(agent)
        return True

    def _ask_all(self) -> None:
        """Nothing of the attempt lives: ask for the evidence of the suspects."""
        kill, means = self._kill, self._means
        assert kill is not None
        now = means.clock.now()
        for agent in kill.attempt.suspects():
            if means.fleet.hosts[agent].is_ready(now, means.lead.lost_after):
                kill.wanted.add(agent)
                self._ask(agent, kill)
        self.look()

    def _ask(self, agent: str, kill: _Kill) -> None:
        ranks = kill.attempt.suspects().get(agent, ())
        self._means.send(agent, ShowEvidence(self._means.lead.epoch, kill.launch.attempt, ranks))

    def _judge(self, kill: _Kill) -> None:
        """Judge the attempt."""
        means, launch, attempt, plan = self._means, kill.launch, kill.attempt, kill.launch.plan
        for ended in kill.exits:
            if not attempt.agents:  # of an earlier leader: its exits are all that is known
                attempt.note_earlier(ended, means.clock.now())
        self._compile_cache.finish_attempt()
        exits = attempt.exits
        all_exited = len(exits) == len(attempt.agents) and all(ended.clean for ended in exits)
        closed = all_exited and plan.is_command
        left = steps_left(self._machine, plan, means.notice, closed=closed, all_exited=all_exited)
        gone = judged_fleet(
            means.clock.now(),
            self._machine,
            launch,
            attempt,
            kill.known,
            means.host_of,
            left.committed,
            means.notice,
            means.redact,
        )
        self._kill = None
        self._over(launch, replace(with_torn_step(gone, left.torn), unproven=left.unproven))
