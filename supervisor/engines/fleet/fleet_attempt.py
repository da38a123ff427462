"""An attempt on many hosts: the agents' reports, added up to what one group of workers would be.

No I/O and no clock: see `fleet`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from supervisor.diagnosis.failure import Failure, Survivor, WorkerExit
from supervisor.engines.fleet.fleet_messages import (
    MAX_SUSPECTS,
    Gone,
    GroupSeen,
    NotStarted,
    Observed,
    RankDigest,
    RankEnd,
    Started,
)


@dataclass(frozen=True, slots=True)
class SeenEnd:
    """A rank's end."""

    exit: WorkerExit
    at: float
    """When it ended, on the leader's clock."""
    host_lost: bool = False
    """Whether it ended because its host was lost, or cut off: the fence killed it."""


@dataclass(slots=True)
class FleetAttempt:
    """The reports on one attempt."""

    number: int
    agents: tuple[str, ...]
    """The agent of each rank."""
    started: dict[str, Started] = field(default_factory=dict)
    not_started: dict[str, Failure] = field(default_factory=dict)
    ends: dict[int, SeenEnd] = field(default_factory=dict)
    """By rank, in the order in which they were heard of."""
    survivors: dict[str, tuple[Survivor, ...]] = field(default_factory=dict)
    gone: dict[str, Gone] = field(default_factory=dict)
    """The agents that have confirmed that nothing of theirs lives."""
    lost: dict[str, str] = field(default_factory=dict)
    """The agents that were lost while their ranks lived, each with the reason."""
    slept: dict[str, str] = field(default_factory=dict)
    """The agents whose ranks died because the leader did not run, each with what happened."""
    _ranks: dict[str, tuple[int, ...]] = field(init=False, default_factory=dict)
    """The ranks of each agent: whoever asks does so for each report of thousands of agents."""
    _pids: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._pids = [0] * len(self.agents)
        for rank, agent in enumerate(self.agents):
            self._ranks[agent] = (*self._ranks.get(agent, ()), rank)

    def ranks_of(self, agent: str) -> tuple[int, ...]:
        """Returns the ranks of an agent."""
        return self._ranks.get(agent, ())

    # --- reports ----------------------------------------------------------------------------

    def note_started(self, agent: str, report: Started) -> None:
        """The ranks of an agent run."""
        if agent in self._ranks and agent not in self.started:
            self.started[agent] = report
            for rank, pid in zip(self._ranks[agent], report.pids, strict=False):
                self._pids[rank] = pid

    def note_not_started(self, agent: str, report: NotStarted) -> None:
        """The ranks of an agent could not be started, and nothing of them lives."""
        if agent in self._ranks:
            self.not_started.setdefault(agent, report.failure)
            self.gone.setdefault(agent, Gone(report.attempt, (), GroupSeen()))

    def note_slept(self, agent: str, sleep: str, began: float) -> None:
        """The leader did not run for a while, from the time `began` on: by that the ranks of an
        agent died that the fence has killed since then."""
        ends = [self.ends[rank] for rank in self.ranks_of(agent) if rank in self.ends]
        if any(end.host_lost and end.at >= began for end in ends):
            self.slept.setdefault(agent, sleep)

    def note_observed(self, agent: str, report: Observed, at: float) -> bool:
        """An agent looked at its ranks. Returns whether any end is news."""
        if agent in self._ranks:
            self.survivors[agent] = report.survivors
        return self._note_ends(agent, report.ends, at)

    def note_gone(self, agent: str, report: Gone, at: float) -> bool:
        """Nothing of the attempt lives on an agent's host. Returns whether any end is news."""
        if agent not in self._ranks:
            return False
        if not self.gone.get(agent, Gone(0, (), GroupSeen())).ranks:
            self.gone[agent] = report
        self.survivors[agent] = ()
        news = self._note_ends(agent, [each.end for each in report.ranks], at)
        for rank in self.ranks_of(agent):  # it was killed before it started them, or was replaced
            if rank not in self.ends:
                killed = WorkerExit(rank, signal="SIGKILL")
                self.ends[rank] = SeenEnd(killed, at, host_lost=agent in self.started)
                news = True
        return news

    def note_lost(self, agent: str, why: str, at: float) -> bool:
        """The agent's host is lost: its ranks are dead, or die by the fence. Returns whether any
        end is news."""
        left = [rank for rank in self.ranks_of(agent) if rank not in self.ends]
        if left or agent not in self.gone:
            self.lost.setdefault(agent, why)
        for rank in left:
            self.ends[rank] = SeenEnd(WorkerExit(rank, signal="SIGKILL"), at, host_lost=True)
        return bool(left)

    def note_earlier(self, ended: WorkerExit, at: float) -> None:
        """A rank of an attempt that an earlier leader has started had ended like this."""
        self.ends.setdefault(ended.rank, SeenEnd(ended, at))

    def _note_ends(self, agent: str, ends: Sequence[RankEnd], at: float) -> bool:
        news = False
        for end in ends:
            rank = end.exit.rank
            if rank in self.ranks_of(agent) and rank not in self.ends:
                self.ends[rank] = SeenEnd(end.exit, at - end.ago, host_lost=end.fenced)
                news = True
        return news

    # --- what follows -----------------------------------------------------------------------

    @property
    def all_started(self) -> bool:
        """Whether every rank runs, or has run."""
        return self.started.keys() == self._ranks.keys()

    @property
    def pids(self) -> tuple[int, ...]:
        """The pid of each rank on its host; 0: not known."""
        return tuple(self._pids)

    @property
    def exits(self) -> tuple[WorkerExit, ...]:
        """The exits so far, in the order in which they were heard of."""
        return tuple(end.exit for end in self.ends.values())

    @property
    def exits_by_time(self) -> tuple[WorkerExit, ...]:
        """The exits in the order in which the ranks ended, as far as the hosts can tell."""
        ends = sorted(self.ends.values(), key=lambda end: (end.at, end.exit.rank))
        return tuple(end.exit for end in ends)

    @property
    def digests(self) -> Mapping[int, RankDigest]:
        """The digest of each rank of which there is one."""
        return {each.end.exit.rank: each for report in self.gone.values() for each in report.ranks}

    def suspects(self) -> dict[str, tuple[int, ...]]:
        """Returns the ranks that may have the root cause, by the agents that know more of them: the
        first that ended by themselves, or left a failure record."""
        digests = self.digests
        order = sorted(
            (rank for rank in digests if rank in self.ends),
            key=lambda rank: (
                not (digests[rank].ended_before_kill or digests[rank].has_record),
                self.ends[rank].at,
                rank,
            ),
        )
        found: dict[str, tuple[int, ...]] = {}
        for rank in order[:MAX_SUSPECTS]:
            agent = self.agents[rank]
            found[agent] = (*found.get(agent, ()), rank)
        return found
