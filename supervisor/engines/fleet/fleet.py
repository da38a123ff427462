"""The hosts of a fleet: who is ready, who is lost, and since when nothing of a host can live.

No I/O and no clock: every time is passed in, as seconds on the leader's clock. So the simulation
drives it as the engine does.

**The fence, seen by the leader.** An agent's ranks die `lost_after` after the agent sent the last
question that was answered. The leader answered after that: so `lost_after` after the leader's last
answer the ranks are dead or dying (`dead_at`), and `MARGIN` later they are gone (`safe_at`). What
the cluster says of a node starts waiting and replacing. It proves nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from supervisor.engines.fleet.fleet_messages import Hello, Question
from supervisor.engines.fleet.transport import Node

MARGIN = 1.0
"""Seconds from an agent's deadline until its guard has certainly killed all ranks, with what the
clocks of two hosts differ in speed."""
_LONGEST_PAUSE = 30.0
_PAUSES = (1.0, 2.0, 5.0, 10.0, _LONGEST_PAUSE)
"""Seconds before a node gets the next agent, by how many have ended there one after the other
before they have introduced themselves; then as the last."""
_SEVERAL = 3
"""So many of them are told to people."""
_REMEDY = (
    "what they wrote is on that host, in worker-*.err in session_latest/logs of Ray's --temp-dir "
    "(by default /tmp/ray)"
)
_MAX_UNANSWERED = 2
"""An agent with so many unanswered questions, beside the present one, hears us."""


@dataclass(frozen=True, slots=True)
class HostState:
    """An agent, and what the leader knows of it."""

    agent: str
    node: Node
    answered_at: float
    """When the leader last answered it; before the first answer, when the leader began: an earlier
    leader may have answered until then."""
    is_placed: bool = False
    machine: str = ""
    """Its machine: boot id and pid namespace; empty: it has not introduced itself."""
    problem: str = ""
    """Why it cannot be used, for people; empty: it can."""
    remedy: str = ""
    """What a person does about that; empty: it may go by itself."""
    sure_at: float | None = None
    """From when on it is certain that only a person can make it usable; None: it is not."""
    asked_at: float | None = None
    """When its last question came."""
    hears: bool = False
    """Whether its last question showed that our answers reach it."""
    has_standby: bool = False
    """Whether its last question said that a standby is ready there."""
    lost: str = ""
    """Why the transport has lost it; empty: it has not."""
    again_at: float = 0.0
    """If it is lost: from when on its node may get another agent."""
    announced: str = ""
    """What has announced on the host that it is about to go; empty: nothing has."""

    @property
    def leaving(self) -> str:
        """Why it is about to go, for people: the cluster says so, or the host itself; empty: it is
        not, as far as is known."""
        return self.node.draining or self.announced

    @property
    def stays(self) -> bool:
        """Whether it is of use, and will be."""
        return not (self.lost or self.problem or self.leaving)

    def questioned(self, question: Question, at: float) -> HostState:
        """Returns the host after a question that is answered at the time `at`."""
        waits = question.number - question.answered - 1
        hears = question.answered > 0 and waits <= _MAX_UNANSWERED
        return replace(
            self,
            asked_at=at,
            answered_at=at,
            hears=hears,
            has_standby=question.has_standby,
            announced=question.leaving,
        )

    def dead_at(self, lost_after: float) -> float:
        """Returns the time at which its guard kills what runs, unless it is answered again."""
        return self.answered_at + lost_after

    def safe_at(self, lost_after: float) -> float:
        """Returns the time from which nothing that it has started can live."""
        return self.dead_at(lost_after) + MARGIN

    def is_ready(self, at: float, lost_after: float) -> bool:
        """Whether ranks can be started on it."""
        is_usable = self.is_placed and self.machine and not self.problem and not self.lost
        is_heard = self.asked_at is not None and at - self.asked_at < lost_after
        return bool(is_usable and self.hears and is_heard)

    def why_not_ready(self, at: float, lost_after: float) -> str:
        """Returns why ranks cannot be started on it, for people."""
        if self.problem:
            return self.problem
        if self.lost:
            return f"its agent is lost: {self.lost}"
        if self.asked_at is None:
            heard = "nothing was heard of its agent yet"
            return heard if self.is_placed else "its agent has not started yet"
        if at - self.asked_at >= lost_after:
            return f"its agent was not heard for {at - self.asked_at:.0f} s"
        return "its agent does not hear this supervisor"


@dataclass(slots=True)
class Fleet:
    """All agents of a job, and the nodes that the cluster shows."""

    lost_after: float
    began: float
    """When this leader began; later, if answers of the leader before may hold for longer."""
    wanted: int
    """How many hosts are to have an agent: those of the full rung, and the spares."""
    hosts_per_slice: int = 1
    """How many hosts each TPU slice has; 1: none has several."""
    left_out: frozenset[str] = frozenset()
    """The nodes in quarantine, which need no agent."""
    before: tuple[str, ...] = ()
    """The nodes of the last attempt, by rank."""
    cluster_lost: tuple[float, str] | None = None
    """Since when the cluster does not answer, and why; None: it does."""
    hosts: dict[str, HostState] = field(default_factory=dict)
    """By agent; also the lost ones, until nothing of theirs can live, and their nodes may get
    another one."""
    nodes: dict[str, Node] = field(default_factory=dict)
    shown: set[str] = field(default_factory=set)
    """All nodes that the cluster has shown since this leader began."""
    failed: dict[str, int] = field(default_factory=dict)
    """How many agents in a row were lost on a node before they have introduced themselves."""

    def seen(self, nodes: Iterable[Node]) -> None:
        """These nodes are alive, and no others."""
        self.nodes = {node.id: node for node in nodes}
        self.shown |= self.nodes.keys()
        self.failed = {node: times for node, times in self.failed.items() if node in self.nodes}
        for agent, host in self.hosts.items():
            if host.node.id in self.nodes:
                self.hosts[agent] = replace(host, node=self.nodes[host.node.id])
            else:  # when it comes back, it may be set up otherwise
                self.hosts[agent] = replace(host, again_at=0.0)

    def to_place(self, at: float) -> tuple[Node, ...]:
        """Returns the nodes that need an agent and can get one."""
        return tuple(node for node in self._without_agent(at) if not node.draining)

    def passed_over(self, at: float) -> tuple[Node, ...]:
        """Returns the nodes that would need an agent, but the cluster takes them away soon: it
        starts nothing there."""
        return tuple(node for node in self._without_agent(at) if node.draining)

    def _without_agent(self, at: float) -> tuple[Node, ...]:
        """Returns the nodes that need an agent: those that have none, while too few have one that
        may be of use. A host of which nothing can live any more, as far as the fence knows, is of
        no use until it is heard again.

        Nodes that are about to go come last, and those with an agent that does not answer any more
        have one: it may come back. The hosts of a slice come one after the other.
        """
        taken = {host.node.id for host in self._that_take_a_node(at)} | self.left_out
        usable = sum(
            self._may_serve(host, at) and host.node.id not in self.left_out
            for host in self.hosts.values()
        )
        free = [node for name, node in self.nodes.items() if name not in taken]
        free.sort(key=lambda node: (bool(node.draining), node.slice))
        return tuple(free[: max(0, self.wanted - usable)])

    def _that_take_a_node(self, at: float) -> list[HostState]:
        """Returns the hosts whose nodes get no other agent now."""
        return [host for host in self.hosts.values() if not host.lost or at < host.again_at]

    def expects_more(self, at: float) -> bool:
        """Whether another host may become ready soon: one with an agent that may be of use, or a
        node on which one is to be placed."""
        ready = self.ready(at)
        return bool(self.to_place(at)) or any(
            self._may_serve(host, at) for host in self.hosts.values() if host not in ready
        )

    def _may_serve(self, host: HostState, at: float) -> bool:
        """Whether an agent may be of use: it was not heard yet, or is not fenced."""
        return host.stays and (host.asked_at is None or at < host.dead_at(self.lost_after))

    def asked_for(self, agent: str, node: Node) -> None:
        """An agent is to be placed on the node."""
        self.hosts[agent] = HostState(agent, node, self.began)

    def placed(self, agent: str, node: str) -> None:
        """An agent runs; perhaps an earlier leader has placed it."""
        where = self.nodes.get(node, Node(node, ""))
        host = self.hosts.get(agent, HostState(agent, where, self.began))
        self.hosts[agent] = replace(host, is_placed=True)

    def introduced(
        self, agent: str, hello: Hello, at: float, problem: str, remedy: str = "", wait: float = 0.0
    ) -> None:
        """An agent has introduced itself; `problem` says why it cannot be used (empty: it can), and
        `remedy` what a person does about it. The problem is certain after it was seen for `wait`
        seconds."""
        machine = f"{hello.host.boot}/{hello.host.namespace}"
        usable = (host for host in self.hosts.values() if not (host.lost or host.problem))
        others = (host for host in usable if host.agent != agent)
        twin = next((host for host in others if host.machine == machine), None)
        if twin is not None and not problem:
            problem = f"its machine ({hello.host.host}) has another agent: {twin.node.id}"
            remedy = "start one Ray node on each machine"
        before = self.hosts[agent]
        if not problem or not remedy:
            sure_at = None
        elif before.problem == problem and before.sure_at is not None:
            sure_at = before.sure_at
        else:
            sure_at = at + wait
        self.failed.pop(before.node.id, None)
        self.hosts[agent] = replace(
            before, machine=machine, problem=problem, remedy=remedy, sure_at=sure_at
        )

    def unfit(self, at: float) -> tuple[HostState, ...]:
        """Returns the hosts of which it is certain that only a person can make them usable."""
        return tuple(
            host
            for host in self._that_take_a_node(at)
            if host.sure_at is not None and at >= host.sure_at
        )

    def all_unfit(self, at: float) -> tuple[HostState, ...]:
        """Returns what `unfit` does, if these are all hosts; none otherwise."""
        there, unfit = self._that_take_a_node(at), self.unfit(at)
        seen = {host.node.id for host in unfit}
        return unfit if len(unfit) == len(there) and self.nodes.keys() <= seen else ()

    def questioned(self, agent: str, question: Question, at: float) -> None:
        """An agent's question came, and is answered at once."""
        self.hosts[agent] = self.hosts[agent].questioned(question, at)

    def lost(self, agent: str, why: str, at: float, remedy: str = "") -> HostState | None:
        """The transport has lost an agent; for `remedy` see `transport.Listener`. Returns its host,
        if it is known.

        If the agent was lost before it has introduced itself, its node gets the next one after a
        pause; and if that is so again and again, the host has a problem.
        """
        host = self.hosts.get(agent)
        if host is None:
            return None
        why = why or "no reason is known"
        host = replace(host, lost=why, again_at=at)
        if not host.machine:
            times = self.failed[host.node.id] = self.failed.get(host.node.id, 0) + 1
            pause = _LONGEST_PAUSE if remedy else _PAUSES[min(times, len(_PAUSES)) - 1]
            host = replace(host, again_at=at + pause)
            if remedy:
                host = replace(host, problem=why, remedy=remedy, sure_at=at)
            elif times == _SEVERAL:
                problem = f"{times} agents in a row have ended there before they answered: {why}"
                host = replace(host, problem=problem, remedy=_REMEDY)
        self.hosts[agent] = host
        return host

    def forget(self, at: float, used: Collection[str]) -> None:
        """Forget the lost agents of which nothing can live, except `used`."""
        for agent, host in list(self.hosts.items()):
            over_at = max(host.safe_at(self.lost_after), host.again_at)
            if host.lost and agent not in used and at >= over_at:
                del self.hosts[agent]

    def ready(self, at: float) -> tuple[HostState, ...]:
        """Returns the hosts on which ranks can be started."""
        hosts = self.hosts.values()
        return tuple(host for host in hosts if host.is_ready(at, self.lost_after))

    def leaving(self, agents: Iterable[str]) -> dict[str, str]:
        """Returns the nodes of those `agents` that are about to go, and why."""
        hosts = (self.hosts[agent] for agent in agents)
        return {host.node.id: host.leaving for host in hosts if host.leaving}

    @property
    def all_leave(self) -> bool:
        """Whether no node stays. It is not known before the cluster has shown its nodes."""
        leave = {host.node.id for host in self.hosts.values() if host.leaving and not host.lost}
        nodes = self.nodes.values()
        return bool(nodes) and all(node.draining or node.id in leave for node in nodes)

    def of_node(self, node: str) -> HostState | None:
        """Returns the host of a node: the agent that is not lost, if there is one."""
        found = [host for host in self.hosts.values() if host.node.id == node]
        return min(found, key=lambda host: bool(host.lost), default=None)

    def is_gone(self, node: str, at: float, *, found: bool) -> bool:
        """Whether a node without an agent is not shown by the cluster, or about to go, or its agent
        was silent for so long that nothing of it can live. `found`: the agent ran before this
        leader began, so one that was never heard is silent since then."""
        host = self.of_node(node)
        if host is None or host.lost:
            shown = self.nodes.get(node)
            return bool(self.nodes) and (shown is None or bool(shown.draining))
        is_silent = host.asked_at is not None or found
        return is_silent and at >= host.safe_at(self.lost_after)

    def why_not_ready(self, node: str, at: float) -> str:
        """Returns why ranks cannot be started on a node, for people."""
        host, shown = self.of_node(node), self.nodes.get(node)
        leaving = host.leaving if host is not None else shown.draining if shown is not None else ""
        if leaving:
            return f"it is about to go: {leaving}"
        if host is not None:
            return host.why_not_ready(at, self.lost_after)
        return "it has no agent yet" if shown is not None else "the cluster does not show it"

    def choose(self, size: int, before: Collection[str], at: float) -> tuple[HostState, ...]:
        """Returns `size` ready hosts of whole slices, or all if there are fewer: previous members
        first, then those with a standby.

        `before` has the nodes of the last attempt by rank: a host that stays keeps its place in the
        order.
        """
        order = {node: place for place, node in enumerate(before)}
        ready = sorted(
            self.in_whole_slices(self.ready(at)),
            key=lambda host: (
                bool(host.leaving),
                order.get(host.node.id, len(order)),
                host.node.slice,
                host.node.place_in_slice or 0,
                not host.has_standby,
                host.node.id,
            ),
        )
        return tuple(ready[:size])

    def in_whole_slices(self, hosts: Sequence[HostState]) -> tuple[HostState, ...]:
        """Returns the `hosts` but for those whose slice is not there as a whole, without hosts in
        quarantine: libtpu waits for all hosts of a slice."""
        there = Counter(host.node.slice for host in hosts if host.node.id not in self.left_out)
        return tuple(
            host
            for host in hosts
            if not host.node.slice or there[host.node.slice] >= self.hosts_per_slice
        )


def in_order(nodes: Collection[str], before: Collection[str]) -> tuple[str, ...]:
    """Returns `nodes` in the order of their ranks: who stays keeps the rank that it had, as far as
    there are so many ranks, and the others take what is left."""
    places: list[str | None] = [None] * len(nodes)
    without_place = dict.fromkeys(nodes)
    for place, node in zip(range(len(places)), before, strict=False):
        if node in without_place:
            places[place] = node
            del without_place[node]
    left = iter(without_place)
    return tuple(node if node is not None else next(left) for node in places)
