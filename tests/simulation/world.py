"""The fake world of one supervisor: carries out its decisions, and tells it what happens.

What it tells may be lost, late, doubled and out of order. What it is asked to do is checked against
the truth of the host before it is done.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from errno import EAGAIN, ENOENT

from supervisor.core.decisions import (
    NEEDS_DURABLE_JOURNAL,
    BeginPhase,
    Decision,
    DumpStacks,
    FinishJob,
    KillWorkers,
    ProbeDevices,
    SignalWorkers,
    StartWorkers,
)
from supervisor.core.events import (
    BadUnit,
    CheckpointCommitted,
    DevicesProbed,
    Event,
    LaunchFailed,
    PhaseBegun,
    SaveMeasured,
    WorkerReported,
    WorkersGone,
    WorkersObserved,
    WorkersStarted,
)
from supervisor.core.policy import RestartPolicy
from supervisor.core.snapshots import Use, refusal
from supervisor.core.state import JobState
from supervisor.diagnosis.failure import Evidence, RankEvidence, Survivor, WorkerExit
from supervisor.diagnosis.rules import Rule
from supervisor.diagnosis.verdicts import judge, launch_failure
from supervisor.files.segments import JOURNAL
from supervisor.protocol.messages import Message
from tests.simulation.disk import FakeStorage
from tests.simulation.host import LEFTOVER, Group, Host

_OBSERVE_INTERVAL = 5.0
_NO_TIME_PASSES = 1000
"""So many looks at one point in time are a loop without end."""


class ViolationError(AssertionError):
    """Something happened that must never happen, or did not happen that must."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What an attempt left in memory."""

    phase: int
    attempt: int
    step: int


class FakeWorld:
    """See `ports.World`."""

    def __init__(
        self,
        host: Host,
        storage: FakeStorage,
        policy: RestartPolicy,
        effect: Callable[[str], None],
        tell: Callable[[str], None],
        rules: tuple[Rule, ...],
        give_up: float,
    ) -> None:
        """`rules` judge a failure; by the (virtual) time `give_up` the job must have ended."""
        self.told: list[Event] = []
        """All that was told so far."""
        self.state: Callable[[], JobState] = JobState
        """Where the runtime stands: what it decides is checked against it."""
        self._host = host
        self._storage = storage
        self._policy = policy
        self._effect = effect
        self._tell = tell
        self._rules = rules
        self._give_up = give_up
        self._mail: list[tuple[float, Event]] = []
        """What has come, and when, and was not read yet."""
        self._kill: KillWorkers | None = None
        """What is to be killed, until it is answered."""
        self._late: tuple[Survivor, ...] = ()
        """What should have ended by then."""
        self._gone: set[int] = set()
        """The attempts that were confirmed gone: nobody looks at them any more."""
        self._looks = (0.0, 0)
        self._memory: Snapshot | None = None
        """It is this supervisor's, and dies with it."""
        self._use = Use(offered=False, declined=False, committed=False)
        self._newest: int | None = None
        """The newest committed step when the last attempt began."""
        self._silent: set[int] = set()
        """The attempts that were called silent."""

    # --- telling ----------------------------------------------------------------------------------

    def wait(self, until: float | None) -> Sequence[Event]:
        """See `ports.World`."""
        self._effect("while the supervisor waits")
        clock = self._host.clock
        due = self._give_up if until is None else until - clock.now() + clock.time
        while not self._mail:
            if clock.time >= self._give_up:
                raise ViolationError("the job does not end although nothing goes wrong any more")
            if not self._host.pass_time(min(due, self._give_up)) and until is not None:
                clock.reach(until)
                break
        self._dawdle()
        self._check_that_time_passes()
        events = [event for _, event in self._mail]
        self._mail = []
        if events:
            self._dawdle()
        return events

    def _dawdle(self) -> None:
        """The supervisor may be slow, or stopped for a while, and find or leave more mail."""
        if self._host.happens(self._host.faults.batch):
            until = self._host.clock.time + self._host.between(0.0, 20.0)
            while self._host.pass_time(until):
                pass

    def unread(self, attempt: int, until: float) -> bool:
        """Whether a word of the attempt came by that time, and nobody has read it yet."""
        return any(
            isinstance(event, WorkerReported) and event.attempt == attempt and came <= until
            for came, event in self._mail
        )

    def _check_that_time_passes(self) -> None:
        time, looks = self._looks
        now = self._host.clock.time
        self._looks = (now, looks + 1 if now == time else 0)
        if looks > _NO_TIME_PASSES:
            raise ViolationError("the supervisor runs in circles")

    def post(self, event: Event, *, surely: bool = False) -> None:
        """Tell the supervisor: with some luck, soon and once. `surely`: as signals arrive."""
        faults = self._host.faults
        if not surely and self._host.happens(faults.lost):
            self._tell(f"lost: {event}")
            return
        late = self._host.happens(faults.late)
        self._deliver(event, self._host.between(0.0, 60.0) if late else 0.0)
        if not surely and self._host.happens(faults.duplicate):
            self._deliver(event, self._host.between(0.0, 60.0))

    def _deliver(self, event: Event, delay: float) -> None:
        if delay == 0.0:
            self._arrive(event)
        else:
            self._host.later(delay, lambda: self._arrive(event))

    def _arrive(self, event: Event) -> None:
        if self._host.watcher is self:  # else this supervisor is gone
            self.told.append(event)
            self._mail.append((self._host.clock.now(), event))

    # --- carrying out -----------------------------------------------------------------------------

    def carry_out(self, decision: Decision) -> None:
        """See `ports.World`."""
        if isinstance(decision, NEEDS_DURABLE_JOURNAL):
            self._check_durable(decision)
        self._effect(f"before {type(decision).__name__} is carried out")
        match decision:
            case BeginPhase(phase):
                self._host.done.discard(phase)
                self._begin(phase)
            case StartWorkers():
                self._start(decision)
            case ProbeDevices():
                delay = self._host.between(0.0, 20.0)
                self._host.later(delay, lambda: self._probe(decision))
            case DumpStacks(attempt):
                self._silent.add(attempt)
            case SignalWorkers(attempt):
                group = self._own(attempt)
                if group is not None:
                    self._host.terminate(group)
            case KillWorkers():
                self._check_exits(decision)
                self._note_late(decision)
                self._kill = decision
                for group in self._host.alive():
                    self._host.kill(group)
                self._answer_kill()
        self._effect(f"after {type(decision).__name__} was carried out")

    def _own(self, attempt: int) -> Group | None:
        group = self._host.groups.get(attempt)
        return group if group is not None and group.owner is self else None

    def _check_durable(self, decision: BeginPhase | StartWorkers | FinishJob) -> None:
        name = type(decision).__name__
        data = self._storage.content.get(JOURNAL, b"")
        if self._storage.durable.get(JOURNAL, 0) < len(data):
            raise ViolationError(f"{name} is carried out although the journal is not durable")
        last = json.loads(data.splitlines()[-1]).get("decisions", []) if data else []
        if not any(told["kind"] == name and told["reason"] == decision.reason for told in last):
            raise ViolationError(f"{name} is carried out although the journal does not tell of it")

    def _begin(self, phase: int) -> None:
        wall = self._host.clock.wall()
        while not self._storage.make_directory(f"{wall:%Y%m%d_%H%M%S}_restartable"):
            wall += timedelta(seconds=1)
        name = f"{wall:%Y%m%d_%H%M%S}_restartable"
        self.post(PhaseBegun(self._host.clock.now(), phase, name, self._host.newest(phase)))

    def _probe(self, decision: ProbeDevices) -> None:
        """What is truly there, unless nothing can be found out."""
        host, now = self._host, self._host.clock.now()
        if host.happens(host.faults.probe_fails):
            answer = DevicesProbed(now, decision.number, (), (), problem="it took too long")
            self.post(answer)
            return
        expected = self._policy.phases[decision.phase].units
        units = expected if decision.units is None else decision.units
        bad = [BadUnit(unit, "not found", found=False) for unit in units if unit in host.missing]
        bad += [BadUnit(u, "it computes wrongly") for u in units if u in host.wrong - host.missing]
        well = tuple(unit for unit in units if unit not in host.missing | host.wrong)
        self.post(DevicesProbed(now, decision.number, well, tuple(bad)))

    def _start(self, decision: StartWorkers) -> None:
        attempt, phase = decision.attempt, decision.phase
        self._check_start(decision)
        self._check_units(decision)
        if self._host.happens(self._host.faults.launch_fails):
            number = ENOENT if self._host.happens(self._host.faults.fatal) else EAGAIN
            failure = launch_failure(OSError(number, "the launch fails"), ("train",))
            self.post(LaunchFailed(self._host.clock.now(), attempt, failure))
            return
        success = self._policy.phases[phase].success
        snapshot = self._lend(decision)
        asked = decision.adjustments
        limits = self._policy.phases[phase]
        rung = decision.num_devices or (limits.rungs[0] if limits.rungs else None)
        units = decision.units or limits.units
        group = self._host.launch(attempt, phase, success, self, asked, snapshot, rung, units)
        self._check_snapshot(group)
        if group.from_snapshot and self._memory is not None:  # it is of this history from now on
            self._memory = replace(self._memory, attempt=attempt)
        slow = self._host.happens(self._host.faults.slow)
        delay = self._host.between(0.0, 30.0) if slow else 0.0
        self._host.later(delay, lambda: self._started(group))
        self._host.later(_OBSERVE_INTERVAL + delay, lambda: self._look_again(group))

    def _check_start(self, start: StartWorkers) -> None:
        attempt, phase = start.attempt, start.phase
        if alive := self._host.alive():
            others = [group.attempt for group in alive]
            raise ViolationError(f"attempt {attempt} starts although {others} still live")
        if attempt <= max(self._host.groups, default=0):
            raise ViolationError(f"attempt {attempt} starts again")
        for earlier in range(phase):
            if not self._host.fulfilled(earlier, self._policy.phases[earlier].success):
                raise ViolationError(f"phase {phase} starts although phase {earlier} is not done")
        if start.directory not in self._storage.content:
            raise ViolationError(f"attempt {attempt} has no directory")

    def _check_units(self, start: StartWorkers) -> None:
        """A rung of the ladder, on as many units as it takes, none of them in quarantine."""
        phase, state = self._policy.phases[start.phase], self.state()
        if start.num_devices is None:
            return
        size = start.num_devices * len(phase.units) // phase.rungs[0]
        known = set(phase.units) - {entry.unit for entry in state.quarantine.entries}
        if start.num_devices not in phase.rungs or len({*start.units} & known) != size:
            raise ViolationError(f"attempt {start.attempt} runs on {start.units}")
        if any(each.num_devices == start.num_devices for each in state.ladder.struck):
            raise ViolationError(f"attempt {start.attempt} runs on a rung that is struck")

    def _lend(self, start: StartWorkers) -> int | None:
        """The step of the snapshot in memory that the next attempt may resume from."""
        newest = self._host.newest(start.phase)
        if self._memory is not None and self._memory.phase != start.phase:
            self._memory = None
        if self._memory is not None:
            above = newest is not None and (self._newest is None or newest > self._newest)
            if refusal(start.distrust, replace(self._use, committed=above)) is not None:
                self._memory = None
        self._newest = newest
        self._use = Use(offered=self._memory is not None, declined=False, committed=False)
        return self._memory.step if self._memory is not None else None

    def _check_snapshot(self, group: Group) -> None:
        """What the design asks of a snapshot that is used, by what truly happened."""
        found, last = self._memory, self._host.groups.get(group.attempt - 1)
        if not group.from_snapshot:
            return
        if found is None or last is None or last.owner is not self:
            raise ViolationError("a snapshot outlives its supervisor")
        if (found.attempt, found.phase) != (last.attempt, group.phase):
            raise ViolationError("a snapshot is of a history that is over")
        if last.wrong and last.attempt not in self._silent:
            raise ViolationError("a snapshot is used after more than a kill, hang or preemption")
        if last.from_snapshot and not last.committed:
            raise ViolationError("a second attempt resumes from memory without a new checkpoint")
        if found.step < (self._host.newest(group.phase) or 0):
            raise ViolationError("a snapshot is used although a checkpoint is newer")

    def _check_exits(self, kill: KillWorkers) -> None:
        group = self._host.groups.get(kill.attempt)
        if not set(kill.exits) <= set(group.exits if group is not None else ()):
            raise ViolationError(f"attempt {kill.attempt} did not end as it is said to have")

    def _note_late(self, kill: KillWorkers) -> None:
        """Of what should have ended, what truly lives when it is first killed."""
        if self._kill is None:
            group = self._own(kill.attempt)
            still = self._survivors(group) if group is not None else ()
            self._late = tuple(each for each in kill.survivors if each in still)

    def _started(self, group: Group) -> None:
        pids = self._pids(group)
        self.post(WorkersStarted(self._host.clock.now(), group.attempt, pids))

    # --- watching (`host.Watcher`) ----------------------------------------------------------------

    def ended(self, group: Group) -> None:
        """A process of the group ended."""
        if group.owner is self and group.exits:
            self._observe(group)
        self._answer_kill()

    def said(self, group: Group, message: Message) -> None:
        """A worker of the group said something."""
        if group.owner is self:
            self.post(WorkerReported(self._host.clock.now(), group.attempt, 0, message))

    def committed(self, group: Group, step: int) -> None:
        """A checkpoint of the group was committed."""
        if group.owner is self:
            self.post(CheckpointCommitted(self._host.clock.now(), group.phase, step))
            took = self._host.between(0.5, 20.0)
            self.post(SaveMeasured(self._host.clock.now(), group.attempt, took))

    def restored(self, group: Group) -> None:
        """The group has its state; what it did not resume from it clears away."""
        if group.owner is self and not group.from_snapshot:
            self._memory = None
            self._use = replace(self._use, declined=True)

    def snapped(self, group: Group, step: int) -> None:
        """The group took a snapshot."""
        self._memory = Snapshot(group.phase, group.attempt, step)

    def _look_again(self, group: Group) -> None:
        if self._host.watcher is self and group.attempt not in self._gone:
            self._observe(group)
            self._host.later(_OBSERVE_INTERVAL, lambda: self._look_again(group))

    def _observe(self, group: Group) -> None:
        now = self._host.clock.now()
        exits = tuple(group.exits)
        pids, survivors = self._pids(group), self._survivors(group)
        self.post(WorkersObserved(now, group.attempt, pids, exits, survivors))

    def _survivors(self, group: Group) -> tuple[Survivor, ...]:
        if LEFTOVER not in group.alive or not group.exits:
            return ()
        return (Survivor(1000 * group.attempt + 999, "left behind"),)

    def _pids(self, group: Group) -> tuple[int, ...]:
        return tuple(1000 * group.attempt + rank for rank in group.ranks)

    def _answer_kill(self) -> None:
        """`WorkersGone`, once no process of the job lives."""
        if self._kill is None or self._host.alive():
            return
        kill, phase = self._kill, self._kill.phase
        self._kill = None
        self._gone.add(kill.attempt)
        group = self._own(kill.attempt)
        committed = self._host.newest(phase)
        evidence = self._evidence(kill.exits, group, phase, committed)
        self.post(
            WorkersGone(
                self._host.clock.now(),
                kill.attempt,
                judge(evidence, self._policy.phases[phase].success, self._rules),
                resumed_from=group.resumed_from if group is not None else None,
                step=group.step if group is not None else None,
                committed=committed,
                adjustable=group.adjustable if group is not None else (),
                from_snapshot=group is not None and group.from_snapshot,
            )
        )

    def _evidence(
        self,
        known: tuple[WorkerExit, ...],
        group: Group | None,
        phase: int,
        committed: int | None,
    ) -> Evidence:
        """What is left of the attempt; of another supervisor's, only what that one had written."""
        exits = tuple(group.exits) if group is not None else known
        records = group.records if group is not None else {}
        return Evidence(
            ranks=tuple(
                RankEvidence(ended, records.get(ended.rank), fell=ended in known) for ended in exits
            ),
            step=group.step if group is not None else None,
            committed=committed,
            pattern_seen=group is not None and group.printed,
            file_exists=phase in self._host.files,
            survivors=self._late if group is not None else (),
        )
