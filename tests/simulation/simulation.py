"""Plays the history of one seed: a job under supervisors that come and go, until it ends for
good."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import partial
from random import Random

from supervisor.adapters.stores.journal import FileJournal, JournalError
from supervisor.core.events import (
    CheckpointSetAside,
    CheckpointsFound,
    DeadlineReached,
    MaintenanceAnnounced,
    RestartRequested,
    SaveRequested,
    StopRequested,
    StopSource,
    SupervisorStarted,
)
from supervisor.core.exit_codes import ExitCode
from supervisor.core.state import JobState
from supervisor.model_dir_ownership import ModelDirError
from supervisor.ports import Observer, Transition
from supervisor.runtime import Runtime
from tests.simulation import scenario
from tests.simulation.chance import ViolationError
from tests.simulation.checker import Checker
from tests.simulation.disk import FakeStorage
from tests.simulation.true_host import TrueHost
from tests.simulation.world import CheckedWorld

_PATIENCE = 4000.0
"""Virtual seconds after the last fault within which the job must end: three phases, a launch or two
without an answer, and the longest backoff."""


_UNREAD_FOR = 1.0
"""Most seconds for which the engine may leave a worker's message unread."""


class SupervisorKilled(BaseException):
    """The supervisor dies at this point."""


class MachineDied(SupervisorKilled):
    """The whole machine dies, with the supervisor and all else."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened, for the person who reads the history of a seed."""

    time: float
    what: str | Transition


@dataclass(frozen=True, slots=True)
class Result:
    """How the history of a seed ended."""

    seed: int
    exit_code: ExitCode | None
    runs: int
    """How many supervisors ran."""
    attempts: int
    events: int
    violation: Exception | None = None


class Simulation:
    """The history of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.moments: list[Moment] = []
        self._rng = Random(seed)
        self.scenario = scenario.draw(seed, self._rng)
        self._policy = self.scenario.policy
        self._host = TrueHost(self.scenario, self._rng, self._tell)
        self.disk = FakeStorage(self._rng, self._host.disk, self._effect)
        self._checker = Checker(self.disk, self._host)
        self._runs = 0
        self._events = 0
        self._again = 0
        self._world: CheckedWorld | None = None
        self._schedule_nuisances()

    def run(self) -> Result:
        """Play the history to its end."""
        code: ExitCode | None = None
        violation: Exception | None = None
        try:
            while code is None or self._runs_again(code):
                code = self._supervise()
        except Exception as error:  # whatever it is, this seed has caused it
            violation = error
            self._tell(f"VIOLATION: {type(error).__name__}: {error}")
        attempts = max(self._host.groups, default=0)
        return Result(self.seed, code, self._runs, attempts, self._events, violation)

    # --- one run of the command -------------------------------------------------------------------

    def _supervise(self) -> ExitCode | None:
        """Run the command once; returns its exit code. None: it was killed."""
        self._runs += 1
        self._tell(f"--- supervisor {self._runs} starts")
        self.disk.write_fails = self._host.faults.write_fails
        world = self._world = CheckedWorld(
            self._host,
            self.disk,
            self.scenario,
            self._policy,
            self._effect,
            self._tell,
            give_up=self.scenario.benign + _PATIENCE,
        )
        code: ExitCode | None = None
        try:
            code = self._command(world)
        except MachineDied as crash:
            self._tell(f"*** the machine dies {crash}")
            self.disk.lose_power()
            self._host.lose_power()
        except SupervisorKilled as crash:
            self._tell(f"*** the supervisor is killed {crash}")
        except (JournalError, ModelDirError) as error:
            self._tell(f"*** {error}")
            if not (self._host.disk.will_fail_again or self.disk.write_fails):
                raise ViolationError("it cannot write, although the disk is well") from error
            code = ExitCode.CANNOT_WRITE
        world.machine.die()
        for group in self._host.alive():
            self._host.kill(group)
        if code is not None:
            self._tell(f"--- supervisor {self._runs} ends with {code} ({code.name})")
            while self._host.alive():  # it must leave nothing behind
                self._host.pass_time(float("inf"))
        self._pass_time(self._rng.uniform(0.0, 20.0))
        return code

    def _command(self, world: CheckedWorld) -> ExitCode:
        clock = self._host.clock
        after = self._rng.choice((5, 40, 1000))
        journal = _NotedJournal(world.storage, compact_after=after, tell=self._tell)
        history = journal.read()
        self._checker.recovered(history)
        if history.config is None:
            journal.record_config(clock.wall(), [{"trainer": {}}], [])
        phase = min(history.state.phase, len(self._policy.phases) - 1)
        newest, epoch = world.newest(phase), clock.wall().timestamp() - clock.now()
        once = self._rng.random() < 0.5
        first = SupervisorStarted(clock.now(), "job", self._policy, newest, epoch, once)
        observers = tuple(_OfRecords(journal, each) for each in (self, self._checker))
        runtime = Runtime(world, journal, clock, observers, history.state, self._policy)

        def state() -> JobState:
            return runtime.state

        world.state = state
        final = runtime.run(first)
        self._checker.ended(final, world.loop, self._policy)
        assert final.exit_code is not None
        return ExitCode(final.exit_code)

    def _runs_again(self, code: ExitCode) -> bool:
        """Whether a service manager or a person runs the command once more."""
        if code.run_again or code is ExitCode.STOPPED:
            return True
        if self._again >= self.scenario.max_again or self._host.faults == scenario.NONE:
            return False
        self._again += 1
        if code is ExitCode.SUCCEEDED and self._rng.random() < 0.7:
            self._policy = scenario.grown(self._policy, self._rng)
            self._tell("the job is given more to do")
        return True

    def _pass_time(self, seconds: float) -> None:
        until = self._host.clock.time + seconds
        while self._host.pass_time(until):
            pass

    # --- what goes wrong from outside -------------------------------------------------------------

    def _effect(self, where: str) -> None:
        """Kill the supervisor, by chance: it may die between any two effects."""
        faults = self._host.faults
        rare = 0.1 if where == "while the supervisor waits" else 1.0
        if self._host.happens(faults.killed * rare):
            raise (
                MachineDied(where)
                if self._host.happens(faults.machine_dies)
                else SupervisorKilled(where)
            )

    def _schedule_nuisances(self) -> None:
        benign = self.scenario.benign
        for _ in range(self._rng.choice((0, 0, 1, 2, 4))):
            source = self._rng.choice(tuple(StopSource))
            time = self._rng.uniform(0.0, benign)
            for delay in (0.0, self._rng.choice((0.5, 3.0, 30.0)))[: self._rng.randint(1, 2)]:
                self._host.later(time + delay, partial(self._stop, source))
        for _ in range(self._rng.choice((0, 0, 1, 3))):
            self._host.later(self._rng.uniform(0.0, benign), self._turn_the_clock_back)
        for _ in range(self._rng.choice((0, 0, 0, 1))):
            self._host.later(self._rng.uniform(0.0, benign), self._suspend)

        for time in self.scenario.hazards.guard_dies:
            self._host.later(time, self._kill_the_guard)
        self._schedule_requests_and_looks()
        if self._policy.phases[0].units:
            self._host.devices.change_at_random()

    def _schedule_requests_and_looks(self) -> None:
        """By the seed alone: the other histories stay as they are."""
        for number in range(1, 4):
            time = self.scenario.benign * number / 4.0
            if self.seed % 4 == 0:
                self._host.later(time, partial(self._find_checkpoints, f"/found/{number}"))
            if self.seed % 16 == 1:
                self._host.later(time, self._set_a_checkpoint_aside)
            if self.seed % 8 == 3:
                self._host.later(time, self._restart)
            if self.seed % 8 == 5:
                self._host.later(time, self._save)

    def _stop(self, source: StopSource) -> None:
        if self._host.watcher is not None and self._world is not None:
            self._tell(f"{source} asks for a stop")
            if source is StopSource.PREEMPTION:
                self._world.loop.post(MaintenanceAnnounced(self._host.clock.now(), "maintenance"))
            at_once = source is StopSource.PERSON and self._rng.random() < 0.5
            request = StopRequested(self._host.clock.now(), source, at_once=at_once)
            self._world.loop.post(request)

    def _restart(self) -> None:
        if self._host.watcher is not None and self._world is not None:
            self._tell("a person asks for a fresh attempt")
            self._world.loop.post(RestartRequested(self._host.clock.now(), "ann on h1"))

    def _save(self) -> None:
        if self._host.watcher is not None and self._world is not None:
            self._tell("a person asks for a checkpoint")
            self._world.loop.post(SaveRequested(self._host.clock.now(), "ann on h1"))

    def _find_checkpoints(self, directory: str) -> None:
        if self._host.watcher is not None and self._world is not None:
            phase = self._world.state().phase
            self._world.loop.post(CheckpointsFound(self._host.clock.now(), phase, directory))

    def _set_a_checkpoint_aside(self) -> None:
        """Tell of a damaged step above the newest: the steps that the workers restore stay."""
        if self._host.watcher is not None and self._world is not None:
            now, state = self._host.clock.now(), self._world.state()
            step, place = (state.newest or 0) + 1, "/damaged"
            self._world.loop.post(
                CheckpointSetAside(now, state.attempt, step, state.newest, place, "cut off", ("x",))
            )

    def _kill_the_guard(self) -> None:
        if self._world is not None:
            self._world.machine.guard.die()

    def _turn_the_clock_back(self) -> None:
        self._host.clock.skew -= self._rng.uniform(0.0, 10000.0)
        self._tell("the time of day jumps backwards")

    def _suspend(self) -> None:
        self._host.clock.time += self._rng.uniform(100.0, 2000.0)
        self._tell("the machine was suspended")

    # --- looking on -------------------------------------------------------------------------------

    def observe(self, transition: Transition) -> None:
        """See `ports.Observer`."""
        self._events += 1
        self.moments.append(Moment(self._host.clock.time, transition))
        event = transition.event
        if isinstance(event, DeadlineReached) and event.silence is not None:
            assert self._world is not None
            if self._world.machine.unread(event.silence.attempt, event.at - _UNREAD_FOR):
                raise ViolationError("a worker is called silent although its word is unread")

    def _tell(self, text: str) -> None:
        self.moments.append(Moment(self._host.clock.time, text))


class _NotedJournal(FileJournal):
    """Notes whether its last record could be written."""

    is_written = True

    def append(self, transition: Transition, *, durable: bool) -> None:
        """See `ports.Journal`."""
        self.is_written = False
        super().append(transition, durable=durable)
        self.is_written = True


class _OfRecords:
    """Hands transitions on, but not the last one of a supervisor that cannot write its journal: it
    is told to people, and nothing is done."""

    def __init__(self, journal: _NotedJournal, observer: Observer) -> None:
        self._journal = journal
        self._observer = observer

    def observe(self, transition: Transition) -> None:
        """See `ports.Observer`."""
        if self._journal.is_written:
            self._observer.observe(transition)


def history_checksum(simulation: Simulation) -> int:
    """Return a checksum of the whole history: the same seed gives the same."""
    return zlib.crc32("\n".join(map(repr, simulation.moments)).encode())
