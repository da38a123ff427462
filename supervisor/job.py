"""Runs one job: takes model_dir, recovers what its journal tells, and drives it to an end."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta

import yaml

from supervisor.adapters.checkpoints import newest_committed
from supervisor.adapters.clock import SystemClock
from supervisor.adapters.console import PlainConsole
from supervisor.adapters.journal import FileJournal, History
from supervisor.adapters.lock import DirectoryLock
from supervisor.adapters.preemption import PreemptionWatch, sources
from supervisor.adapters.processes import become_subreaper, kill_descendants, sweep
from supervisor.adapters.reactor import Reactor
from supervisor.adapters.runlog import LogFormat, RunLog
from supervisor.adapters.storage import LocalStorage
from supervisor.adapters.summary import Summary
from supervisor.adapters.systemd import service_manager
from supervisor.config.problems import ConfigError, Problem
from supervisor.core.changes import Change, changes, refused
from supervisor.core.decisions import (
    BeginPhase,
    Decision,
    DumpStacks,
    FinishJob,
    KillWorkers,
    SignalWorkers,
    StartWorkers,
    Wait,
)
from supervisor.core.events import (
    Event,
    Noticed,
    PhaseBegun,
    StopRequested,
    StopSource,
    SupervisorStarted,
)
from supervisor.core.exit_codes import ExitCode
from supervisor.core.state import JobState
from supervisor.engines.local import Launch, LocalEngine
from supervisor.ports import Clock, Observer, Storage
from supervisor.prepare import Prepared
from supervisor.protocol import environment
from supervisor.runtime import Runtime

_FIRST_LOOK = 1.0
"""How long to wait for the first word on whether this machine is to be taken away; as a rule it
takes a few milliseconds."""


class ModelDirError(Exception):
    """model_dir cannot be written, so nothing can be started."""


def run_job(prepared: Prepared, log_format: LogFormat) -> int:
    """Run the job until it ends; returns its exit code, before any mapping.

    Raises:
        ConfigError: model_dir cannot be used, or the config does not fit the job that is in it.
        LockHeldError: another supervisor owns model_dir.
        JournalError, ModelDirError: model_dir cannot be written (any more).
    """
    clock = SystemClock()
    model_dir = prepared.job.model_dir
    _make_model_dir(prepared)
    with ExitStack() as stack:
        stack.callback(DirectoryLock(model_dir, clock.wall()).release)
        storage = LocalStorage(model_dir)
        journal = FileJournal(storage)
        history = journal.read()
        found = _accept_changes(prepared, history)
        reactor = Reactor(clock)
        reactor.stop_on_signals()
        become_subreaper()
        stack.callback(_leave_nothing_behind)
        job = history.state.job or uuid.uuid4().hex[:12]
        preemption = _watch_for_preemption(prepared, job, clock, reactor, stack)
        screen = _screen(prepared, clock, stack)
        log = RunLog(storage, clock, prepared.policy, screen.line, log_format)
        _tell_start(log, prepared, history, found)
        config = [plan.params for plan in prepared.plans]
        if history.config != config:
            journal.record_config(clock.wall(), config, [str(change) for change in found])
        summary = Summary(storage, prepared.plans, lambda text: log.say(text, level="warning"))
        summary.replay(history.transitions)
        engine = LocalEngine(reactor, clock, os.environ, screen.mirror)
        world = LocalWorld(job, prepared, storage, clock, reactor, engine)
        systemd = _service_manager(prepared, clock, reactor, stack)
        observers: tuple[Observer, ...] = (log, summary, *screen.observers, *systemd)
        if (doom := preemption.standing(_FIRST_LOOK)) is not None:
            log.say(f"a preemption is announced: {doom}; nothing is started here", level="warning")
            return int(ExitCode.DRAINED)
        runtime = Runtime(world, journal, clock, observers, history.state, prepared.policy)
        final = runtime.run(_started(job, prepared, history.state, clock))
        assert final.exit_code is not None
        return final.exit_code


class LocalWorld:
    """The runtime's world on this host."""

    def __init__(
        self,
        job: str,
        prepared: Prepared,
        storage: Storage,
        clock: Clock,
        reactor: Reactor,
        engine: LocalEngine,
    ) -> None:
        self._job = job
        self._prepared = prepared
        self._storage = storage
        self._clock = clock
        self._reactor = reactor
        self._engine = engine

    def wait(self, until: float | None) -> Sequence[Event]:
        """See `ports.World`."""
        return self._reactor.wait(until)

    def carry_out(self, decision: Decision, state: JobState) -> None:
        """See `ports.World`.

        Raises:
            ModelDirError: a file that must be there cannot be written.
        """
        match decision:
            case BeginPhase(phase):
                self._begin_phase(phase)
            case StartWorkers(attempt):
                launch = self._launch(attempt, state)
                self._write_params(launch, state)
                self._engine.start(launch)
            case DumpStacks(attempt):
                self._engine.dump_stacks(attempt)
            case SignalWorkers(attempt):
                self._engine.terminate(attempt)
            case KillWorkers(attempt, exits):
                self._engine.kill(self._launch(attempt, state), exits)
            case Wait() | FinishJob():
                pass  # only told: the runtime waits and ends by the state

    def _begin_phase(self, phase: int) -> None:
        wall = self._clock.wall()
        name = _directory_name(wall)
        try:
            while not self._storage.make_directory(name):
                wall += timedelta(seconds=1)
                name = _directory_name(wall)
        except OSError as error:
            raise ModelDirError(f"{name} cannot be made: {error.strerror}") from error
        newest = newest_committed(self._prepared.plans[phase].checkpoints)
        self._reactor.post(PhaseBegun(self._clock.now(), phase, name, newest))

    def _launch(self, attempt: int, state: JobState) -> Launch:
        assert state.directory is not None
        directory = self._storage.local(state.directory)
        return Launch(
            job=self._job,
            attempt=attempt,
            phase=state.phase,
            plan=self._prepared.plans[state.phase],
            success=self._prepared.policy.phases[state.phase].success,
            model_dir=self._prepared.job.model_dir,
            directory=directory / "attempts" / f"{attempt:04d}",
            params=directory / "params.yaml",
        )

    def _write_params(self, launch: Launch, state: JobState) -> None:
        text = yaml.safe_dump(launch.plan.params, sort_keys=False, allow_unicode=True)
        try:
            self._storage.make_directory(f"{state.directory}/attempts/{launch.attempt:04d}")
            self._storage.replace(f"{state.directory}/params.yaml", text.encode())
        except OSError as error:
            raise ModelDirError(f"{state.directory} cannot be written: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class _Screen:
    """Where a person looks on."""

    line: Callable[[str], None]
    mirror: Callable[[bytes], None] | None
    observers: tuple[Observer, ...] = ()


def _screen(prepared: Prepared, clock: Clock, stack: ExitStack) -> _Screen:
    if not sys.stdout.isatty():
        console = PlainConsole(sys.stdout.fileno())
        return _Screen(console.line, console.mirror)
    from supervisor.adapters.terminal import TerminalView  # rich, only where somebody looks

    view = TerminalView(prepared.plans, prepared.policy, clock)
    stack.callback(view.close)
    return _Screen(view.line, None, (view,))


def _watch_for_preemption(
    prepared: Prepared, job: str, clock: Clock, reactor: Reactor, stack: ExitStack
) -> PreemptionWatch:
    """Listen for announcements. What a command leaves behind is swept like a worker is."""
    environ = {**environment.scrubbed(os.environ), environment.JOB: job}
    config = prepared.job.phases[0].init.autorestart.preemption

    def doomed(text: str) -> None:
        reactor.post(StopRequested(clock.now(), StopSource.PREEMPTION, text))

    def tell(text: str) -> None:
        reactor.post(Noticed(clock.now(), text))

    watch = PreemptionWatch(sources(config, environ), doomed, tell)
    stack.callback(watch.close)
    return watch


def _service_manager(
    prepared: Prepared, clock: Clock, reactor: Reactor, stack: ExitStack
) -> tuple[Observer, ...]:
    manager = service_manager(os.environ, prepared.policy, clock, reactor.call_later)
    if manager is None:
        return ()
    stack.callback(manager.close)
    return (manager,)


def _directory_name(wall: object) -> str:
    return f"{wall:%Y%m%d_%H%M%S}_restartable"


def _make_model_dir(prepared: Prepared) -> None:
    """Make model_dir and see that it can be written."""
    model_dir = prepared.job.model_dir
    try:
        model_dir.mkdir(parents=True, exist_ok=True)
        probe = model_dir / f".writable.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        location = (*prepared.job.locations[0], "init", "model_dir")
        message = f"cannot be written: {error.strerror} ({error.filename})"
        raise ConfigError([prepared.job.source.problem(location, message)]) from error


def _accept_changes(prepared: Prepared, history: History) -> list[Change]:
    """What changed in the config since the job last ran.

    Raises:
        ConfigError: something that must not.
    """
    if history.config is None:
        return []
    found = changes(history.config, [plan.params for plan in prepared.plans])
    problems = [
        Problem(prepared.job.source.name, "", message)
        for _, message in refused(history.state, found, len(prepared.plans))
    ]
    if problems:
        raise ConfigError(problems)
    return found


def _tell_start(log: RunLog, prepared: Prepared, history: History, found: Sequence[Change]) -> None:
    """What a person should know before the job goes on."""
    for plan in prepared.plans:
        if plan.is_command and plan.progress_pattern is None:
            log.say(
                f"phase {plan.name!r} names no progress pattern: unless the program speaks the "
                "worker protocol, a hang cannot be noticed"
            )
        if plan.success_is_default:
            log.say(f"phase {plan.name!r} names no success: exit code 0 is taken for success")
    if history.torn:
        text = f"the journal ended in the middle of a line: {history.torn} bytes were cut off"
        log.say(text, level="warning")
    for change in found:
        log.say(f"the config changed: {change}", level="warning")
    if history.state.job and (left := sweep(history.state.job)):
        pids = ", ".join(str(pid) for pid in left)
        log.say(f"killed what an earlier supervisor left behind: pid {pids}", level="warning")


def _started(job: str, prepared: Prepared, state: JobState, clock: Clock) -> SupervisorStarted:
    phase = min(state.phase, len(prepared.plans) - 1)
    committed = newest_committed(prepared.plans[phase].checkpoints)
    return SupervisorStarted(clock.now(), job, prepared.policy, committed)


def _leave_nothing_behind() -> None:
    """Whatever ends this supervisor, an error of ours too, nothing of the job outlives it."""
    while kill_descendants(()):
        time.sleep(0.01)
