"""The agent: runs the ranks of its host as the leader says, and never decides.

It obeys the highest epoch that it has heard. It starts nothing of an attempt that it was asked to
kill, or of an earlier one: commands may come late.

**The fence.** Every `lost_after`/4 it asks the leader a numbered question, and remembers when it
sent each. An answer makes its deadline the time at which the answered question was sent, plus
`lost_after`. The guard kills all ranks at that time, also where this process is frozen. The leader
waits a second longer before it starts another attempt.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import assert_never

from supervisor.adapters.kernel import capacity
from supervisor.adapters.kernel.reactor import Reactor
from supervisor.core.events import (
    DevicesProbed,
    Event,
    LaunchFailed,
    Noticed,
    StopRequested,
    WorkerReported,
    WorkersGone,
    WorkersIdle,
    WorkersObserved,
    WorkersStarted,
)
from supervisor.diagnosis.failure import RankEvidence, WorkerExit
from supervisor.engines.fleet.agent_ranks import Ranks
from supervisor.engines.fleet.evidence_size import bounded, digest_of
from supervisor.engines.fleet.fleet_messages import (
    Answer,
    Command,
    DumpRankStacks,
    Evidences,
    Forwarded,
    Gone,
    GroupSeen,
    Hello,
    KillRanks,
    Lead,
    NameHolders,
    NotStarted,
    Observed,
    Ports,
    PrepareStandby,
    Probed,
    ProbeHost,
    Question,
    RankDigest,
    RankEnd,
    Report,
    ReservePorts,
    ShowEvidence,
    Started,
    StartRanks,
    TerminateRanks,
    Told,
    ToldNotice,
    command_of,
)
from supervisor.engines.fleet.launch_text import launch_of
from supervisor.engines.judging import Seen
from supervisor.engines.launch import Launch
from supervisor.history.writer import writer
from supervisor.host.aside import aside
from supervisor.host.identity import Identity
from supervisor.ports import Clock
from supervisor.protocol import reading
from supervisor.protocol.messages import HostTimeMessage, NoticeMessage, SigtermMessage

QUESTIONS = 4
"""How many questions are asked in `lost_after` seconds."""
_FIRST_LOST_AFTER = 10.0
"""`lost_after` until a leader has said it."""
_ALONE = 6
"""An agent that no leader has answered for so many times `lost_after` ends itself."""


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Agent:
    """One host's part of a fleet."""

    def __init__(
        self,
        reactor: Reactor,
        clock: Clock,
        kill_at: Callable[[float], None],
        make_ranks: Callable[[Launch], Ranks],
        say: Callable[[Report], None],
        identity: Identity,
        boottime: Callable[[], float] = _boottime,
        ask_announcers: Callable[[str], None] = lambda source: None,
        config: str = "",
    ) -> None:
        """`kill_at` tells the guard its deadline, and `say` sends a message to the leader. For
        `config` see `Hello`.

        `make_ranks` is called once, with the first launch. `ask_announcers` is called for each
        leader: see `OwnAnnouncements.ask`.
        """
        self._reactor = reactor
        self._clock = clock
        self._kill_at = kill_at
        self._make_ranks = make_ranks
        self._boottime = boottime
        self._say = say
        self._identity = identity
        self._config = config
        self._ask_announcers = ask_announcers
        self._leaving = ""
        """See `Question.leaving`."""
        self._epoch = 0
        self._lost_after = _FIRST_LOST_AFTER
        self._asked: dict[int, float] = {}
        """When each question was sent that may still be answered, by CLOCK_BOOTTIME."""
        self._number = self._answered = 0
        self._since = self._boottime()
        """When the last answer came, or the agent was started."""
        self._deadline: float | None = None
        self._ranks: Ranks | None = None
        self._launch: Launch | None = None
        """The attempt that runs, or is killed; None: nothing runs."""
        self._killed = 0
        """The highest attempt that the leader had killed: nothing of it may start."""
        self._started: Started | None = None
        self._prepared = 0
        """The last attempt for which a standby was prepared here; 0: none."""
        self._probing = 0
        """The number of the last probe that was asked for; 0: none was."""
        self._probed: Probed | None = None
        """Its answer; None: there is none yet."""
        self._ports: Ports | None = None
        self._ended_at: dict[int, float] = {}
        self._was_overdue = False
        """Whether the guard had to kill the ranks of the present attempt. Their ends may be seen
        only after an answer has come, which moves the deadline on."""
        self._fenced: set[int] = set()
        """The ranks that ended after the deadline, by SIGKILL."""
        self._last: Gone | NotStarted | None = None
        """How the last attempt ended of which this agent had ranks."""
        self._evidence: Sequence[RankEvidence] = ()
        self._unsent: list[Forwarded] = []
        self.is_alone = False
        """Whether no leader was heard for so long that the agent is of no use."""
        self._rounds = 0
        self._ask(0)

    # --- the fence --------------------------------------------------------------------------

    def _ask(self, number: int) -> None:
        """Ask the leader, now and at each quarter of `lost_after`, until another such round has
        begun than the one with this number."""
        if number != self._rounds:
            return
        now = self._boottime()
        self._question(now)
        self.is_alone = now - self._since > _ALONE * self._lost_after
        if self._launch is not None and self._is_overdue:
            self._clear(self._launch)
        self._reactor.call_later(self._lost_after / QUESTIONS, partial(self._ask, number))

    def _question(self, now: float) -> None:
        self._number += 1
        self._asked[self._number] = now
        running = self._launch.attempt if self._launch is not None else None
        gone = self._last.attempt if self._last is not None else None
        ready = self._ranks is not None and self._ranks.has_standby
        answered, prepared, leaving = self._answered, self._prepared, self._leaving
        numbers = (self._epoch, self._number, running, gone, answered, prepared)
        self._say(Question(*numbers, has_standby=ready, leaving=leaving))

    def _answer(self, number: int) -> None:
        sent = self._asked.get(number)
        if sent is None:  # it came twice, or after the answer to a later question
            return
        self._asked = {each: at for each, at in self._asked.items() if each > number}
        was_overdue = self._is_overdue
        self._was_overdue |= was_overdue
        self._answered, self._since = number, self._boottime()
        self._deadline = sent + self._lost_after
        self._kill_at(self._deadline)
        if was_overdue:  # the leader learns at once that its answers come
            self._renew_standbys()
            self._question(self._boottime())

    def _renew_standbys(self) -> None:
        """Have new standbys prepared: the guard has killed those that there were."""
        self._prepared = 0
        if self._ranks is not None:
            self._ranks.renew_standbys()

    @property
    def _is_overdue(self) -> bool:
        """Whether the guard has killed all ranks, or is about to."""
        return self._deadline is None or self._boottime() >= self._deadline

    # --- commands ---------------------------------------------------------------------------

    def heard(self, payload: bytes) -> None:
        """Obey a payload of the leader.

        Raises:
            MessageError: it is not understood.
        """
        command = command_of(payload)
        if command.epoch < self._epoch:
            return
        if command.epoch > self._epoch and not isinstance(command, Lead):
            return  # its introduction was lost, and comes again
        self._obey(command)

    def _obey(self, command: Command) -> None:
        match command:
            case Lead():
                self._follow(command)
            case Answer(_, number):
                self._answer(number)
            case ReservePorts(_, attempt, count):
                self._reserve(attempt, count)
            case StartRanks():
                self._start(command)
            case PrepareStandby():
                self._prepare(command)
            case KillRanks(_, attempt):
                self._kill(attempt)
            case ShowEvidence(_, attempt, ranks):
                self._show(attempt, ranks)
            case ProbeHost():
                self._probe(command)
            case TerminateRanks() | DumpRankStacks() | NameHolders():
                _pass_on(command, self._ranks)
            case forgotten:
                assert_never(forgotten)

    def _follow(self, leader: Lead) -> None:
        is_new = leader.epoch > self._epoch
        self._epoch, self._lost_after = leader.epoch, leader.lost_after
        if is_new:  # no answer of an earlier leader is waited for
            self._asked.clear()
            if self._deadline is not None:  # what one has promised holds no longer than we say
                self._deadline = min(self._deadline, self._boottime() + self._lost_after)
                self._kill_at(self._deadline)
            self._prepared = self._probing = 0
            self._leaving = ""
            self._ask_announcers(leader.announcer)
        token = _token_in(leader.owner_file) if leader.owner_file else None
        self._say(Hello(self._epoch, writer(), self._identity, token, config=self._config))
        if is_new:
            self._rounds += 1
            self._ask(self._rounds)

    def _reserve(self, attempt: int, count: int) -> None:
        if self._ports is None or self._ports.attempt != attempt:
            try:
                self._ports = Ports(attempt, capacity.free_ports(count))
            except OSError as error:
                self._ports = Ports(attempt, (), str(error))
        self._say(self._ports)

    def _start(self, command: StartRanks) -> None:
        attempt = command.attempt
        if self._last is not None and self._last.attempt == attempt:
            self._say(self._last)
        elif self._launch is not None and self._launch.attempt == attempt:
            if self._started is not None:
                self._say(self._started)
        elif attempt > self._killed and self._launch is None and not self._is_overdue:
            launch = launch_of(command.launch)
            ranks = self._ranks_for(launch)
            self._launch, self._started = launch, None
            self._ended_at, self._evidence = {}, ()
            self._fenced.clear()
            self._was_overdue = False
            ranks.start(launch, command.newest, command.cache)

    def _prepare(self, command: PrepareStandby) -> None:
        is_old = command.attempt <= max(self._killed, self._prepared)
        if is_old or self._launch is not None or self._is_overdue:
            return
        launch = launch_of(command.launch)
        if self._ranks_for(launch).prepare(launch, command.newest, command.cache):
            self._prepared = command.attempt

    def _probe(self, command: ProbeHost) -> None:
        if self._launch is not None or self._is_overdue:
            return
        if command.number != self._probing:
            launch = launch_of(command.launch)
            self._probing, self._probed = command.number, None
            self._ranks_for(launch).probe(launch.plan, command.number)
        elif self._probed is not None:
            self._say(self._probed)

    def _kill(self, attempt: int) -> None:
        self._killed = max(self._killed, attempt)
        if self._launch is not None and self._launch.attempt <= attempt:
            self._clear(self._launch)
        elif self._launch is None:
            is_last = isinstance(self._last, Gone) and self._last.attempt == attempt
            self._say(self._last if is_last and self._last else Gone(attempt, (), GroupSeen()))

    def _clear(self, launch: Launch) -> None:
        """Kill what is left of the attempt: the engine answers once it is gone."""
        assert self._ranks is not None
        self._ranks.kill(launch)

    def _show(self, attempt: int, ranks: Sequence[int]) -> None:
        known = self._evidence if self._last and self._last.attempt == attempt else ()
        shown = tuple(bounded(each) for each in known if each.exit.rank in ranks)
        self._say(Evidences(attempt, time.time(), shown))

    def _ranks_for(self, launch: Launch) -> Ranks:
        if self._ranks is None:
            self._ranks = self._make_ranks(launch)
        return self._ranks

    # --- reports ----------------------------------------------------------------------------

    def take(self, events: Sequence[Event]) -> None:
        """Report what the engine has posted."""
        for event in events:
            self._take(event)
        self._flush()

    def _flush(self) -> None:
        """Send the events that wait: what comes after them is told after them."""
        if self._unsent:
            attempt = self._launch.attempt if self._launch is not None else 0
            events, self._unsent = tuple(self._unsent), []
            self._say(Told(attempt, events))

    def _take(self, event: Event) -> None:
        match event:
            case WorkersStarted(_, attempt, pids, _, standby):
                self._started = Started(attempt, pids, standby)
                self._say(self._started)
            case LaunchFailed(_, attempt, failure):
                self._over(NotStarted(attempt, failure))
            case WorkersObserved(at, attempt, _, exits, survivors):
                self._note_ends(exits, at)
                self._flush()
                self._say(Observed(attempt, self._ends(exits), survivors))
            case WorkersGone(at, attempt):
                self._over(self._gone_now(attempt, at))
            case DevicesProbed(_, number, healthy, bad, problem):
                self._probed = Probed(number, healthy, bad, problem)
                self._say(self._probed)
            case Noticed():
                self._take_notice(event)
            case StopRequested():
                self._leaving = event.detail
                self._question(self._boottime())
            case _ if isinstance(event, Forwarded) and (self._speaks or _is_of_each_host(event)):
                self._unsent.append(event)

    def _take_notice(self, noticed: Noticed) -> None:
        told = noticed.text
        name = getattr(told, "event", "")
        if name == "standby-failed" and self._is_overdue:
            return  # the guard has killed it, and there will be a new one
        keys = json.dumps(dict(getattr(told, "keys", {})), default=str)
        self._unsent.append(ToldNotice(name, str(told), keys, noticed.routine))

    @property
    def _speaks(self) -> bool:
        return self._launch is not None and 0 in self._launch.ranks

    def _over(self, last: Gone | NotStarted) -> None:
        """The attempt is over: say so, and again whenever it is asked for."""
        self._flush()
        self._launch, self._last = None, last
        self._say(last)

    def _note_ends(self, exits: Sequence[WorkerExit], at: float) -> None:
        for ended in exits:
            if ended.rank not in self._ended_at:
                self._ended_at[ended.rank] = at
                if ended.signal == "SIGKILL" and (self._is_overdue or self._was_overdue):
                    self._fenced.add(ended.rank)

    def _ends(self, exits: Sequence[WorkerExit]) -> tuple[RankEnd, ...]:
        now = self._clock.now()
        return tuple(
            RankEnd(each, max(0.0, now - self._ended_at[each.rank]), each.rank in self._fenced)
            for each in exits
        )

    def _gone_now(self, attempt: int, at: float) -> Gone:
        """Returns what the leader is told of an attempt that is gone since the time `at`. All
        evidence is kept until it asks for it."""
        assert self._ranks is not None
        self._evidence = self._ranks.evidence
        exits = [each.exit for each in self._evidence]
        self._note_ends(exits, at)
        digests = tuple(
            RankDigest(
                end, each.stage, each.ended_before_kill, each.record is not None, digest_of(each)
            )
            for end, each in zip(self._ends(exits), self._evidence, strict=True)
        )
        size = self._launch.world_size if self._launch is not None else 0
        return Gone(attempt, digests, _group_seen(self._ranks.seen), size)


def _pass_on(command: TerminateRanks | DumpRankStacks | NameHolders, ranks: Ranks | None) -> None:
    if ranks is None:
        return
    match command:
        case TerminateRanks(_, attempt, interrupt):
            ranks.terminate(attempt, interrupt=interrupt)
        case DumpRankStacks(_, attempt):
            ranks.dump_stacks(attempt)
        case NameHolders():
            ranks.name_holders()


def _group_seen(seen: Seen) -> GroupSeen:
    """Returns what of `seen` is about the whole group."""
    names = (name for name in GroupSeen.__slots__ if hasattr(seen, name))
    return replace(GroupSeen(), **{name: getattr(seen, name) for name in names})


def _token_in(owner_file: str) -> str | None:
    """Returns the token in the leader's owner file, as this host sees it."""
    try:
        told = aside(str(Path(owner_file).parent)).ask(lambda: reading.read_object(owner_file))
    except (OSError, ValueError):
        return None
    token = told.get("token")
    return token if isinstance(token, str) else None


def _is_of_each_host(event: Forwarded) -> bool:
    """Whether the leader wants such an event of each host, and not of the speaker's alone."""
    match event:
        case WorkerReported(message=NoticeMessage() | SigtermMessage() | HostTimeMessage()):
            return True
        case _:
            return isinstance(event, WorkersIdle)
