"""Runs worker groups on many hosts: the leader's side, an implementation of `engine.Engine`.

It tells the agents what to start, answers their questions, and posts what their reports add up to:
one group of workers. `fleet` knows which hosts are ready, lost or safely gone, `host_problems`
which cannot be used, and `fleet_attempt` adds the reports up. `capacity_look` finds the hosts of
the next attempt, `fleet_start` starts it on them, `observation` and `forwarding` post what happens
to it, `departures` tells of hosts that go, and `fleet_ending` ends it. The `transport` reaches the
agents.

Commands may get lost. At each question of an agent, the leader repeats what the agent has not done
yet (`_repeat`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from supervisor.config.plan import PhasePlan
from supervisor.core.events import (
    LaunchCancelled,
    LaunchFailed,
    WorkersGone,
    WorkersStarted,
)
from supervisor.diagnosis.failure import Failure, Survivor, WorkerExit
from supervisor.diagnosis.verdicts import no_hosts_failure
from supervisor.engines.fleet.capacity_look import FIRST_JOIN, CapacityLook
from supervisor.engines.fleet.departures import Departures
from supervisor.engines.fleet.fleet import Fleet
from supervisor.engines.fleet.fleet_attempt import FleetAttempt
from supervisor.engines.fleet.fleet_ending import FleetEnding
from supervisor.engines.fleet.fleet_means import Leadership, Means
from supervisor.engines.fleet.fleet_messages import (
    Answer,
    Command,
    DumpRankStacks,
    Evidences,
    Gone,
    Hello,
    KillRanks,
    MessageError,
    NameHolders,
    NotStarted,
    Observed,
    Ports,
    Probed,
    Question,
    Report,
    Started,
    TerminateRanks,
    Told,
    report_of,
)
from supervisor.engines.fleet.fleet_start import FleetStart
from supervisor.engines.fleet.forwarding import Forwarding
from supervisor.engines.fleet.host_problems import HostProblems
from supervisor.engines.fleet.observation import INTERVAL, Observation
from supervisor.engines.fleet.own_sleep import OwnClock
from supervisor.engines.fleet.spare_standbys import SpareStandbys
from supervisor.engines.fleet.transport import Node, Transport
from supervisor.engines.host_port import Compilations, Host, MainLoop
from supervisor.engines.judging import redacted
from supervisor.engines.launch import Launch
from supervisor.engines.manifest_keeping import ManifestKeeping
from supervisor.engines.newest_step import newest_told
from supervisor.engines.verified_start import VerifiedStart
from supervisor.host.notice import Notice
from supervisor.ports import Clock

_TICKS = 20
"""How often in `lost_after` seconds the fence is looked at."""


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
        *,
        wait_for_capacity: float,
    ) -> None:
        """`wanted` hosts are to have an agent; for `hosts_per_slice` see `Fleet`. `check` raises if
        we do not lead any more: it is called before every answer. `machine` is the leader's own
        host. A probe waits no longer than `wait_for_capacity` for hosts that the cluster does not
        have."""
        self._reactor = reactor
        self._clock = clock
        self._machine = machine
        self._compile_cache = compile_cache
        self._lead = leadership
        self._check = check
        self._redact = redact
        longer = max(0.0, leadership.lost_after_before - leadership.lost_after)
        began = clock.now() if leadership.began is None else leadership.began
        fleet = Fleet(leadership.lost_after, began + longer, wanted, hosts_per_slice)
        self._fleet = fleet
        self._means = means = Means(transport, reactor, clock, leadership, fleet, redact)
        self._start_of: FleetStart | None = None
        self._attempt: FleetAttempt | None = None
        self._launch: Launch | None = None
        self._last_gone: WorkersGone | None = None
        self._suspect: Launch | None = None
        """The last attempt, if its failure points at the devices."""
        self._capacity = CapacityLook(means, wait_for_capacity)
        self._departures = Departures(means)
        self._ending = FleetEnding(means, machine, compile_cache, self._over)
        self._observation = Observation(means, self._runs)
        self._spares = SpareStandbys()
        self._problems = HostProblems(means)
        self._own_clock = OwnClock(leadership.lost_after, clock.now())
        self._verified = VerifiedStart(reactor, clock, machine, means.notice, means.mention)
        self._manifests = ManifestKeeping(reactor, clock, machine, environ, means.notice)
        self._forwarding = Forwarding(means, compile_cache, self._spares, self._manifests)
        transport.begin(self)
        self._tick()

    @property
    def directory(self) -> Path | None:
        """See `engine.Engine`."""
        return self._launch.directory if self._launch is not None else None

    @property
    def nodes(self) -> tuple[str, ...]:
        """The node of each rank of the last attempt that was placed."""
        return self._fleet.before

    # --- the engine's members ---------------------------------------------------------------

    def start(self, launch: Launch) -> None:
        """See `engine.Engine`."""
        self._launch, self._attempt, self._last_gone = launch, None, None
        self._suspect = None
        start = FleetStart(self._means, launch)
        self._start_of = start
        self._forwarding.begin()
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
        self._fleet.left_out = frozenset(left_out)
        self._means.place_agents()
        suspect = self._suspect if self._attempt is None else None
        self._capacity.begin(number, plan.workers, suspect)

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
            self._means.transport.remove(agent)

    def name_holders(self) -> None:
        """See `engine.Engine`."""
        for agent in self._fleet.hosts:
            self._means.send(agent, NameHolders(self._lead.epoch))

    def kill(
        self, launch: Launch, exits: tuple[WorkerExit, ...], late: tuple[Survivor, ...] = ()
    ) -> None:
        """See `engine.Engine`."""
        self._verified.cancel()
        self._capacity.cancel()
        self._start_of = None
        if self._ending.attempt == launch.attempt:
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
        self._ending.begin(launch, exits, attempt, everybody=everybody)

    # --- starting ---------------------------------------------------------------------------

    def _begin(self, start: FleetStart) -> None:
        """Place the ranks of an attempt on hosts, once enough of them are ready."""
        if self._start_of is not start or self._attempt is not None:
            return
        launch = start.launch
        hosts = start.ready_hosts()
        if len(hosts) < launch.world_size:
            now = self._clock.now()
            if lost := start.lost_unit():
                told = self._tell_lost(lost, self._fleet.why_not_ready(lost, now))
                self._refused(start, no_hosts_failure(told))
            elif now - start.began > FIRST_JOIN:
                self._refused(start, no_hosts_failure(start.why_not_ready()))
            return
        self._attempt = start.place(hosts)
        start.newest = newest_told(self._machine, launch.plan, self._means.notice)
        start.cache = self._compile_cache.environment(dict(launch.plan.env))
        self._manifests.begin(launch)
        start.start_all_ranks()
        self._reactor.call_later(INTERVAL, partial(self._look_again, self._attempt))

    def _on_ports(self, agent: str, report: Ports) -> None:
        start, attempt = self._start_of, self._attempt
        if start is None or attempt is None:
            return
        failure = start.note_ports(agent, report)
        if failure is not None:
            self._fail_start(start, attempt, failure)

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
                self._observation.now(attempt)

    def _begin_standbys(self, start: FleetStart) -> None:
        """From now on have the spares prepare standbys, once the attempt has recovered."""
        where, now = start.coordinator or "", self._clock.now()
        self._spares.begin(self._lead.epoch, start.launch, where, start.newest, start.cache, now)

    def _fail_start(self, start: FleetStart, attempt: FleetAttempt, failure: Failure) -> None:
        """Kill what was started of an attempt, and post that it could not be started."""
        self._start_of = None

        def gone() -> None:
            self._refused(start, failure)

        self._ending.begin(start.launch, (), attempt, gone)

    def _refused(self, start: FleetStart, failure: Failure) -> None:
        self._start_of = self._attempt = self._launch = None
        self._ending.forget()
        told = redacted(failure, self._redact)
        self._reactor.post(LaunchFailed(self._clock.now(), start.launch.attempt, told))

    # --- the transport's listener -----------------------------------------------------------

    def nodes_seen(self, nodes: tuple[Node, ...]) -> None:
        """See `transport.Listener`."""
        self._fleet.cluster_lost = None
        self._fleet.seen(nodes)
        self._means.place_agents()
        self._problems.tell_passed_over()

    def agent_placed(self, agent: str, node: str) -> None:
        """See `transport.Listener`."""
        self._fleet.placed(agent, node)
        self._means.introduce(agent)

    def agent_lost(self, agent: str, why: str, remedy: str = "") -> None:
        """See `transport.Listener`."""
        lost = self._fleet.lost(agent, why, self._clock.now(), remedy)
        if lost is not None and lost.problem:
            self._problems.tell(lost)
        for name, host in self._fleet.hosts.items():
            if host.problem and not host.lost:  # it may have been the other agent of its machine
                self._means.introduce(name)
        self._look_for_lost()
        self._means.place_agents()

    def cluster_lost(self, why: str) -> None:
        """See `transport.Listener`."""
        self._fleet.cluster_lost = self._clock.now(), why
        text = (
            f"the cluster does not answer: {why}; if it stays so, the job saves, and waits for a "
            "cluster"
        )
        self._means.notice(Notice("cluster-lost", text, reason=why))

    def heard(self, agent: str, payload: bytes) -> None:
        """See `transport.Listener`."""
        self._note_that_we_run()
        try:
            report = report_of(payload)
        except MessageError as error:
            self._problems.not_understood(agent, error)
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
                self._problems.greet(agent, report)
            case Ports():
                self._on_ports(agent, report)
            case Evidences():
                self._ending.note_evidence(agent, report)
            case Told():
                self._forwarding.hear(agent, report, self._attempt)
            case Probed():
                self._capacity.note(agent, report)
            case Started() | NotStarted() | Observed() | Gone():
                self._on_attempt(agent, report, now)
                self._ending.look()

    def _on_question(self, agent: str, question: Question, now: float) -> None:
        if question.epoch > self._lead.epoch:
            self._problems.obeys_another(agent, question.epoch)
            return
        if question.epoch < self._lead.epoch:
            self._means.introduce(agent)
            return
        self._check()
        self._means.send(agent, Answer(self._lead.epoch, question.number))
        was_ready = self._fleet.hosts[agent].is_ready(now, self._lead.lost_after)
        self._fleet.questioned(agent, question, now)
        host = self._fleet.hosts[agent]
        if not host.machine or host.problem:  # its answer was lost, or it can be used by now
            self._means.introduce(agent)
        self._repeat(agent, question)
        if not was_ready:
            self._on_ready()

    def _repeat(self, agent: str, question: Question) -> None:
        """Tell an agent again what it has not done yet."""
        start, attempt = self._start_of, self._attempt
        if self._ending.is_on:
            self._ending.repeat(agent)
        elif attempt is None or agent not in attempt.agents:
            if question.attempt is not None:  # of an earlier leader, or it was thought to be lost
                self._means.send(agent, KillRanks(self._lead.epoch, question.attempt))
            else:
                self._repeat_to_spare(agent, question)
        elif question.gone == attempt.number and agent not in attempt.gone:
            self._means.send(
                agent, KillRanks(self._lead.epoch, attempt.number)
            )  # its `Gone` was lost
        elif start is not None and agent not in attempt.started:
            start.start_ranks(agent)

    def _repeat_to_spare(self, agent: str, question: Question) -> None:
        """Tell an agent that has no ranks again what it has not probed or prepared yet."""
        attempt = self._attempt
        command: Command | None = None
        if self._capacity.probes_devices:
            command = self._capacity.wanted(agent)
        elif attempt is not None and self._start_of is None and self._fleet.hosts[agent].stays:
            command = self._spares.wanted(question, attempt.number, self._clock.now())
        if command is not None:
            self._means.send(agent, command)

    def _on_attempt(
        self, agent: str, report: Started | NotStarted | Observed | Gone, now: float
    ) -> None:
        attempt = self._attempt
        if isinstance(report, Gone):
            self._ending.note_gone(agent, report)
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
                self._note_slept(agent, attempt, now)
            case Gone():
                news = attempt.note_gone(agent, report, now)
                self._note_slept(agent, attempt, now)
                if self._start_of is not None and not self._ending.is_on:
                    why = f"host {self._means.host_of(agent)} was cut off while others started"
                    why = attempt.slept.get(agent, why)
                    self._fail_start(self._start_of, attempt, no_hosts_failure(why))
        if news:
            self._observation.soon(attempt)

    # --- looking ----------------------------------------------------------------------------

    def _note_that_we_run(self) -> None:
        """Tell people if we did not, for so long that workers die by it."""
        sleep = self._own_clock.runs(self._clock.now())
        if sleep is not None and self._attempt is not None:
            text = (
                f"{sleep.text}: after {self._lead.lost_after:g} s (lost_after) the guards of the "
                "hosts kill the workers, and the attempt starts again; nothing is charged for that"
            )
            self._means.notice(Notice("leader-slept", text, seconds=sleep.seconds))

    def _tick(self) -> None:
        self._note_that_we_run()
        self._look_for_lost()
        if self._attempt is not None and self._start_of is None and not self._ending.is_on:
            self._departures.look(self._attempt)
        self._on_ready()
        self._ending.look()
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
        self._means.place_agents()

    def _note_slept(self, agent: str, attempt: FleetAttempt, now: float) -> None:
        """Note that the ranks of an agent died because we did not run, if it is so."""
        sleep = self._own_clock.explains(now)
        if sleep is not None and agent not in attempt.lost:
            attempt.note_slept(agent, sleep.text, sleep.began)

    def _host_lost(self, agent: str, attempt: FleetAttempt, why: str, now: float) -> None:
        if agent in attempt.gone:
            return
        name, sleep = self._means.host_of(agent), self._own_clock.explains(now)
        if sleep is not None and sleep.seconds < self._lead.lost_after:  # who has ended, has ended
            sleep = None if self._fleet.hosts[agent].lost else sleep
        news = attempt.note_lost(agent, why, now)
        if sleep is not None:
            attempt.note_slept(agent, sleep.text, sleep.began)
        else:
            self._tell_lost(name, why)
        start = self._start_of
        if start is not None and not self._ending.is_on:
            told = sleep.text if sleep is not None else f"host {name} was lost: {why}"
            self._fail_start(start, attempt, no_hosts_failure(told))
        elif news:
            self._observation.soon(attempt)

    def _tell_lost(self, name: str, why: str) -> str:
        """Tell people that a host is lost. Returns the words."""
        text = f"host {name} is lost: {why}"
        self._means.notice(Notice("host-lost", text, unit=name, reason=why))
        return text

    def _runs(self, attempt: FleetAttempt) -> bool:
        """Whether all ranks of this attempt were started, and it is not over."""
        return self._start_of is None and self._attempt is attempt

    def _look_again(self, attempt: FleetAttempt) -> None:
        if self._attempt is attempt and self._launch is not None:
            self._manifests.look(self._launch)
            if not self._ending.is_on:
                self._observation.now(attempt)
            self._reactor.call_later(INTERVAL, partial(self._look_again, attempt))

    def _on_ready(self) -> None:
        """A host may have become ready: go on with what waits for hosts."""
        self._capacity.answer()
        if self._start_of is not None and self._attempt is None and not self._ending.is_on:
            self._begin(self._start_of)

    def _over(self, launch: Launch, gone: WorkersGone) -> None:
        """An attempt was judged: post its end."""
        self._last_gone = gone
        self._suspect = launch if gone.failure is not None and gone.failure.hardware else None
        self._attempt = self._launch = None
        self._reactor.post(gone)

    def _send_to_all(self, attempt: int, command: Command) -> None:
        """Send a command to all agents of the attempt, if it runs. Safe in any thread."""
        running = self._attempt
        if running is not None and running.number == attempt:
            for agent in dict.fromkeys(running.agents):
                self._means.send(agent, command)
