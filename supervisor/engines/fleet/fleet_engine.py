"""Runs worker groups on many hosts: the leader's side, an implementation of `engine.Engine`.

It tells the agents what to start and kill, answers their questions, and posts what their reports
add up to: one group of workers. `fleet` knows which hosts are ready, lost or safely gone,
`fleet_attempt` adds the reports up, and `fleet_judging` judges the end. How agents are reached is
the `transport`'s business.

Commands may get lost. At each question of an agent, the leader repeats what the agent has not done
yet (`_repeat`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from supervisor.config.plan import PhasePlan
from supervisor.core.events import (
    BadUnit,
    CheckpointsFound,
    DevicesProbed,
    HostsLeaving,
    LaunchCancelled,
    LaunchFailed,
    Noticed,
    StopRequested,
    StopSource,
    WorkerReported,
    WorkersGone,
    WorkersIdle,
    WorkersObserved,
    WorkersStarted,
)
from supervisor.diagnosis.failure import Failure, RankEvidence, Survivor, WorkerExit
from supervisor.diagnosis.verdicts import no_hosts_failure
from supervisor.engines.fleet.fleet import MARGIN, Fleet, HostState, in_order
from supervisor.engines.fleet.fleet_attempt import FleetAttempt
from supervisor.engines.fleet.fleet_judging import collected, judged_fleet
from supervisor.engines.fleet.fleet_messages import (
    Answer,
    Command,
    DumpRankStacks,
    Evidences,
    Forwarded,
    Gone,
    Hello,
    KillRanks,
    Lead,
    MessageError,
    NameHolders,
    NotStarted,
    Observed,
    Ports,
    Probed,
    Question,
    Report,
    ReservePorts,
    ShowEvidence,
    Started,
    StartRanks,
    TerminateRanks,
    Told,
    ToldNotice,
    encoded,
    report_of,
)
from supervisor.engines.fleet.host_probes import HostProbes
from supervisor.engines.fleet.launch_text import text_of
from supervisor.engines.fleet.spare_standbys import SpareStandbys
from supervisor.engines.fleet.transport import Node, Transport
from supervisor.engines.host_port import Compilations, Host, MainLoop
from supervisor.engines.judging import redacted
from supervisor.engines.launch import Launch, Part
from supervisor.engines.manifest_keeping import ManifestKeeping
from supervisor.engines.newest_step import newest_told, steps_left
from supervisor.engines.straggler_watch import StragglerWatch
from supervisor.engines.verified_start import VerifiedStart
from supervisor.host.notice import Notice
from supervisor.ports import Clock
from supervisor.protocol.messages import HostTimeMessage, NoticeMessage, StepMessage
from supervisor.protocol.reading import UnreadableError, parse_object

_OBSERVE_INTERVAL = 5.0
_TICKS = 20
"""How often in `lost_after` seconds the fence is looked at."""
_EVIDENCE_WAIT = 2.0
"""Seconds to wait for the evidence of the suspects. Without it their digests are judged."""
_HEAD_PATIENCE = 10.0
"""Seconds for which a cluster need not answer before the job saves: its head may be busy. Agents
are answered for about a minute after its end."""
_FIRST_JOIN = 30.0
_JOIN = 5.0
"""Seconds to wait for hosts that are missing: until all were there once, and later, if some may
come."""


@dataclass(frozen=True, slots=True)
class Leadership:
    """Who leads, and what agents must agree with."""

    epoch: int
    version: str
    lost_after: float
    name: str
    """The beginning of the names of the agents that this leader places: unique to it."""
    owner_file: str = ""
    """See `Lead`."""
    token: str | None = None
    """The token in the owner file; None: hosts are not compared by it."""
    lost_after_before: float = 0.0
    """`lost_after` of the leader before, whose last answers may hold for longer than ours."""
    announcer: str = "none"
    """See `Lead`."""


@dataclass(slots=True)
class _Start:
    """An attempt that is being started."""

    launch: Launch
    began: float
    newest: int | None = None
    cache: Mapping[str, str] = field(default_factory=dict)
    coordinator: str | None = None
    """Where the ranks meet; None: the host of rank 0 has not found a port yet."""
    slices: tuple[str, ...] = ()
    """The TPU slices of the hosts, if there are several, in the order of their ranks."""
    slices_port: int = 0
    """The port at which these slices meet, on the host of rank 0."""


@dataclass(slots=True)
class _Kill:
    """An attempt that is being killed, or judged."""

    launch: Launch
    exits: tuple[WorkerExit, ...]
    attempt: FleetAttempt
    everybody: bool
    """Whether an earlier leader has started it: then any agent may have ranks of it."""
    then: Callable[[], None]
    confirmed: set[str] = field(default_factory=set)
    wanted: set[str] = field(default_factory=set)
    """The agents whose evidence is waited for."""
    known: dict[int, RankEvidence] = field(default_factory=dict)
    gone_at: float | None = None


@dataclass(frozen=True, slots=True)
class _Probe:
    number: int
    size: int
    patient_until: float
    devices: HostProbes | None = None
    """The probes of the devices of the last attempt's hosts; None: nothing points at devices."""


class FleetEngine:
    """Implements `engine.Engine` and `transport.Listener`."""

    def __init__(
        self,
        transport: Transport,
        reactor: MainLoop,
        clock: Clock,
        machine: Host,
        environ: Mapping[str, str],
        compile_cache: Compilations,
        leadership: Leadership,
        wanted: int,
        check: Callable[[], None],
        redact: Callable[[str], str] = str,
        hosts_per_slice: int = 1,
    ) -> None:
        """`wanted` hosts are to have an agent; for `hosts_per_slice` see `Fleet`. `check` raises if
        we do not lead any more: it is called before every answer. `machine` is the leader's own
        host."""
        self._transport = transport
        self._reactor = reactor
        self._clock = clock
        self._machine = machine
        self._compile_cache = compile_cache
        self._lead = leadership
        self._check = check
        self._redact = redact
        longer = max(0.0, leadership.lost_after_before - leadership.lost_after)
        self._fleet = Fleet(leadership.lost_after, clock.now() + longer, wanted, hosts_per_slice)
        self._placed = 0
        self._start_of: _Start | None = None
        self._attempt: FleetAttempt | None = None
        self._launch: Launch | None = None
        self._kill_of: _Kill | None = None
        self._last_gone: WorkersGone | None = None
        self._suspect: Launch | None = None
        """The last attempt, if its failure points at the devices."""
        self._before: tuple[str, ...] = ()
        """The nodes of the last attempt, by rank."""
        self._probe: _Probe | None = None
        self._was_full = False
        self._cluster_lost: tuple[float, str] | None = None
        """Since when the cluster does not answer, and why; None: it does."""
        self._told_leaving: tuple[int, str] | None = None
        """The attempt that was last told that hosts of it are about to go, and which."""
        self._idle: dict[str, tuple[float, float]] = {}
        self._has_stepped = False
        self._stragglers = StragglerWatch()
        self._spares = SpareStandbys()
        self._told: set[tuple[str, str]] = set()
        self._verified = VerifiedStart(reactor, clock, machine, self._notice, self._mention)
        self._manifests = ManifestKeeping(reactor, clock, machine, environ, self._notice)
        transport.begin(self)
        self._tick()

    @property
    def directory(self) -> Path | None:
        """See `engine.Engine`."""
        return self._launch.directory if self._launch is not None else None

    @property
    def nodes(self) -> tuple[str, ...]:
        """The node of each rank of the last attempt that was placed."""
        return self._before

    # --- the engine's members ---------------------------------------------------------------

    def start(self, launch: Launch) -> None:
        """See `engine.Engine`."""
        self._launch, self._attempt, self._last_gone = launch, None, None
        self._suspect = None
        start = _Start(launch, self._clock.now())
        self._start_of = start
        self._has_stepped = False
        self._verified.before(launch, partial(self._begin, start), partial(self._refused, start))

    def probe(
        self,
        plan: PhasePlan,
        number: int,
        units: tuple[str, ...] | None,
        left_out: tuple[str, ...] = (),
    ) -> None:
        """See `engine.Engine`. A unit is a host; it is healthy if its agent is and, where the last
        failure points at the devices, its devices are."""
        now = self._clock.now()
        self._fleet.left_out = frozenset(left_out)
        self._place_agents()
        until = now + (_JOIN if self._was_full else _FIRST_JOIN)
        devices = self._device_probes(number, now)
        self._probe = _Probe(number, plan.workers, until, devices)
        for agent, command in devices.commands.items() if devices is not None else ():
            self._send(agent, command)
        self._answer_probe()

    def dump_stacks(self, attempt: int) -> None:
        """See `engine.Engine`."""
        self._send_to_all(attempt, DumpRankStacks(self._lead.epoch, attempt))

    def cancel_launch(self, attempt: int) -> None:
        """See `engine.Engine`."""
        if self._verified.cancel(attempt):
            self._start_of = None
            self._reactor.post(LaunchCancelled(self._clock.now(), attempt))

    def terminate(self, attempt: int, *, interrupt: bool = False) -> None:
        """See `engine.Engine`."""
        self._send_to_all(attempt, TerminateRanks(self._lead.epoch, attempt, interrupt))

    def pass_on_sigterm(self) -> None:
        """See `engine.Engine`."""
        attempt = self._attempt
        if attempt is not None:
            self._send_to_all(attempt.number, TerminateRanks(self._lead.epoch, attempt.number))

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents that have not ended, as far as is known."""
        return tuple(agent for agent, host in self._fleet.hosts.items() if not host.lost)

    def end_agents(self) -> None:
        """End all agents, and place no more: the job is over, or goes on elsewhere."""
        self._fleet.wanted = 0
        for agent in self.agents:
            self._transport.remove(agent)

    def name_holders(self) -> None:
        """See `engine.Engine`."""
        for agent in self._fleet.hosts:
            self._send(agent, NameHolders(self._lead.epoch))

    def kill(
        self, launch: Launch, exits: tuple[WorkerExit, ...], late: tuple[Survivor, ...] = ()
    ) -> None:
        """See `engine.Engine`."""
        self._verified.cancel()
        self._start_of = self._probe = None
        if self._kill_of is not None and self._kill_of.launch.attempt == launch.attempt:
            return
        last = self._last_gone
        if last is not None and last.attempt == launch.attempt:
            self._reactor.post(replace(last, at=self._clock.now()))
            return
        attempt = self._attempt
        if attempt is None or attempt.number != launch.attempt:
            everybody = self._launch is None  # else it was not placed yet: nothing of it lives
            attempt = FleetAttempt(launch.attempt, ())
        else:
            everybody = False
        self._begin_to_kill(launch, exits, attempt, self._ask_for_evidence, everybody=everybody)

    # --- starting ---------------------------------------------------------------------------

    def _begin(self, start: _Start) -> None:
        """Place the ranks of an attempt on hosts, once enough of them are ready."""
        if self._start_of is not start or self._attempt is not None:
            return
        launch = start.launch
        hosts = self._hosts_for(launch)
        if len(hosts) < launch.world_size:
            if self._clock.now() - start.began > _FIRST_JOIN:
                ready = len(self._fleet.ready(self._clock.now()))
                self._refused(start, no_hosts_failure(launch.world_size, ready))
            return
        self._before = tuple(host.node.id for host in hosts)
        self._attempt = FleetAttempt(launch.attempt, tuple(host.agent for host in hosts))
        self._idle.clear()
        slices = tuple(dict.fromkeys(host.node.slice for host in hosts))
        start.slices = slices if len(slices) > 1 else ()
        start.newest = newest_told(self._machine, launch.plan, self._notice)
        start.cache = self._compile_cache.environment(dict(launch.plan.env))
        self._manifests.begin(launch)
        if launch.world_size == 1:
            start.coordinator = ""
        self._go_on_starting(start, self._attempt)
        self._reactor.call_later(_OBSERVE_INTERVAL, partial(self._look_again, self._attempt))

    def _hosts_for(self, launch: Launch) -> tuple[HostState, ...]:
        """Returns the host of each rank, as far as they are ready."""
        now = self._clock.now()
        ready = {host.node.id: host for host in self._fleet.ready(now)}
        if launch.hosts and launch.units:  # a probe has found them, and the core has put in order
            nodes = launch.units
        else:
            chosen = self._fleet.choose(launch.world_size, self._before, now)
            nodes = in_order([host.node.id for host in chosen], self._before)
        return tuple(ready[node] for node in nodes if node in ready)

    def _go_on_starting(self, start: _Start, attempt: FleetAttempt) -> None:
        for agent in dict.fromkeys(attempt.agents):
            self._start_ranks(agent, start, attempt)

    def _start_ranks(self, agent: str, start: _Start, attempt: FleetAttempt) -> None:
        """Tell an agent to start its ranks, if the place where they meet is known; else ask the
        agent of rank 0 for it."""
        epoch, number = self._lead.epoch, attempt.number
        if start.coordinator is None:
            if agent == attempt.agents[0]:
                self._send(agent, ReservePorts(epoch, number, _num_ports(start)))
            return
        launch = start.launch
        if launch.hosts:
            launch = replace(launch, units=self._before)
        part = Part(attempt.ranks_of(agent), start.coordinator)
        if start.slices:
            number_of_slice = start.slices.index(self._fleet.hosts[agent].node.slice)
            part = replace(
                part,
                num_slices=len(start.slices),
                slice_number=number_of_slice,
                slices_port=start.slices_port,
            )
        text = text_of(launch, part)
        self._send(agent, StartRanks(epoch, number, text, start.newest, start.cache))

    def _on_ports(self, agent: str, report: Ports) -> None:
        start, attempt = self._start_of, self._attempt
        if start is None or attempt is None or start.coordinator is not None:
            return
        if report.attempt != attempt.number or agent != attempt.agents[0]:
            return
        if len(report.ports) < _num_ports(start):
            self._fail_start(start, attempt, no_hosts_failure(1, 0, report.problem))
            return
        address = self._fleet.hosts[agent].node.address
        start.coordinator = f"[{address}]" if ":" in address else address
        start.coordinator += f":{report.ports[0]}"
        start.slices_port = report.ports[-1]
        self._go_on_starting(start, attempt)

    def _on_started(self, attempt: FleetAttempt) -> None:
        """Post that the attempt runs, once all its ranks do, or why it does not."""
        start = self._start_of
        if start is None:
            return
        if attempt.not_started:
            failure = next(iter(attempt.not_started.values()))
            self._fail_start(start, attempt, redacted(failure, self._redact))
        elif attempt.all_started:
            self._start_of = None
            self._begin_standbys(start)
            standby = all(report.standby for report in attempt.started.values())
            now = self._clock.now()
            started = WorkersStarted(now, attempt.number, attempt.pids, start.began, standby)
            self._reactor.post(started)
            if attempt.ends:
                self._observe(attempt)

    def _begin_standbys(self, start: _Start) -> None:
        """From now on have the spares prepare standbys, once the attempt has recovered."""
        launch = start.launch
        if launch.hosts:
            launch = replace(launch, units=self._before)
        where, now = start.coordinator or "", self._clock.now()
        self._spares.begin(self._lead.epoch, launch, where, start.newest, start.cache, now)

    def _fail_start(self, start: _Start, attempt: FleetAttempt, failure: Failure) -> None:
        """Kill what was started of an attempt, and post that it could not be started."""
        self._start_of = None

        def gone() -> None:
            self._refused(start, failure)

        self._begin_to_kill(start.launch, (), attempt, gone, everybody=False)

    def _refused(self, start: _Start, failure: Failure) -> None:
        self._start_of = self._kill_of = self._attempt = self._launch = None
        told = redacted(failure, self._redact)
        self._reactor.post(LaunchFailed(self._clock.now(), start.launch.attempt, told))

    # --- the transport's listener -----------------------------------------------------------

    def nodes_seen(self, nodes: tuple[Node, ...]) -> None:
        """See `transport.Listener`."""
        self._cluster_lost = None
        self._fleet.seen(nodes)
        self._place_agents()

    def agent_placed(self, agent: str, node: str) -> None:
        """See `transport.Listener`."""
        self._fleet.placed(agent, node)
        self._introduce(agent)

    def agent_lost(self, agent: str, why: str) -> None:
        """See `transport.Listener`."""
        self._fleet.lost(agent, why)
        for name, host in self._fleet.hosts.items():
            if host.problem and not host.lost:  # it may have been the other agent of its machine
                self._introduce(name)
        self._look_for_lost()
        self._place_agents()

    def cluster_lost(self, why: str) -> None:
        """See `transport.Listener`."""
        self._cluster_lost = self._clock.now(), why
        text = (
            f"the cluster does not answer: {why}; if it stays so, the job saves, and waits for a "
            "cluster"
        )
        self._notice(Notice("cluster-lost", text, reason=why))

    def heard(self, agent: str, payload: bytes) -> None:
        """See `transport.Listener`."""
        try:
            report = report_of(payload)
        except MessageError as error:
            self._unusable(agent, f"its messages are not understood: {error}")
            return
        if agent in self._fleet.hosts:
            self._on_report(agent, report)

    # --- hearing ----------------------------------------------------------------------------

    def _on_report(self, agent: str, report: Report) -> None:
        now = self._clock.now()
        match report:
            case Question():
                self._on_question(agent, report, now)
            case Hello():
                self._on_hello(agent, report)
            case Ports():
                self._on_ports(agent, report)
            case Evidences():
                self._on_evidence(agent, report)
            case Told():
                self._on_told(agent, report, now)
            case Probed():
                if self._probe is not None and self._probe.devices is not None:
                    self._probe.devices.note(agent, report)
                    self._answer_probe()
            case Started() | NotStarted() | Observed() | Gone():
                self._on_attempt(agent, report, now)
                self._look_for_end()

    def _on_question(self, agent: str, question: Question, now: float) -> None:
        if question.epoch > self._lead.epoch:
            self._unusable(agent, f"it obeys another supervisor (epoch {question.epoch})")
            return
        if question.epoch < self._lead.epoch:
            self._introduce(agent)
            return
        self._check()
        self._send(agent, Answer(self._lead.epoch, question.number))
        was_ready = self._fleet.hosts[agent].is_ready(now, self._lead.lost_after)
        self._fleet.questioned(agent, question, now)
        if not self._fleet.hosts[agent].machine:  # its answer to our introduction was lost
            self._introduce(agent)
        self._repeat(agent, question)
        if not was_ready:
            self._on_ready()

    def _repeat(self, agent: str, question: Question) -> None:
        """Tell an agent again what it has not done yet."""
        kill, start, attempt = self._kill_of, self._start_of, self._attempt
        if kill is not None:
            if agent not in kill.confirmed and (kill.everybody or agent in kill.attempt.agents):
                self._send(agent, KillRanks(self._lead.epoch, kill.launch.attempt))
            if agent in kill.wanted:
                self._ask_evidence(agent, kill)
        elif attempt is None or agent not in attempt.agents:
            if question.attempt is not None:  # of an earlier leader, or it was thought to be lost
                self._send(agent, KillRanks(self._lead.epoch, question.attempt))
            else:
                self._repeat_to_spare(agent, question)
        elif question.gone == attempt.number and agent not in attempt.gone:
            self._send(agent, KillRanks(self._lead.epoch, attempt.number))  # its `Gone` was lost
        elif start is not None and agent not in attempt.started:
            self._start_ranks(agent, start, attempt)

    def _repeat_to_spare(self, agent: str, question: Question) -> None:
        """Tell an agent that has no ranks again what it has not probed or prepared yet."""
        attempt, probe = self._attempt, self._probe
        command: Command | None = None
        if probe is not None and probe.devices is not None:
            command = probe.devices.wanted(agent)
        elif attempt is not None and self._start_of is None and self._fleet.hosts[agent].stays:
            command = self._spares.wanted(question, attempt.number, self._clock.now())
        if command is not None:
            self._send(agent, command)

    def _on_hello(self, agent: str, hello: Hello) -> None:
        if hello.epoch != self._lead.epoch:
            return
        problem = hello.problem
        if hello.version != self._lead.version:
            problem = f"it has supervise {hello.version}, and this host {self._lead.version}"
        elif self._lead.token is not None and hello.token != self._lead.token:
            problem = f"it does not see this model_dir ({self._lead.owner_file} differs there)"
        self._fleet.introduced(agent, hello, problem)
        if found := self._fleet.hosts[agent].problem:
            self._unusable(agent, found)

    def _unusable(self, agent: str, problem: str) -> None:
        host = self._fleet.hosts.get(agent)
        if host is None:
            return
        self._fleet.hosts[agent] = replace(host, problem=problem)
        if (host.node.id, problem) not in self._told:
            self._told.add((host.node.id, problem))
            text = f"host {host.node.id} is not used: {problem}"
            self._notice(Notice("host-unusable", text, unit=host.node.id, reason=problem))
        self._place_agents()

    def _on_attempt(
        self, agent: str, report: Started | NotStarted | Observed | Gone, now: float
    ) -> None:
        kill, attempt = self._kill_of, self._attempt
        if kill and isinstance(report, Gone) and report.attempt >= kill.launch.attempt:
            kill.confirmed.add(agent)
        if attempt is None or report.attempt != attempt.number:
            return
        news = False
        match report:
            case Started():
                attempt.note_started(agent, report)
                self._on_started(attempt)
            case NotStarted():
                attempt.note_not_started(agent, report)
                self._on_started(attempt)
            case Observed():
                news = attempt.note_observed(agent, report, now)
            case Gone():
                news = attempt.note_gone(agent, report, now)
                if self._start_of is not None and kill is None:
                    why = f"host {self._host_of(agent)} was cut off while others started"
                    self._fail_start(self._start_of, attempt, no_hosts_failure(1, 0, why))
        if news:
            self._observe(attempt)

    def _on_told(self, agent: str, report: Told, now: float) -> None:
        is_of_attempt = self._attempt is not None and report.attempt == self._attempt.number
        for event in report.events:
            if is_of_attempt or isinstance(event, ToldNotice):
                self._pass_on(agent, event, now)

    def _pass_on(self, agent: str, event: Forwarded, now: float) -> None:
        """Post an event of an agent's engine as our own."""
        self._spares.hear(event, now)
        match event:
            case ToldNotice(name, text, keys, routine):
                told = f"[{self._host_of(agent)}] {self._redact(text)}"
                self._reactor.post(Noticed(now, Notice(name, told, **self._keys(keys)), routine))
                return
            case WorkerReported(message=NoticeMessage() as message):
                message = replace(message, text=self._redact(message.text))
                event = replace(event, message=message)
            case WorkerReported(_, attempt, rank, HostTimeMessage() as message):
                found = self._stragglers.hear(attempt, rank, message)
                if found is not None:
                    self._notice(found.notice(self._host_of(agent)))
                return
            case WorkerReported(message=StepMessage()) if not self._has_stepped:
                self._has_stepped = True
                self._compile_cache.take_over()
            case CheckpointsFound(_, _, directory):
                self._manifests.found(Path(directory))
            case WorkersIdle(_, _, seconds):
                self._idle[agent] = (now, seconds)
                idle = self._idle_for(now)
                if idle is None:
                    return
                event = replace(event, seconds=idle)
        self._reactor.post(replace(event, at=now))

    def _keys(self, text: str) -> dict[str, object]:
        """Returns the keys of a notice, redacted; none if a secret was so cut out that they cannot
        be read."""
        try:
            return parse_object(self._redact(text).encode(), "notice")
        except UnreadableError:
            return {}

    def _idle_for(self, now: float) -> float | None:
        """Returns for how long the ranks of all hosts have been idle; None: some are not."""
        attempt = self._attempt
        agents = attempt.agents if attempt is not None else ()
        looks = [self._idle.get(agent, (0.0, 0.0)) for agent in agents]
        recent = all(now - at < 2 * _OBSERVE_INTERVAL for at, _ in looks)
        return min(seconds for _, seconds in looks) if looks and recent else None

    # --- looking ----------------------------------------------------------------------------

    def _tick(self) -> None:
        self._look_for_lost()
        self._look_for_leaving()
        self._on_ready()
        self._look_for_end()
        self._reactor.call_later(self._lead.lost_after / _TICKS, self._tick)

    def _look_for_lost(self) -> None:
        """Note the hosts whose ranks are dead, because their agents were not answered for long or
        are lost."""
        attempt, now = self._attempt, self._clock.now()
        used = attempt.agents if attempt is not None else ()
        for agent in dict.fromkeys(used):
            host = self._fleet.hosts[agent]
            is_dead = now >= host.dead_at(self._lead.lost_after)
            if attempt is not None and (host.lost or is_dead) and agent not in attempt.lost:
                why = host.lost or f"not heard for {now - host.answered_at:.1f} s"
                self._host_lost(agent, attempt, why, now)
        self._fleet.forget(now, used)
        self._place_agents()

    def _look_for_leaving(self) -> None:
        """Post that hosts of the running attempt are about to go: some of them, because the cluster
        drains them or they say so, or all, because the cluster is lost. If no node stays, the job
        ends."""
        attempt, now = self._attempt, self._clock.now()
        if attempt is None or self._start_of is not None or self._kill_of is not None:
            return
        told = self._why_leaving(attempt, now)
        if not told or self._told_leaving == (attempt.number, told):
            return
        self._told_leaving = attempt.number, told
        if self._cluster_lost is None and self._fleet.all_leave:
            self._reactor.post(StopRequested(now, StopSource.PREEMPTION, told, notice=0.0))
        else:
            self._reactor.post(HostsLeaving(now, attempt.number, told))

    def _why_leaving(self, attempt: FleetAttempt, now: float) -> str:
        """Returns which hosts of the attempt are about to go, and why; empty: none is."""
        if self._cluster_lost is not None:
            since, why = self._cluster_lost
            is_long = now - since >= _HEAD_PATIENCE
            return (
                f"the cluster has not answered for {_HEAD_PATIENCE:g} s: {why}" if is_long else ""
            )
        leaving = self._fleet.leaving(dict.fromkeys(attempt.agents))
        told = (f"host {node} is about to go: {why}" for node, why in leaving.items())
        return self._redact("; ".join(told))

    def _host_lost(self, agent: str, attempt: FleetAttempt, why: str, now: float) -> None:
        if agent in attempt.gone:
            return
        name = self._host_of(agent)
        news = attempt.note_lost(agent, why, now)
        self._notice(Notice("host-lost", f"host {name} is lost: {why}", unit=name, reason=why))
        start = self._start_of
        if start is not None and self._kill_of is None:
            failure = no_hosts_failure(1, 0, f"host {name} was lost: {why}")
            self._fail_start(start, attempt, failure)
        elif news:
            self._observe(attempt)

    def _observe(self, attempt: FleetAttempt) -> None:
        """Post how the ranks are, if they were started."""
        if self._start_of is None and self._attempt is attempt:
            survivors = tuple(one for each in attempt.survivors.values() for one in each)
            told = tuple(replace(each, command=self._redact(each.command)) for each in survivors)
            now = self._clock.now()
            seen = WorkersObserved(now, attempt.number, attempt.pids, attempt.exits, told)
            self._reactor.post(seen)

    def _look_again(self, attempt: FleetAttempt) -> None:
        if self._attempt is attempt and self._launch is not None:
            self._manifests.look(self._launch)
            if self._kill_of is None:
                self._observe(attempt)
            self._reactor.call_later(_OBSERVE_INTERVAL, partial(self._look_again, attempt))

    def _on_ready(self) -> None:
        """A host may have become ready: go on with what waits for hosts."""
        self._answer_probe()
        if self._start_of is not None and self._attempt is None and self._kill_of is None:
            self._begin(self._start_of)

    def _device_probes(self, number: int, now: float) -> HostProbes | None:
        """Returns the probes of the devices of the last attempt's hosts, if it is suspect."""
        if self._suspect is None or self._attempt is not None:
            return None
        hosts = {host.agent: host.node.id for host in self._fleet.ready(now)}
        nodes = {agent: node for agent, node in hosts.items() if node in self._before}
        return HostProbes.of(self._suspect, number, self._lead.epoch, nodes, now)

    def _answer_probe(self) -> None:
        probe, now = self._probe, self._clock.now()
        if probe is None:
            return
        devices = probe.devices
        if devices is not None and devices.waits(
            {host.agent for host in self._fleet.ready(now)}, now
        ):
            return
        ready = self._staying(now)
        self._was_full |= len(ready) >= probe.size
        num_usable = sum(host.node.id not in self._fleet.left_out for host in ready)
        if num_usable < probe.size and now < probe.patient_until and self._expects_more(now):
            return
        self._probe = None
        faulty = {each.unit: each for each in (devices.bad if devices is not None else ())}
        healthy = tuple(host.node.id for host in ready if host.node.id not in faulty)
        missing = tuple(
            BadUnit(node, self._why_missing(node, now), found=False)
            for node in self._before
            if node not in healthy and node not in faulty
        )
        bad = tuple(
            replace(each, reason=self._redact(each.reason)) for each in (*faulty.values(), *missing)
        )
        problem = devices.problem if devices is not None and not bad else None
        told = self._redact(problem) if problem is not None else None
        self._reactor.post(DevicesProbed(now, probe.number, healthy, bad, told))

    def _expects_more(self, now: float) -> bool:
        """Whether to wait for more hosts. Once all were there, a host that is lost is not waited
        for: how long a job waits for another one, `wait_for_replacement` says."""
        if self._cluster_lost is not None or not self._was_full:
            return True
        return self._fleet.expects_more(now)

    def _staying(self, now: float) -> tuple[HostState, ...]:
        """Returns the hosts that are ready and stay, as far as is known: previous members first."""
        if self._cluster_lost is not None:
            return ()
        ready = self._fleet.choose(len(self._fleet.hosts), self._before, now)
        return self._fleet.in_whole_slices([host for host in ready if host.stays])

    def _why_missing(self, node: str, now: float) -> str:
        if self._cluster_lost is not None:
            return f"the cluster does not answer: {self._cluster_lost[1]}"
        host = self._fleet.of_node(node)
        if host is None:
            return "the cluster does not show it"
        if host.leaving:
            return f"it is about to go: {self._redact(host.leaving)}"
        if host.is_ready(now, self._lead.lost_after):
            return f"other hosts of its TPU slice {host.node.slice} are missing"
        return host.why_not_ready(now, self._lead.lost_after)

    # --- ending -----------------------------------------------------------------------------

    def _begin_to_kill(
        self,
        launch: Launch,
        exits: tuple[WorkerExit, ...],
        attempt: FleetAttempt,
        then: Callable[[], None],
        *,
        everybody: bool,
    ) -> None:
        """Kill an attempt on all its hosts, and call `then` once nothing of it can live."""
        kill = _Kill(launch, exits, attempt, everybody, then, confirmed=set(attempt.gone))
        self._kill_of = kill
        for agent in self._fleet.hosts if everybody else dict.fromkeys(attempt.agents):
            self._send(agent, KillRanks(self._lead.epoch, launch.attempt))
        self._look_for_end()

    def _look_for_end(self) -> None:
        """Go on with a kill, if nothing of the attempt can live any more."""
        kill, now = self._kill_of, self._clock.now()
        if kill is None:
            return
        if kill.gone_at is None:
            agents = self._fleet.hosts if kill.everybody else kill.attempt.agents
            lost_after = self._lead.lost_after
            safe = {
                agent for agent in agents if now >= self._fleet.hosts[agent].safe_at(lost_after)
            }
            is_over = kill.attempt.is_over(safe | kill.confirmed)
            if kill.everybody:  # it may have ranks on hosts that nobody hears of
                is_over = now >= self._fleet.began + lost_after + MARGIN
                is_over &= all(agent in safe | kill.confirmed for agent in agents)
            if not is_over:
                return
            kill.gone_at = now
            kill.then()
        elif not kill.wanted or now - kill.gone_at > _EVIDENCE_WAIT:
            self._judge(kill)

    def _ask_for_evidence(self) -> None:
        """Nothing of the attempt lives: ask for the evidence of the suspects."""
        kill = self._kill_of
        assert kill is not None
        now = self._clock.now()
        for agent in kill.attempt.suspects():
            if self._fleet.hosts[agent].is_ready(now, self._lead.lost_after):
                kill.wanted.add(agent)
                self._ask_evidence(agent, kill)
        self._look_for_end()

    def _ask_evidence(self, agent: str, kill: _Kill) -> None:
        ranks = kill.attempt.suspects().get(agent, ())
        self._send(agent, ShowEvidence(self._lead.epoch, kill.launch.attempt, ranks))

    def _on_evidence(self, agent: str, report: Evidences) -> None:
        kill = self._kill_of
        if kill is not None and report.attempt == kill.launch.attempt and agent in kill.wanted:
            kill.known |= collected(report, self._clock.wall().timestamp())
            kill.wanted.discard(agent)
            self._look_for_end()

    def _judge(self, kill: _Kill) -> None:
        """Judge the attempt, and post `WorkersGone`."""
        launch, attempt, plan = kill.launch, kill.attempt, kill.launch.plan
        for ended in kill.exits:
            if not attempt.agents:  # of an earlier leader: its exits are all that is known
                attempt.note_earlier(ended, self._clock.now())
        self._compile_cache.finish_attempt()
        exits = attempt.exits
        all_exited = len(exits) == len(attempt.agents) and all(ended.clean for ended in exits)
        closed = all_exited and plan.is_command
        committed, unproven = steps_left(
            self._machine, plan, self._notice, closed=closed, all_exited=all_exited
        )
        gone = judged_fleet(
            self._clock.now(),
            self._machine,
            launch,
            attempt,
            kill.known,
            self._host_of,
            committed,
            self._notice,
            self._redact,
        )
        gone = replace(gone, unproven=unproven)
        self._last_gone = gone
        self._suspect = launch if gone.failure is not None and gone.failure.hardware else None
        self._kill_of = self._attempt = self._launch = None
        self._reactor.post(gone)

    # --- means ------------------------------------------------------------------------------

    def _place_agents(self) -> None:
        """Place agents on the nodes that need one."""
        for node in self._fleet.to_place(self._clock.now()):
            self._placed += 1
            agent = f"{self._lead.name}-{self._placed}"
            self._fleet.asked_for(agent, node)
            self._transport.place(agent, node.id)

    def _introduce(self, agent: str) -> None:
        lead = self._lead
        told = lead.version, lead.lost_after, lead.owner_file, lead.announcer
        self._send(agent, Lead(lead.epoch, *told))

    def _send(self, agent: str, command: Command) -> None:
        self._transport.send(agent, encoded(command))

    def _send_to_all(self, attempt: int, command: Command) -> None:
        """Send a command to all agents of the attempt, if it runs. Safe in any thread."""
        running = self._attempt
        if running is not None and running.number == attempt:
            for agent in dict.fromkeys(running.agents):
                self._send(agent, command)

    def _host_of(self, agent: str) -> str:
        host = self._fleet.hosts.get(agent)
        return host.node.id if host is not None else agent

    def _notice(self, told: Notice) -> None:
        self._reactor.post(Noticed(self._clock.now(), told))

    def _mention(self, told: Notice) -> None:
        self._reactor.post(Noticed(self._clock.now(), told, routine=True))


def _num_ports(start: _Start) -> int:
    """Returns how many ports an attempt needs on the host of rank 0."""
    return 2 if start.slices else 1
