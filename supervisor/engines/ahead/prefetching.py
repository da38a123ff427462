"""Compiles ahead of time for the rungs that the job may be on next, while it trains on another.

For each rung a process with that number of devices (`trainer.prefetch`) compiles the program, one
process at a time. It gets a tenth of a core while others want the CPU, and its time and memory are
limited. The result lies where a worker on that rung looks for it. Nothing waits for a compile. If
the worker group ends or is asked to stop, the process is paused. When the next group has recovered,
the process goes on if its rung is still wanted; otherwise it is killed.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from signal import SIGKILL

from supervisor.config.plan import PhasePlan
from supervisor.core.events import RungCompileFailed
from supervisor.diagnosis.failure import Failure, WorkerExit
from supervisor.engines.ahead.throttle import Throttle
from supervisor.engines.handles import Process
from supervisor.engines.host_port import Host, MainLoop
from supervisor.engines.judging import Seen, judged
from supervisor.engines.launch import Launch, Start
from supervisor.engines.worker_environment import placement_variables
from supervisor.host.notice import Notice, Tell
from supervisor.ports import Clock
from supervisor.protocol import environment
from supervisor.protocol.removal import Place

_TRIES = 2
"""How often a compile is tried before it is left to the worker."""
_NEEDED = 1 << 30
"""Bytes of memory that must be free. Our imports take 181 MB, and XLA takes at least as much."""
_TIME = 3600.0
"""Most seconds for which a compile may run, its rests not counted. The largest programs compile for
many minutes, and here they share the CPU with others."""
_WATCH_INTERVAL = 1.0


def wanted(rungs: Sequence[int], num_devices: int) -> tuple[int, ...]:
    """Returns the rungs to compile for while the job is on the rung `num_devices`, the likeliest
    first: the next two smaller ones, then the next larger one."""
    smaller = sorted((rung for rung in rungs if rung < num_devices), reverse=True)
    larger = sorted(rung for rung in rungs if rung > num_devices)
    return (*smaller[:2], *larger[:1])


@dataclass(frozen=True, slots=True)
class _Program:
    """What is compiled: the steps of a phase, for a rung and a number of accumulation steps."""

    phase: int
    num_devices: int
    accumulation: int

    def __str__(self) -> str:
        return f"Prefetching compile for num_devices={self.num_devices}"


@dataclass(slots=True)
class _Compilation:
    """A compile that is under way."""

    program: _Program
    launch: Launch
    process: Process
    throttle: Throttle
    memory: int
    """Most bytes of memory that it may hold."""
    is_paused: bool = False
    killed_because: str | None = None
    """Why we killed it; None: we did not."""


class Prefetcher:
    """Compiles for other rungs than that of the attempt, one after another."""

    def __init__(
        self,
        reactor: MainLoop,
        clock: Clock,
        machine: Host,
        warn: Tell,
        tell: Tell,
        redact: Callable[[str], str],
    ) -> None:
        """`warn` tells people of problems, `tell` of normal things; `redact` removes secrets from
        texts about failures."""
        self._reactor = reactor
        self._clock = clock
        self._machine = machine
        self._warn = warn
        self._tell = tell
        self._redact = redact
        self._running: _Compilation | None = None
        self._ending: list[Process] = []
        self._settled: set[_Program] = set()
        self._failures: Counter[_Program] = Counter()
        self._fatal_before: set[tuple[_Program, str | None]] = set()
        """The programs whose compile ended FATALly, each with the signature of the failure."""
        self._said: set[str] = set()

    @property
    def pids(self) -> tuple[int, ...]:
        """The pids of the compiling process, and of killed ones that have not ended yet."""
        running = [self._running.process] if self._running is not None else []
        return tuple(process.pid for process in [*running, *self._ending])

    def look(self, launch: Launch, start: Start) -> None:
        """Go on with a paused compile if the attempt of `launch` still wants it, else kill it. If
        nothing compiles then, compile for the next rung. `start` is how the worker was started."""
        plan = launch.plan
        if (running := self._running) is not None and running.is_paused:
            self._go_on_or_end(running, launch)
        if self._running is not None or not plan.prefetch or plan.is_command or not plan.rungs:
            return
        if (why_not := _impossible(plan)) is not None:
            if len(plan.rungs) > 1:
                text = f"compiles for other rungs are not prefetched: {why_not}"
                self._once(self._tell, Notice("prefetch-off", text, reason=why_not))
            return
        for program in _programs(launch):
            if program not in self._settled:
                self._begin(program, launch, start)
                return

    def pause(self) -> None:
        """Stop the compile that is under way, until the next `look`."""
        if self._running is not None:
            self._running.is_paused = True
            self._running.throttle.pause()

    def _go_on_or_end(self, compilation: _Compilation, launch: Launch) -> None:
        """Continue the paused compile if the attempt of `launch` still wants it, else kill it: the
        attempt may be on another rung than the one before it."""
        if compilation.program in _programs(launch):
            compilation.is_paused = False
            compilation.throttle.resume()
        else:
            self._running = None
            compilation.throttle.end()
            self._ending.append(compilation.process)
            compilation.process.signal(SIGKILL)

    def _begin(self, program: _Program, launch: Launch, start: Start) -> None:
        available = self._machine.available_memory()
        if available < _NEEDED:
            needed = f"{program} waits until {_NEEDED >> 20} MiB of memory are free"
            waits = Notice("prefetch-waits", needed, num_devices=program.num_devices)
            self._once(self._warn, waits)
            return
        own = launch.directory.parent / f"prefetch{program.num_devices}"
        launch = replace(launch, num_devices=program.num_devices, units=(), directory=own)
        try:
            self._machine.make_directory(own)
            self._machine.remove(
                Place.PREFETCH_RECORD, launch.file(0, "failure.json"), below=own.parents[2]
            )
            process = _started(self._machine, launch, start)
        except OSError as error:
            self._failed(program, str(error))
            return
        throttle = Throttle(self._reactor, self._clock, process, self._machine.ran_and_waited)
        compilation = _Compilation(program, launch, process, throttle, available // 2)
        self._running = compilation
        self._reactor.watch(process.pidfd, lambda: self._ended(compilation))
        self._reactor.call_later(_WATCH_INTERVAL, lambda: self._watch(compilation))
        self._tell(
            Notice(
                "prefetch-began",
                f"{program} begins, pid {process.pid}",
                pid=process.pid,
                num_devices=program.num_devices,
            )
        )

    def _watch(self, compilation: _Compilation) -> None:
        """Kill the compile if it takes too much time or memory; check again periodically."""
        if self._running is compilation:
            held = self._machine.resident(compilation.process.pid)
            if held > compilation.memory:
                self._end(compilation, f"took {held >> 20} MiB of memory")
            elif compilation.throttle.ran > _TIME:
                self._end(compilation, f"took {_TIME:g} s")
            self._reactor.call_later(_WATCH_INTERVAL, lambda: self._watch(compilation))

    def _end(self, compilation: _Compilation, why: str) -> None:
        compilation.killed_because = why
        compilation.process.signal(SIGKILL)

    def _ended(self, compilation: _Compilation) -> None:
        process = compilation.process
        ended = process.poll(rank=0)
        if ended is None:
            return
        self._reactor.forget(process.pidfd)
        process.close()
        compilation.throttle.end()
        if self._running is compilation:
            self._running = None
            self._conclude(compilation, ended)
        else:
            self._ending.remove(process)

    def _conclude(self, compilation: _Compilation, ended: WorkerExit) -> None:
        program, now = compilation.program, self._clock.now()
        if ended.clean:
            self._settled.add(program)
            self._tell(
                Notice(
                    "prefetch-done",
                    f"{program} completed successfully.",
                    num_devices=program.num_devices,
                )
            )
        elif compilation.killed_because is not None:
            self._failed(program, compilation.killed_because)
        else:
            launch, warn = compilation.launch, self._warn
            end = judged(now, self._machine, launch, [ended], Seen(), None, warn, self._redact)
            failure = end.failure
            assert failure is not None, "its exit is no success"
            if failure.says_fatal and failure.per_rung and self._would_fail_again(program, failure):
                self._settled.add(program)
                why = failure.root_cause
                rung = RungCompileFailed(now, program.phase, program.num_devices, why)
                self._reactor.post(rung)
            else:
                self._failed(program, failure.root_cause)

    def _would_fail_again(self, program: _Program, failure: Failure) -> bool:
        """True if a FATAL failure is certain, or the same failure has occurred before."""
        known = (program, failure.signature) in self._fatal_before
        self._fatal_before.add((program, failure.signature))
        return failure.is_certain or known

    def _failed(self, program: _Program, why: str) -> None:
        self._failures[program] += 1
        again = "it is tried once more"
        if self._failures[program] >= _TRIES:
            self._settled.add(program)
            again = "it is not tried again; the restart that needs it compiles it"
        self._warn(
            Notice(
                "prefetch-failed",
                f"{program} failed: {why}; {again}",
                num_devices=program.num_devices,
                reason=why,
            )
        )

    def _once(self, say: Tell, told: Notice) -> None:
        if told not in self._said:
            self._said.add(told)
            say(told)


def _programs(launch: Launch) -> tuple[_Program, ...]:
    """Returns what to compile while the attempt of `launch` runs, in this order."""
    rungs, accumulation = launch.plan.rungs, launch.adjustments.accumulation
    others = wanted(rungs, launch.num_devices or rungs[0]) if rungs else ()
    return tuple(_Program(launch.phase, rung, accumulation) for rung in others)


def _impossible(plan: PhasePlan) -> str | None:
    """Returns why only workers can compile for other rungs; None: another process can too."""
    if plan.platform != "cpu":
        return f"the {plan.platform} belongs to the worker, and nobody else can compile for it"
    if plan.workers > 1:
        return "several workers compile together"
    return None


def _started(machine: Host, launch: Launch, start: Start) -> Process:
    """Starts and returns the process that compiles for the worker that `launch` would start.

    `start` is how the live worker was started: the process uses the same compilation cache.
    """
    inherited = environment.without_supervisor_variables(start.env)
    env = {
        **inherited,
        **placement_variables(launch, 0, (), inherited),
        **launch.protocol_variables(0, ()),
    }
    argv = [sys.executable, "-P", "-m", "trainer.prefetch", str(launch.params)]
    log = launch.file(0, "log")
    with machine.opened(log, new=True, below=log.parents[3]) as output:
        process = machine.start(argv, env=env, output=output.fileno())
    machine.lower_priority(process.pid)
    return process
