"""Real agents and leaders in virtual time: only ranks, guards and the network are simulated.

A message may get lost or come twice; a link may be cut one way. Agents, hosts and leaders die or
stand still at any moment. `World.check` says what must hold whenever ranks are started.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, cast

from supervisor.config.plan import PhasePlan
from supervisor.core.events import (
    BadUnit,
    DevicesProbed,
    Event,
    HostsLeaving,
    LaunchFailed,
    Noticed,
    StopRequested,
    StopSource,
    WorkerReported,
    WorkersGone,
    WorkersObserved,
    WorkersStarted,
)
from supervisor.core.state import JobState
from supervisor.diagnosis.failure import Failure, RankEvidence, WorkerExit
from supervisor.diagnosis.outcome import Charge
from supervisor.engines.fleet.agent import Agent
from supervisor.engines.fleet.fleet import in_order
from supervisor.engines.fleet.fleet_engine import FleetEngine
from supervisor.engines.fleet.fleet_means import Leadership
from supervisor.engines.fleet.fleet_messages import Hello, command_of, encoded
from supervisor.engines.fleet.transport import Listener, Node
from supervisor.engines.judging import Seen
from supervisor.engines.launch import Launch
from supervisor.history.fold import History
from supervisor.history.writer import writer
from supervisor.host.identity import Identity
from supervisor.host.notice import Notice
from supervisor.ports import Transition
from supervisor.protocol.messages import StepMessage
from tests.engines.benches import NoCache, launch_in

LOST_AFTER = 10.0
_GUARD = 0.2
"""Seconds in which a guard kills."""
_STEP = 1.0
"""Seconds of a step."""
_STANDBY = 3.0
"""Seconds that a standby takes to get ready."""
PROBE = 5.0
"""Seconds that a probe of devices takes."""
BROKEN = "INTERNAL: uncorrectable ECC error: simulated device 0"
"""What a rank says before it fails because of its devices."""


class Process:
    """Something with a main loop: an agent or a leader. Implements `host_port.MainLoop`."""

    stop_requests = 0

    def __init__(self, world: World) -> None:
        self.world = world
        self.is_alive = True
        self.is_frozen = False
        self._waiting: list[Callable[[], None]] = []
        self.on_event: Callable[[Event], None] = lambda event: None

    def run(self, callback: Callable[[], None]) -> None:
        """Run it now, or when the process goes on."""
        if self.is_frozen:
            self._waiting.append(callback)
        elif self.is_alive:
            callback()

    def thaw(self) -> None:
        """Go on with what waits."""
        self.is_frozen = False
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            self.run(callback)

    def watch(self, descriptor: int, callback: Callable[[], None]) -> None:
        """See `MainLoop`: there is no descriptor."""

    def forget(self, descriptor: int) -> None:
        """See `MainLoop`."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> None:
        """See `MainLoop`."""
        self.world.later(delay, lambda: self.run(callback))

    def post(self, event: Event) -> None:
        """See `MainLoop`."""
        self.world.later(0.0, lambda: self.run(lambda: self.on_event(event)))

    def now(self) -> float:
        """See `ports.Clock`."""
        return self.world.now

    def wall(self) -> datetime:
        """See `ports.Clock`."""
        return datetime.fromtimestamp(self.world.now, UTC)


@dataclass(eq=False)
class SimulatedHost:
    """A machine with an agent, its guard, and its ranks. Implements `Ranks`."""

    world: World
    name: str
    agent_name: str
    process: Process
    agent: Agent = field(init=False)
    to_agent: bool = True
    to_leader: bool = True
    deadline: float | None = None
    launch: Launch | None = None
    """The attempt whose ranks live here."""
    ended: list[WorkerExit] = field(default_factory=list)
    by_itself: set[int] = field(default_factory=set)
    evidence: Sequence[RankEvidence] = ()
    seen: Seen = field(default_factory=Seen)
    present: Launch | None = None
    last_words: str = ""
    has_standby: bool = False
    can_prepare: bool = True
    """Whether it is known what a standby should import."""
    prepares: int = 0
    """How often it was told to prepare a standby, and could."""
    renewals: int = 0
    """How often it was told that the guard has killed its standby."""
    probes: int = 0
    """How often it has probed its devices."""
    takes: bool = False
    """Whether its last rank was a standby before."""

    def kill_at(self, deadline: float) -> None:
        """The guard hears of its deadline."""
        self.guard()
        self.deadline = deadline
        self.world.later(deadline - self.world.now, self.guard)

    def guard(self) -> None:
        """The guard's tick: it kills once its deadline has come, unless it is frozen too."""
        is_due = self.deadline is not None and self.world.now >= self.deadline
        if is_due and not self.process.is_frozen:
            self.has_standby = False
            self.end_ranks()

    def end_ranks(self) -> None:
        """All ranks die by SIGKILL."""
        if self.launch is None:
            return
        ranks, self.launch = self.launch.ranks, None
        done = {each.rank for each in self.ended}
        self.ended += [WorkerExit(rank, signal="SIGKILL") for rank in ranks if rank not in done]
        self._observe()

    def fail_rank(self, last_words: str = "") -> None:
        """A rank fails by itself, after these last words."""
        if self.launch is None or self.ended or self.process.is_frozen:
            return
        self.last_words = last_words
        rank = self.launch.ranks[0]
        self.world.failed.add(self.launch.attempt)
        self.by_itself.add(rank)
        self.ended.append(WorkerExit(rank, code=1))
        if len(self.launch.ranks) == len(self.ended):
            self.launch = None
        self._observe()

    def _observe(self) -> None:
        if self.present is not None:
            attempt, exits = self.present.attempt, tuple(self.ended)
            self.process.post(WorkersObserved(self.world.now, attempt, (), exits))

    # --- `Ranks` ----------------------------------------------------------------------------

    def start(self, launch: Launch, newest: int | None, cache: Mapping[str, str]) -> None:
        """See `Ranks`."""
        self.world.check(launch.attempt)
        self.launch = self.present = launch
        self.ended, self.by_itself, self.last_words = [], set(), ""
        self.takes, self.has_standby = self.has_standby, False
        pids = tuple(1000 + rank for rank in launch.ranks)
        now = self.world.now
        self.process.post(WorkersStarted(now, launch.attempt, pids, now, self.takes))
        self.process.call_later(self.world.first_step, lambda: self._step(launch, 1))
        self.guard()
        self._look_again(launch)

    def _step(self, launch: Launch, step: int) -> None:
        """The rank completes a step. After its first one a standby is prepared beside it."""
        if self.launch is not launch:
            return
        now, rank = self.world.now, launch.ranks[0]
        self.process.post(WorkerReported(now, launch.attempt, rank, StepMessage(step)))
        self.process.call_later(_STEP, lambda: self._step(launch, step + 1))
        if step == 1:
            self.process.call_later(_STANDBY, self._standby_is_ready)

    def _standby_is_ready(self) -> None:
        self.has_standby = True

    def prepare(self, launch: Launch, newest: int | None, cache: Mapping[str, str]) -> bool:
        """See `Ranks`."""
        assert self.launch is None, "its own standby is prepared beside its ranks"
        if self.can_prepare:
            self.prepares += 1
            self.process.call_later(_STANDBY, self._standby_is_ready)
        return self.can_prepare

    def renew_standbys(self) -> None:
        """See `Ranks`."""
        self.has_standby = False
        self.renewals += 1

    def _look_again(self, launch: Launch) -> None:
        """Tell how the ranks are every few seconds, as an engine does."""
        if self.present is launch:
            self._observe()
            self.process.call_later(5.0, lambda: self._look_again(launch))

    def kill(self, launch: Launch) -> None:
        """See `Ranks`."""
        before = {each.rank for each in self.ended}

        def gone() -> None:
            self.end_ranks()
            self.present = None
            self.evidence = tuple(
                RankEvidence(
                    each,
                    output=self.last_words if each.rank in self.by_itself else "",
                    ended_before_kill=each.rank in before,
                )
                for each in self.ended
            )
            self.process.post(WorkersGone(self.world.now, launch.attempt, None, None, None, None))

        self.process.call_later(0.01, gone)

    def terminate(self, attempt: int, *, interrupt: bool = False) -> None:
        """See `Ranks`."""

    def dump_stacks(self, attempt: int) -> None:
        """See `Ranks`."""

    def probe(self, plan: PhasePlan, number: int) -> None:
        """See `Ranks`."""
        assert self.launch is None, "a rank has the devices"
        self.probes += 1

        def answer() -> None:
            is_bad = self.name in self.world.bad_devices
            bad = tuple(BadUnit(unit, "it computes wrong results") for unit in plan.units if is_bad)
            healthy = () if is_bad else plan.units
            self.process.post(DevicesProbed(self.world.now, number, healthy, bad))

        self.process.call_later(PROBE, answer)

    def name_holders(self) -> None:
        """See `Ranks`."""


class _NoFiles:
    """The leader's own host: nothing is committed, and no file is there."""

    def newest_checkpoint(self, *_: object, **__: object) -> None:
        """There is none."""

    def unproven_step(self, *_: object) -> None:
        """There is none."""

    def torn_step(self, *_: object, **__: object) -> None:
        """There is none."""

    def free_bytes(self, *_: object) -> None:
        """Nobody knows."""

    def read(self, path: Path, *_: object) -> bytes:
        """It is not there."""
        raise FileNotFoundError(path)


class World:
    """The cluster, its network, and the time."""

    def __init__(self, seed: int, nodes: int, *, loses: float = 0.02) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.loses = loses
        self.hosts: dict[str, SimulatedHost] = {}
        """By agent."""
        self.nodes = {f"n{number}": Node(f"n{number}", "10.0.0.1") for number in range(nodes)}
        self._names = itertools.count(nodes)
        self.announced: set[str] = set()
        """The nodes whose machines have announced that they are about to go."""
        self.is_headless = False
        """Whether the cluster does not answer."""
        self.first_step = _STEP
        """Seconds from the start of a rank until its first step."""
        self.bad_devices: set[str] = set()
        """The nodes with bad devices."""
        self.failed: set[int] = set()
        """The attempts of which a rank failed by itself."""
        self.versions: dict[str, str] = {}
        """The version of supervise on each node that has another one."""
        self.token: str | None = None
        """The token in the owner file of model_dir; None: hosts are not compared by it."""
        self.config = ""
        """The digest of the config with which all hosts were started; empty: they are not told."""
        self.configs: dict[str, str] = {}
        """The digest on each node that has another one."""
        self.blind: set[str] = set()
        """The nodes that do not see model_dir."""
        self.unfit: dict[str, tuple[str, str]] = {}
        """The nodes on which no agent starts: why, and what a person does."""
        self.placings: Counter[str] = Counter()
        """How often an agent was to be started, by node."""
        self.leader: Leader | None = None
        self.history = History()
        """What the journal has of the leaders so far: their configs, and the ends of attempts."""
        self.messages = 0

    def later(self, delay: float, callback: Callable[[], None]) -> None:
        """Call it after so many seconds."""
        heapq.heappush(self._heap, (self.now + max(0.0, delay), next(self._order), callback))

    def pass_time(self, until: float) -> None:
        """Let everything happen that is due."""
        while self._heap and self._heap[0][0] <= until:
            self.now, _, callback = heapq.heappop(self._heap)
            callback()
        self.now = until

    def carry(self, deliver: Callable[[], None], *, is_open: bool) -> None:
        """Carry a message, unless it gets lost; perhaps twice. Each takes the same time."""
        self.messages += 1
        copies = (self.random.random() >= self.loses) + (self.random.random() < self.loses)
        for _ in range(copies if is_open else 0):
            self.later(0.02, deliver)

    def check(self, attempt: int) -> None:
        """A rank of an attempt is started now: none of another one may live.

        A frozen one does not live if its guard kills it as soon as it can.
        """
        for host in self.hosts.values():
            other = host.launch
            is_doomed = host.deadline is not None and self.now >= host.deadline
            if other is not None and other.attempt != attempt:
                assert host.process.is_frozen, (self.now, host.name, other.attempt, attempt)
                assert is_doomed, (self.now, host.name, other.attempt, attempt)

    # --- agents -----------------------------------------------------------------------------

    def place(self, name: str, node: str) -> None:
        """Start an agent."""
        self.placings[node] += 1
        if node in self.unfit:
            self.later(1.0, lambda: self._tell(lambda to: to.agent_lost(name, *self.unfit[node])))
            return
        process = Process(self)
        host = self.hosts[name] = SimulatedHost(self, node, name, process)

        def say(report: Any) -> None:
            if isinstance(report, Hello):
                version = self.versions.get(node, report.version)
                token = None if node in self.blind else self.token
                config = self.configs.get(node, self.config)
                report = replace(report, version=version, token=token, config=config)
            payload = encoded(report)
            self.carry(lambda: self._to_leader(name, payload), is_open=host.to_leader)

        def on_event(event: Event) -> None:
            host.agent.take([event])

        process.on_event = on_event
        identity = Identity(node, node, "ns", 1, 1)
        host.agent = Agent(
            process,  # type: ignore[arg-type]
            process,
            host.kill_at,
            lambda launch: host,
            say,
            identity,
            lambda: self.now,
            lambda source: self._ask_announcers(host),
        )
        self._tell(lambda listener: listener.agent_placed(name, node))

    def _ask_announcers(self, host: SimulatedHost) -> None:
        if host.name in self.announced:
            stop = StopRequested(self.now, StopSource.PREEMPTION, "it is preempted")
            host.process.post(stop)

    def _tell(self, what: Callable[[Listener], None]) -> None:
        if (leader := self.leader) is not None:
            leader.process.run(lambda: what(leader.engine))

    def _to_leader(self, name: str, payload: bytes) -> None:
        if name in self.hosts:
            self._tell(lambda listener: listener.heard(name, payload))

    def kill_agent(self, host: SimulatedHost) -> None:
        """An agent dies; its guard kills its ranks, and the cluster tells it some time later. On a
        frozen host nothing dies."""
        if host.process.is_frozen:
            return
        host.process.is_alive = False
        self.later(_GUARD, host.end_ranks)
        name = host.agent_name

        def lost() -> None:
            if self.hosts.pop(name, None) is not None:
                self._tell(lambda listener: listener.agent_lost(name, "it died"))

        self.later(self.random.uniform(_GUARD, 15.0), lost)

    def show_nodes(self) -> None:
        """The cluster shows the leader the nodes as they are now."""
        if not self.is_headless:
            self._tell(lambda listener: listener.nodes_seen(tuple(self.nodes.values())))

    def drain(self, name: str, seconds: float) -> None:
        """The cluster announces that a node goes in so many seconds. A new one takes its place."""
        if name not in self.nodes or self.nodes[name].draining:
            return
        self.nodes[name] = replace(self.nodes[name], draining="it is drained")
        self.show_nodes()
        self._lose(name, seconds)

    def announce(self, name: str, seconds: float) -> None:
        """A machine announces that it goes in so many seconds: its agent hears of it, and the
        cluster does not. A new one takes its place."""
        if name not in self.nodes or name in self.announced:
            return
        self.announced.add(name)
        for host in self.hosts.values():
            if host.name == name:
                self._ask_announcers(host)
        self._lose(name, seconds)

    def _lose(self, name: str, seconds: float) -> None:
        """A node goes in so many seconds, and a new one takes its place."""

        def go() -> None:
            if self.nodes.pop(name, None) is None:  # it was to go for two reasons
                return
            for host in list(self.hosts.values()):
                if host.name == name:
                    host.process.is_frozen = False
                    self.kill_agent(host)
            new = f"n{next(self._names)}"
            self.nodes[new] = Node(new, "10.0.0.1")
            self.show_nodes()

        self.later(seconds, go)

    def lose_head(self, seconds: float) -> None:
        """The cluster does not answer for so long. Messages still come through."""
        if self.is_headless:
            return
        self.is_headless = True
        self._tell(lambda listener: listener.cluster_lost("the head does not answer"))

        def come_back() -> None:
            self.is_headless = False
            self.show_nodes()

        self.later(seconds, come_back)

    def freeze(self, host: SimulatedHost, seconds: float) -> None:
        """A host stands still, guard and ranks too; its guard is the first that goes on."""
        if host.process.is_frozen or not host.process.is_alive:
            return
        host.process.is_frozen = True

        def thaw() -> None:
            if host.process.is_frozen:
                host.process.is_frozen = False
                host.guard()
                host.process.thaw()

        self.later(seconds, thaw)


class Leader:
    """A leader with a core that only restarts. Implements `Transport`."""

    def __init__(
        self,
        world: World,
        epoch: int,
        attempt: int,
        size: int,
        spares: int,
        *,
        looks_first: bool = False,
        lost_after: float = LOST_AFTER,
        units: tuple[str, ...] = (),
        wait_for_capacity: float = math.inf,
    ) -> None:
        """`attempt` is the last one of the leader before it; 0: there was none. `looks_first`: its
        core asks for a probe before the first attempt. `units`: the hosts of the last attempt, on
        which its core starts the next one."""
        self.world, self.size, self.attempt = world, size, attempt
        self.inherited = attempt
        """An attempt of an earlier leader, whose end the core charges to nobody."""
        self.process = Process(world)
        self.process.on_event = self._on_event
        self.phase = "idle"
        self.looks = 0
        self.units = units
        self.probed: DevicesProbed | None = None
        """The last answer to a probe; None: there was none."""
        self.ran_since = 0.0
        self.sent: Counter[str] = Counter()
        """How many commands of each kind it has sent."""
        self.backoff = 0.0
        """Seconds that its core waits after a failure before it starts the next attempt."""
        self.always_looks = False
        """Whether its core asks for a probe after each failure."""
        self.took_standbys = False
        """Whether all ranks of the last attempt were standbys before."""
        self.notices: list[Notice] = []
        """What it has told people."""
        self.failures: list[Failure] = []
        """How its attempts have ended, or why they could not be started."""
        self.leaves = ""
        """Why the present attempt moves off hosts; empty: it does not."""
        world.leader = self
        before = world.history.longest_lost_after
        config = [{"trainer": {"init": {"hosts": {"lost_after": lost_after}}}}]
        world.history.apply_config(config, ())
        name, file = f"job-{epoch}", "/shared/owner" if world.token is not None else ""
        leadership = Leadership(
            epoch, writer(), lost_after, name, file, world.token, before, config=world.config
        )
        self.engine = FleetEngine(
            self,
            self.process,
            self.process,
            cast(Any, _NoFiles()),
            {},
            NoCache(),
            leadership,
            size + spares,
            lambda: None,
            wait_for_capacity=wait_for_capacity,
        )
        if attempt:
            self._kill()
        elif looks_first:
            self._look()
        else:
            self._start(units)

    def _launch(self) -> Launch:
        launch = launch_in(Path("/nowhere"), ("train",), self.size)
        plan = replace(launch.plan, standby="imports")
        return replace(launch, plan=plan, attempt=self.attempt)

    def _start(self, units: tuple[str, ...] = ()) -> None:
        self.attempt += 1
        self.phase = "starting"
        self.engine.start(replace(self._launch(), units=units))

    def _look(self) -> None:
        """Have the hosts of the next attempt looked for."""
        self.looks += 1
        self.engine.probe(self._launch().plan, self.looks, None)

    def _looked(self, healthy: Sequence[str]) -> None:
        if len(healthy) >= self.size:
            self._start(in_order(healthy[: self.size], self.engine.nodes))
        else:
            self.process.call_later(5.0, self._look)

    def _kill(self) -> None:
        self.phase = "killing"
        number = self.attempt

        def ask() -> None:
            if self.phase == "killing" and self.attempt == number:
                self.engine.kill(self._launch(), ())
                self.process.call_later(10.0, ask)

        ask()

    def _on_event(self, event: Event) -> None:
        self._keep(event)
        match event:
            case WorkersStarted(attempt=self.attempt):
                self.phase, self.ran_since = "running", self.world.now
                self.took_standbys = event.standby
            case WorkersObserved(attempt=self.attempt) if event.exits and self.phase == "running":
                self.phase = "dying"
                self.process.call_later(0.1, self._kill)
            case LaunchFailed(attempt=self.attempt, failure=failure):
                assert failure.charge is Charge.NOTHING, failure
                self._not_started()
            case HostsLeaving(attempt=self.attempt) if self.phase == "running":
                self.phase, self.leaves = "leaving", event.reason
                self.process.call_later(2.0, self._kill)  # a save
            case StopRequested():
                self.phase = "drained"
            case DevicesProbed(number=self.looks, healthy=healthy) if self.phase == "idle":
                self.probed = event
                self._looked(healthy)
            case WorkersGone(attempt=self.attempt) if self.phase == "killing" and self.leaves:
                self.phase, self.leaves = "idle", ""
                self._look()
            case WorkersGone(attempt=self.attempt, failure=failure) if self.phase == "killing":
                self._ended(failure)

    def _ended(self, failure: Failure | None) -> None:
        is_ours = self.attempt > self.inherited and self.attempt not in self.world.failed
        if is_ours and failure is not None:
            assert failure.charge is Charge.NOTHING, failure
        self.phase = "idle"
        is_suspect = failure is not None and failure.hardware
        if is_suspect or self.always_looks:
            self._look()
        else:
            self.process.call_later(self.backoff, lambda: self._start(self.units))

    def _not_started(self) -> None:
        self.phase = "idle"
        self.process.call_later(1.0, self._look if self.units else self._start)
        self.units = ()

    def _keep(self, event: Event) -> None:
        if isinstance(event, WorkersGone) and event.attempt == self.attempt:
            state = JobState(attempt=self.attempt)
            ended = Transition(event, state, state, (), self.process.wall())
            self.world.history.apply_transition(ended)
        match event:
            case Noticed(text=Notice() as told):
                self.notices.append(told)
            case WorkersGone(failure=Failure() as failure) | LaunchFailed(failure=failure):
                self.failures.append(failure)

    def die(self) -> None:
        """The leader is gone; agents stay."""
        self.process.is_alive = False
        self.world.leader = None

    # --- `Transport` ------------------------------------------------------------------------

    def begin(self, listener: Listener) -> None:
        """See `Transport`."""

        def introduce() -> None:
            for host in self.world.hosts.values():
                listener.agent_placed(host.agent_name, host.name)
            self.world.show_nodes()

        self.process.call_later(0.1, introduce)

    def place(self, agent: str, node: str) -> None:
        """See `Transport`."""
        self.world.later(1.0, lambda: self.world.place(agent, node))

    def remove(self, agent: str) -> None:
        """See `Transport`."""
        if agent in self.world.hosts:
            self.world.kill_agent(self.world.hosts[agent])

    def send(self, agent: str, payload: bytes) -> None:
        """See `Transport`."""
        host = self.world.hosts.get(agent)
        self.sent[type(command_of(payload)).__name__] += 1
        if host is not None:
            deliver = lambda: host.process.run(lambda: host.agent.heard(payload))  # noqa: E731
            self.world.carry(deliver, is_open=host.to_agent)

    def close(self) -> None:
        """See `Transport`."""
