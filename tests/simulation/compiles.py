"""Processes that compile ahead (`trainer.prefetch`), and checks of what must hold for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from signal import Signals

from supervisor.core.events import RungCompileFailed
from supervisor.diagnosis.failure import WorkerExit
from supervisor.protocol import environment
from supervisor.protocol.adjustments import Adjustments
from tests.simulation.accidents import Accidents
from tests.simulation.chance import RandomStream, ViolationError
from tests.simulation.group import Group
from tests.simulation.processes import Process

_GIBIBYTE = 1 << 30


@dataclass(frozen=True, slots=True)
class Program:
    """What a process compiles."""

    phase: int
    num_devices: int
    accumulation: int

    @classmethod
    def of(cls, phase: int, env: Mapping[str, str]) -> Program:
        """Return what a process with the environment `env` compiles."""
        identity = environment.WorkerIdentity.from_environment(env)
        assert identity is not None
        assert identity.num_devices is not None
        asked = Adjustments.from_environment(env)
        return cls(phase, identity.num_devices, asked.accumulation)


class Compile(Process):
    """Runs for a while, except while it is stopped, and then succeeds or fails."""

    program: Program
    size = _GIBIBYTE
    """Bytes of memory that it uses."""

    def begin(self, program: Program, compiles: Compiles) -> None:
        """Begin to compile `program`."""
        self.program = program
        self._compiles = compiles
        stream = compiles.stream
        self._left = stream.between(0.5, 30.0)
        self._disturbs = stream.happens(0.5)
        if stream.happens(0.1):
            self.size = 40 * _GIBIBYTE
        self._ran = 0.0
        self._turn = 0
        self._run()

    @property
    def is_in_the_way(self) -> bool:
        """Whether it uses CPU time."""
        return self.lives and not self.stopped and not self.is_dying

    @property
    def ran_and_waited(self) -> tuple[int, int]:
        """Nanoseconds for which it has run, and for which it has waited for a CPU."""
        running = 0.0 if self.stopped else self.owner.host.clock.time - self._since
        ran = int((self._ran + running) * 1e9)
        return ran, ran if self._disturbs else 0

    def signal(self, number: Signals) -> None:
        """See `Process`."""
        before = self.stopped
        super().signal(number)
        if self.stopped and not before:
            self._turn += 1
            self._ran += self.owner.host.clock.time - self._since
        elif before and not self.stopped:
            self._run()

    def _run(self) -> None:
        self._since, turn = self.owner.host.clock.time, self._turn

        def done() -> None:
            if self._turn == turn and self.lives:
                self._compiles.ended(self)

        self.owner.host.later(max(0.0, self._left - self._ran), done)


class Compiles:
    """All such processes of one supervisor."""

    def __init__(self, stream: RandomStream, accidents: Accidents) -> None:
        self.stream = stream
        self._accidents = accidents
        self._begun: list[Compile] = []
        self._done: set[Program] = set()
        self._failures = Counter[Program]()

    def begins(self, process: Compile, group: Group | None, rungs: tuple[int, ...]) -> None:
        """Check that `process` may begin to compile now; `group` is the last group that was
        started."""
        program = process.program
        if any(each.is_in_the_way for each in self._begun):
            raise ViolationError("two programs are compiled at once")
        if group is None or group.told_step is None:
            raise ViolationError("a program is compiled before the attempt has recovered")
        if program in self._done or self._failures[program] > 1:
            raise ViolationError(f"{program} is compiled once more")
        here = group.num_devices or rungs[0]
        smaller = sorted(rung for rung in rungs if rung < here)[-2:]
        larger = sorted(rung for rung in rungs if rung > here)[:1]
        if program.num_devices not in smaller + larger:
            raise ViolationError(f"{program} is compiled while the job is on {here} devices")
        self._begun.append(process)

    def ended(self, process: Compile) -> None:
        """End a process that has run its time, and note whether it succeeded."""
        program, scenario = process.program, self._accidents.scenario
        if program.num_devices in scenario.too_small:
            ended, record = self._accidents.too_small_rung()
            process.owner.host.keep(process.env[environment.FAILURE_FILE], record)
        elif self.stream.happens(0.15):
            ended = WorkerExit(0, signal="SIGKILL")
        else:
            ended = WorkerExit(0, code=int(self.stream.happens(0.15)))
        if not process.is_dying:
            self._failures[program] += not ended.clean
            self._done |= {program} if ended.clean else set()
        process.end(ended)

    def check_none_is_in_the_way(self) -> None:
        """Check, as an attempt starts, that no compile takes CPU time from it."""
        if any(each.is_in_the_way for each in self._begun):
            raise ViolationError("an attempt starts, and a compile takes CPU time from it")

    def check_told(self, event: RungCompileFailed) -> None:
        """Check an event that says that a rung is too small: it must be, and a guess needs two
        failures."""
        scenario, rung = self._accidents.scenario, event.num_devices
        times = sum(
            count
            for program, count in self._failures.items()
            if (program.phase, program.num_devices) == (event.phase, rung)
        )
        if rung not in scenario.too_small or times < 2 - scenario.too_small_for_sure:
            raise ViolationError(f"the program is said not to fit {rung} devices")
