"""The machine below the supervisors: time, processes and checkpoints, as they truly are.

What the fake worker groups do is decided here; supervisors come and go and see only what the fake
world (`world.py`) tells them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Protocol

from supervisor.adapters.processes.output import Record
from supervisor.config.judgement import Remedy
from supervisor.diagnosis.failure import WorkerExit
from supervisor.diagnosis.success import Success
from supervisor.protocol.adjustments import SKIP_STEPS, Adjustments
from supervisor.protocol.failure import ExceptionInfo, FailureRecord
from supervisor.protocol.messages import Message, Stage, StageMessage, StepMessage
from tests.simulation.clock import Timeline
from tests.simulation.scenario import NONE, Faults, Scenario

LEFTOVER = -1
"""The "rank" of a process that a worker left behind."""

_TELLS = {
    Remedy.LESS_AT_ONCE: ("JaxRuntimeError", "RESOURCE_EXHAUSTED: Out of memory allocating 9 B"),
    Remedy.ROLL_BACK: ("FloatingPointError", "the loss is nan"),
    Remedy.WAIT: ("JaxRuntimeError", "The TPU is already in use by process with pid 5"),
    Remedy.WAIT_LONG: ("RefreshError", "invalid_grant: Token has been expired or revoked"),
    Remedy.WAIT_FOR_CAPACITY: ("RuntimeError", "There is no more capacity in the zone"),
    Remedy.WAIT_FOR_STORAGE: ("RuntimeError", "503 Service Unavailable"),
}
"""What a program says that dies of something that has a remedy."""

_TOO_SMALL = {True: "CompileTimeHbmOom: it does not fit", False: "it does not fit"}
"""What a program says for which a rung is too small, by whether that is certain."""

_COMPILES = """Traceback (most recent call last):
  File "/site-packages/jax/compiler.py", line 1, in backend_compile
jax.errors.JaxRuntimeError: it does not fit
"""

_STRIDE = (2.0, 8.0)
"""Seconds of training between two reports, and from tick to tick."""


class ViolationError(AssertionError):
    """Something happened that must never happen, or did not happen that must."""


class Watcher(Protocol):
    """Who is told what truly happens: the world of the supervisor that runs now."""

    def ended(self, group: Group) -> None:
        """A process of some group ended."""
        ...

    def said(self, group: Group, message: Message) -> None:
        """A worker of the group said something."""
        ...

    def committed(self, group: Group, step: int) -> None:
        """A checkpoint of the group was committed."""
        ...

    def restored(self, group: Group) -> None:
        """The group has its state, and says what it is."""
        ...

    def snapped(self, group: Group, step: int) -> None:
        """The group took a snapshot."""
        ...

    def got_sigterm(self, group: Group, rank: int) -> None:
        """A rank of the group got a SIGTERM, from whomever."""
        ...

    def recorded(self, group: Group, record: FailureRecord) -> None:
        """A rank of the group left a failure record."""
        ...

    def printed(self, group: Group) -> None:
        """The group said in its output that its work is done."""
        ...


@dataclass(slots=True, eq=False)
class Group:
    """A worker group, as it truly is."""

    attempt: int
    phase: int
    success: Success
    ranks: tuple[int, ...]
    owner: Watcher
    """The world of the supervisor that started it."""
    alive: set[int]
    resumed_from: int | None
    step: int
    adjustments: Adjustments
    adjustable: tuple[str, ...]
    """What more it could adjust."""
    num_devices: int | None
    units: tuple[str, ...]
    """What it runs on."""
    from_snapshot: bool = False
    """What it resumed from was no checkpoint."""
    wrong: bool = False
    """It was not only ended from outside: it failed in some way of its own."""
    committed: bool = False
    """It committed a checkpoint above all that were there."""
    exits: list[WorkerExit] = field(default_factory=list)
    stuck: bool = False
    """It does not advance any more: a hang, or a collective that waits for a dead rank."""
    deaf: bool = False
    """It is so stuck that it does not hear SIGTERM either."""
    told_step: int | None = None
    """The last step that a worker has told."""
    asked: bool = False
    printed: bool = False
    """It said that its work is done."""
    dying: bool = False
    recorded: set[int] = field(default_factory=set)
    """The ranks that left a failure record."""
    killed: set[int] = field(default_factory=set)
    """The ranks that got SIGKILL."""
    told_to_stop: set[int] = field(default_factory=set)
    """The ranks that got a SIGTERM that the supervisor did not send."""

    @property
    def has_begun(self) -> bool:
        """Whether it has trained a step: before, it initialises."""
        return self.step > (self.resumed_from or 0)

    @property
    def workers(self) -> list[int]:
        """The ranks that live."""
        return [rank for rank in self.ranks if rank in self.alive]


class Host(Timeline):
    """Time, worker groups and checkpoints."""

    def __init__(self, scenario: Scenario, rng: Random, tell: Callable[[str], None]) -> None:
        super().__init__()
        self.watcher: Watcher | None = None
        self.groups: dict[int, Group] = {}
        self.committed: defaultdict[int, set[int]] = defaultdict(set)
        self.ever: dict[int, int] = {}
        """The highest step ever committed, by phase."""
        self.reached: dict[int, int] = {}
        """The highest step ever completed, by phase."""
        self.done: set[int] = set()
        """The phases of which a group ended having done its work."""
        self.files: set[int] = set()
        """The phases whose success file is there."""
        self.kept: dict[str, bytes] = {}
        """Files that workers have left, by path."""
        self.outputs: dict[str, Record] = {}
        """What was kept of their outputs, by path."""
        self.units = scenario.policy.phases[0].units
        self.missing: set[str] = set()
        self.wrong: set[str] = set()
        """The units that are not there, and those that compute wrongly."""
        self._missing = set(scenario.missing)
        self._scenario = scenario
        self._rng = rng
        self._tell = tell

    # --- time -----------------------------------------------------------------------------------

    @property
    def faults(self) -> Faults:
        """What can go wrong now."""
        return self._scenario.faults if self.clock.time < self._scenario.benign else NONE

    def happens(self, probability: float) -> bool:
        """A throw of the dice."""
        return probability > 0.0 and self._rng.random() < probability

    def between(self, low: float, high: float) -> float:
        """Some number of seconds."""
        return self._rng.uniform(low, high)

    # --- worker groups --------------------------------------------------------------------------

    def alive(self) -> list[Group]:
        """The groups of which a process lives."""
        return [group for group in self.groups.values() if group.alive]

    def last_before(self, group: Group) -> Group | None:
        """The group that was started before this one."""
        earlier = [attempt for attempt in self.groups if attempt < group.attempt]
        return self.groups[max(earlier)] if earlier else None

    def launch(
        self,
        attempt: int,
        phase: int,
        success: Success,
        owner: Watcher,
        asked: Adjustments,
        snapshot: int | None,
        num_devices: int | None,
        units: tuple[str, ...],
    ) -> Group:
        """Start a worker group: it restores the snapshot in memory, or else the newest checkpoint
        that is there, and adjusts what it is asked to."""
        several = self._scenario.world_size > 1 and bool(units)
        ranks = tuple(range(len(units) if several else self._scenario.world_size))
        step = self.newest(phase)
        from_snapshot = snapshot is not None and (step is None or snapshot >= step)
        step = snapshot if from_snapshot else step
        adjustable = self._scenario.adjustable
        if len(asked.skip_steps) < self._scenario.max_skipped:
            adjustable = (*adjustable, SKIP_STEPS)
        group = Group(
            attempt,
            phase,
            success,
            ranks,
            owner,
            set(ranks),
            step,
            step or 0,
            asked,
            adjustable,
            num_devices,
            units,
        )
        group.from_snapshot = from_snapshot
        if self.happens(self.faults.leftover):
            group.alive.add(LEFTOVER)
        self.groups[attempt] = group
        self.later(self.between(0.0, 2 * _STRIDE[0]), lambda: self._restored(group))
        self.later(self.between(*_STRIDE), lambda: self._advance(group))
        return group

    def _restored(self, group: Group) -> None:
        if not group.dying and len(group.workers) == len(group.ranks):
            group.owner.restored(group)

    def _advance(self, group: Group) -> None:
        """The group trains a step further, unless something happens to it."""
        if group.stuck or group.asked or group.dying or len(group.workers) < len(group.ranks):
            return
        faults = self.faults
        if group.num_devices in self._scenario.too_small:
            text = _TOO_SMALL[self._scenario.too_small_for_sure]
            record = self._record(0, "JaxRuntimeError", text, traceback=_COMPILES)
            self._die(group, WorkerExit(0, code=1), record)
        elif self.missing.intersection(group.units):
            self._die(group, *self._without_a_unit(group))
        elif self.wrong.intersection(group.units) and self.happens(0.5):
            text = "observed errors are: [Hardware]"
            self._die(group, WorkerExit(0, code=1), self._record(0, "JaxRuntimeError", text))
        elif (trouble := self._trouble(group)) is not None:
            self._die(group, *trouble)
        elif self.happens(faults.worker_fails):
            self._fail(group)
        elif self.happens(faults.struck):
            self._die(group, WorkerExit(self._rng.choice(group.ranks), signal="SIGKILL"), None)
        elif self.happens(faults.hangs * (1 if group.has_begun else 3)):
            self._hang(group)
        elif group.step >= self._target(group):
            self._finish(group)
        else:
            self._take_step(group)

    def _without_a_unit(self, group: Group) -> tuple[WorkerExit, FailureRecord | None]:
        """How a group ends of which a unit is gone."""
        rank = 0
        if len(group.ranks) > 1:
            rank = next(r for r, unit in enumerate(group.units) if unit in self.missing)
            if self.happens(0.5):
                return WorkerExit(rank, signal="SIGKILL"), None
        kind = "DevicesMissing" if group.step == (group.resumed_from or 0) else "RuntimeError"
        text = "observed errors are: [Hardware]"
        return WorkerExit(rank, code=1), self._record(rank, kind, text)

    def _take_step(self, group: Group) -> None:
        group.step += 1
        self.reached[group.phase] = max(self.reached.get(group.phase, 0), group.step)
        message: Message = StepMessage(group.step)
        if group.step == (group.resumed_from or 0) + 1:
            message = StageMessage(Stage.TRAINING, group.step)
        if self.watcher is not None:
            self.watcher.said(group, message)
        every = self._scenario.snapshot_every
        if every and group.step % every == 0 and not self.happens(self.faults.slow):
            group.owner.snapped(group, group.step)
        if group.step % self._scenario.commit_every == 0 or group.step >= self._target(group):
            self._commit(group)
        self.later(self.between(*_STRIDE), lambda: self._advance(group))

    def _trouble(self, group: Group) -> tuple[WorkerExit, FailureRecord] | None:
        """The end of a rank by what comes again however often it is tried."""
        if max(group.adjustments.inflight, group.adjustments.accumulation) < self._scenario.need:
            return self._told(group.ranks[0], Remedy.LESS_AT_ONCE, group.step)
        if group.step >= self._target(group):
            return None
        if group.step + 1 in self._scenario.bad_steps - {*group.adjustments.skip_steps}:
            return self._told(group.ranks[0], Remedy.ROLL_BACK, group.step)
        return self._missed(group) if group.step + 1 in self._missing else None

    def _missed(self, group: Group) -> tuple[WorkerExit, FailureRecord]:
        """The end of a rank that misses a file, which somebody may put there for the next time."""
        if self.happens(0.4):
            self._missing.discard(group.step + 1)
        if self.happens(0.4):  # it saves before it dies
            self._commit(group)
        rank, word = self._rng.choice(group.ranks), self._rng.choice(("train", "train", "eval"))
        completed = group.step if self.happens(0.5) else None
        record = self._record(rank, "FileNotFoundError", f"no such file: {word}", completed)
        return WorkerExit(rank, code=1), record

    def _target(self, group: Group) -> int:
        step = group.success.step
        return self._scenario.ticks if step is None else step

    def _hang(self, group: Group) -> None:
        self._tell(f"attempt {group.attempt} hangs")
        group.stuck = True
        group.deaf = self.happens(0.6)
        if self.watcher is not None and not group.has_begun:
            self.watcher.said(group, StageMessage(Stage.INITIALIZING))

        def somebody_kills_it() -> None:
            """Without a word of its own there is no watchdog: a person has to see it."""
            if group.workers and not group.dying:
                self._end(group, WorkerExit(group.workers[0], signal="SIGKILL"))

        self.later(max(0.0, self._scenario.benign - self.clock.time) + 1000.0, somebody_kills_it)

    def _finish(self, group: Group) -> None:
        """Every rank exits by itself, one after the other; hopefully because the work is done."""
        if group.step >= self._target(group):
            group.printed = True
            group.owner.printed(group)
            self.files.add(group.phase)
        group.wrong = not group.printed
        code = group.success.exit_code
        spread = 20.0 if self.happens(self.faults.slow) else 0.2
        for rank in group.ranks:
            ended = WorkerExit(rank, code=code, told_to_stop=rank in group.told_to_stop)
            self._end_later(self.between(0.0, spread), group, ended)

    def _fail(self, group: Group) -> None:
        """A rank fails in one of many ways; the others are left waiting for it."""
        if self.happens(self.faults.last_commit):
            group.step = min(group.step + 1, self._target(group))
            self.reached[group.phase] = max(self.reached.get(group.phase, 0), group.step)
            group.owner.said(group, StepMessage(group.step))
            self._commit(group)
        if self.happens(self.faults.early_exit):
            self._finish(group)
            return
        rank = self._rng.choice(group.ranks)
        if self.happens(self.faults.preempted / 2):
            self._tell(f"attempt {group.attempt} rank {rank} gets a SIGTERM: all save and exit")
            group.told_to_stop.add(rank)
            group.owner.got_sigterm(group, rank)
            self._finish(group)
            return
        self._die(group, *self._accident(group, rank))

    def _die(self, group: Group, ended: WorkerExit, record: FailureRecord | None) -> None:
        """A rank dies, and the others wait for it."""
        group.stuck = group.deaf = True
        outside = ended.signal in ("SIGKILL", "SIGTERM") or ended.code in (137, 143)
        group.wrong = record is not None or not outside
        self._fall_with(group, ended.rank)
        if record is not None:
            group.owner.recorded(group, record)
            if len(group.workers) > 1 and self.happens(self.faults.slow):
                handlers = self.between(0.0, 1.0) if self.happens(0.5) else 300.0
                self._end_later(handlers, group, ended)  # those of jax.distributed wait long
                return
        self._end(group, ended)

    def _fall_with(self, group: Group, first: int) -> None:
        """The peers of a rank that dies fail of it, before or after it has ended itself."""
        for rank in group.workers:
            if rank != first and self.happens(self.faults.cascade):
                record = self._record(rank, "JaxRuntimeError", "Socket closed")
                delay = self.between(0.0, 3.0)
                self.later(delay, partial(self._fall, group, WorkerExit(rank, code=1), record))

    def _fall(self, group: Group, ended: WorkerExit, record: FailureRecord) -> None:
        if ended.rank in group.alive:
            group.owner.recorded(group, record)
            self._end(group, ended)

    def _told(
        self, rank: int, remedy: Remedy, completed: int | None
    ) -> tuple[WorkerExit, FailureRecord]:
        """The end of a rank that tells of something that has a remedy."""
        kind, message = _TELLS[remedy]
        return WorkerExit(rank, code=1), self._record(rank, kind, message, completed)

    def _accident(self, group: Group, rank: int) -> tuple[WorkerExit, FailureRecord | None]:
        if self.happens(self.faults.fatal):
            return self._fatal(rank)
        if self.happens(self.faults.preempted):
            if self.happens(0.5):
                return WorkerExit(rank, signal="SIGTERM"), None
            return WorkerExit(rank, code=143), None
        if self.happens(self.faults.repeats):
            word = self._rng.choice(("wrong", "odd", "strange"))
            record = self._record(rank, "OddError", f"this is {word}", group.step)
            return WorkerExit(rank, code=self._rng.choice((1, 134))), record
        if self.happens(self.faults.remedied):
            completed = group.step if self.happens(0.5) else None
            return self._told(rank, self._rng.choice([*Remedy]), completed)
        kind = self._rng.randrange(5)
        if kind == 0:
            return WorkerExit(rank, code=1), self._record(rank, "JaxRuntimeError", "Socket closed")
        if kind == 1:
            return WorkerExit(rank, code=self._rng.choice((1, 134, 137))), None
        return WorkerExit(rank, signal=self._rng.choice(("SIGKILL", "SIGSEGV", "SIGABRT"))), None

    def _fatal(self, rank: int) -> tuple[WorkerExit, FailureRecord | None]:
        """The end of a rank that looks as if it would always come again; only one kind of it is
        certain to."""
        kind = self._rng.randrange(3)
        if kind == 0:
            return WorkerExit(rank, code=self._rng.choice((126, 127))), None
        if kind == 1:
            return WorkerExit(rank, code=1), self._record(rank, "SyntaxError", "invalid syntax")
        return WorkerExit(rank, code=134), self._record(rank, "AssertionError", "no")

    def _record(
        self,
        rank: int,
        kind: str,
        message: str,
        completed: int | None = 1,
        traceback: str = "Traceback ...",
    ) -> FailureRecord:
        bases = (kind, "builtins.Exception", "builtins.BaseException")
        chain = (ExceptionInfo(kind, bases, message, "raised"),)
        return FailureRecord(rank, self.clock.time, "TRAINING", completed, chain, traceback)

    def _end_later(self, delay: float, group: Group, ended: WorkerExit) -> None:
        self.later(delay, lambda: self._end(group, ended))

    def _end(self, group: Group, ended: WorkerExit) -> None:
        if ended.rank not in group.alive:
            return
        group.alive.discard(ended.rank)
        if ended.rank != LEFTOVER:
            group.exits.append(ended)
        if LEFTOVER in group.alive and not group.workers and self.happens(0.8):
            left = WorkerExit(LEFTOVER, code=0)
            self._end_later(self.between(0.0, 4.0 if self.happens(0.9) else 40.0), group, left)
        if self.did_its_work(group):
            self.done.add(group.phase)
        self._tell(f"attempt {group.attempt} rank {ended.rank} truly ends: {ended}")
        if self.watcher is not None:
            self.watcher.ended(group)

    def did_its_work(self, group: Group) -> bool:
        """Whether an attempt did its phase's work. Where nothing else tells, an exit of its own
        accord is all that can be known."""
        codes = [known.code for known in group.exits]
        if codes != [group.success.exit_code] * len(group.ranks):
            return False
        stopped = group.asked or group.told_to_stop
        return group.printed if group.success.is_proof else not stopped

    def terminate(self, group: Group) -> None:
        """SIGTERM from the supervisor: save and exit, unless it is hung or does not want to."""
        if group.asked or group.dying:
            return
        group.asked = True
        if group.deaf or self.happens(self.faults.ignores_sigterm):
            return
        for rank in group.workers:
            group.owner.got_sigterm(group, rank)
        slow = self.happens(self.faults.slow)

        def save_and_exit() -> None:
            if group.dying or len(group.workers) < len(group.ranks):
                return
            self._commit(group)
            for rank in group.ranks:
                code = self._rng.choice((group.success.exit_code, 0, 143))
                self._end(group, WorkerExit(rank, code=code))

        self.later(self.between(10.0, 40.0) if slow else self.between(0.1, 4.0), save_and_exit)

    def kill(self, group: Group) -> None:
        """SIGKILL to all of it."""
        group.dying = True
        for process in sorted(group.alive):
            self.kill_rank(group, process)

    def kill_rank(self, group: Group, rank: int) -> None:
        """SIGKILL to one process of it: it dies, though maybe not soon, if it waits for a disk."""
        if rank in group.killed:
            return
        group.killed.add(rank)
        group.stuck = group.deaf = True
        slow = self.happens(self.faults.slow)
        delay = self.between(0.0, 30.0) if slow else self.between(0.0, 0.05)
        self._end_later(delay, group, WorkerExit(rank, signal="SIGKILL"))

    def end_leftover(self, group: Group) -> None:
        """SIGTERM to what its workers left behind: it ends, soon or not at all."""
        if not self.happens(self.faults.ignores_sigterm):
            self._end_later(self.between(0.0, 2.0), group, WorkerExit(LEFTOVER, code=0))

    def lose_power(self) -> None:
        """The machine dies, and with it every process."""
        for group in self.alive():
            group.alive.clear()
            group.dying = True
        self.clock.boot()

    # --- devices and hosts ----------------------------------------------------------------------

    def weather(self, units: tuple[str, ...]) -> None:
        """Units are lost and come back, compute wrongly and are mended; in the end all are well."""
        if self.faults is NONE:
            self.missing.clear()
            self.wrong.clear()
            return
        for kind, probability in (
            (self.missing, self.faults.unit_lost),
            (self.wrong, self.faults.unit_wrong),
        ):
            if self.happens(probability):
                unit = self._rng.choice(units)
                kind.symmetric_difference_update({unit})
                self._tell(f"missing units: {sorted(self.missing)}, wrong: {sorted(self.wrong)}")
        self.later(self.between(10.0, 200.0), lambda: self.weather(units))

    # --- checkpoints ----------------------------------------------------------------------------

    def newest(self, phase: int) -> int | None:
        """The newest checkpoint that is there."""
        return max(self.committed[phase], default=None)

    def _commit(self, group: Group) -> None:
        phase, step = group.phase, group.step
        if step == 0 or step in self.committed[phase]:
            return
        self._tell(f"checkpoint {step} of phase {phase} is truly committed")
        if self.committed[phase] and self.happens(self.faults.vanishes):
            gone = self._rng.choice(sorted(self.committed[phase]))
            self.committed[phase].discard(gone)
            self._tell(f"checkpoint {gone} of phase {phase} vanishes")
        group.committed |= step > self.ever.get(phase, 0)
        self.committed[phase].add(step)
        self.ever[phase] = max(self.ever.get(phase, 0), step)
        if self.watcher is not None:
            self.watcher.committed(group, step)

    def fulfilled(self, phase: int, success: Success) -> bool:
        """Whether the work of a phase has truly been done."""
        if success.step is None:
            return phase in (self.done if success.file is None else self.files)
        known = self.ever.get(phase, 0)
        if not success.committed:
            known = max(known, self.reached.get(phase, 0))
        return known >= success.step
