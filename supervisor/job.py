"""Runs one job: takes model_dir, recovers what its journal tells, and drives it to an end."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from errno import EDQUOT, EIO, ENOSPC, EROFS, ESTALE
from pathlib import Path
from typing import Any

from supervisor.adapters.clock import SystemClock
from supervisor.adapters.compile_cache import CompileCache
from supervisor.adapters.console import PlainConsole
from supervisor.adapters.guard import Guard
from supervisor.adapters.journal import FileJournal, History, JournalError
from supervisor.adapters.lease import LeaseExpiredError, LeaseTakenError
from supervisor.adapters.mirror import Mirror, MirroredStorage
from supervisor.adapters.preemption import PreemptionWatch, sources
from supervisor.adapters.processes import become_subreaper, kill_descendants, sweep
from supervisor.adapters.reactor import Reactor
from supervisor.adapters.runlog import LogFormat, RunLog
from supervisor.adapters.space import RoomMakingStorage, Space
from supervisor.adapters.status_file import StatusFile
from supervisor.adapters.storage import LocalStorage
from supervisor.adapters.summary import Summary
from supervisor.adapters.systemd import service_manager
from supervisor.config.plan import PhasePlan
from supervisor.config.problems import ConfigError, Problem
from supervisor.core.changes import Change, changes, refused
from supervisor.core.events import (
    Noticed,
    StopRequested,
    StopSource,
    SupervisorStarted,
)
from supervisor.core.exit_codes import ExitCode
from supervisor.core.redaction import Redactor
from supervisor.core.state import JobState
from supervisor.engines.committed import unmarked_copies
from supervisor.engines.devices import DeviceProbe
from supervisor.engines.local import LocalEngine
from supervisor.exclusion import Check, Exclusion, ModelDirError, owned
from supervisor.guarded import guarded
from supervisor.ports import Clock, Observer, Storage
from supervisor.prepare import Prepared
from supervisor.protocol import environment, simulated
from supervisor.protocol.committed import unmarked
from supervisor.remote import brought, lease_place, reach
from supervisor.runtime import Runtime
from supervisor.world import LocalWorld, newest_in

_LAST_WORDS = 20.0
"""Seconds that the bucket gets for what is left when the job ends."""
_FIRST_LOOK = 1.0
"""How long to wait for the first word on whether this machine is to be taken away; as a rule it
takes a few milliseconds."""


def run_job(prepared: Prepared, log_format: LogFormat, exclusion: Exclusion | None = None) -> int:
    """Run the job until it ends; returns its exit code, before any mapping.

    Raises:
        ConfigError: model_dir cannot be used, or the config does not fit the job that is in it.
        LockHeldError, LeaseHeldError, LeaseTakenError: another supervisor owns model_dir.
        LeaseExpiredError: another may own it by now.
        SweepError: what an earlier supervisor left behind cannot be killed.
        JournalError, ModelDirError: model_dir cannot be written (any more).
    """
    clock = SystemClock()
    with ExitStack() as stack:
        instance = uuid.uuid4().hex
        reactor = Reactor(clock)
        guard = stack.enter_context(guarded(reactor, clock, mark=f"@{instance}"))
        home = stack.enter_context(_taken(prepared, clock, reactor, guard, exclusion))
        storage, journal, history, space = home.storage, home.journal, home.history, home.space
        redactor = prepared.redactor(os.environ)
        config = [redactor.params(plan.params) for plan in prepared.plans]
        found = _accept_changes(prepared, history, config, redactor)
        reactor.stop_on_signals()
        become_subreaper()
        stack.callback(_leave_nothing_behind)
        swept = sweep(history.state.job) if history.state.job else []
        job = history.state.job or uuid.uuid4().hex[:12]
        lineage = environment.lineage(os.environ, f"{job}@{instance}")
        preemption = _watch_for_preemption(prepared, job, lineage, clock, reactor, stack)
        screen = _screen(prepared, clock, stack)
        log = RunLog(storage, clock, prepared.policy, screen.line, log_format, redactor.text)
        _tell_start(log, prepared, history, found, swept)
        if history.config != config:
            journal.record_config(clock.wall(), config, [str(change) for change in found])
        summary = Summary(storage, prepared.plans, lambda text: log.say(text, level="warning"))
        summary.replay(history.transitions)
        engine = _engine(
            prepared.job.model_dir, job, lineage, clock, reactor, screen.mirror, redactor
        )
        space.in_use = lambda: engine.directory
        world = LocalWorld(
            job, lineage, prepared, config, storage, clock, reactor, engine, space, home.check
        )
        systemd = _service_manager(prepared, clock, reactor, stack)
        observers: list[Observer] = [log, summary, *home.observers, *screen.observers, *systemd]
        if (doom := preemption.standing(_FIRST_LOOK)) is not None:
            log.say(f"a preemption is announced: {doom}; nothing is started here", level="warning")
            return int(ExitCode.DRAINED)
        runtime = Runtime(world, journal, clock, observers, history.state, prepared.policy)
        try:
            final = runtime.run(_started(job, prepared, history.state, clock))
        except (JournalError, ModelDirError) as error:
            log.say(f"ends now, and kills what runs: {error}", level="error")
            raise
        assert final.exit_code is not None
        return final.exit_code


@dataclass(frozen=True, slots=True)
class _Home:
    """model_dir, which is ours, and the job in it."""

    check: Check
    space: Space
    storage: Storage
    journal: FileJournal
    history: History
    observers: tuple[Observer, ...] = ()


@contextmanager
def _taken(
    prepared: Prepared, clock: Clock, reactor: Reactor, guard: Guard, exclusion: Exclusion | None
) -> Iterator[_Home]:
    """Own model_dir, and have on this host what is in it."""
    model_dir = prepared.job.model_dir
    objects = reach(prepared.job)
    _make_model_dir(prepared)
    means = exclusion or Exclusion.of(model_dir, in_bucket=objects is not None)

    def notice(text: str) -> None:
        reactor.post(Noticed(clock.now(), text))

    with ExitStack() as stack:
        owning = owned(
            model_dir, clock, reactor, guard, means, _complain, lease_place(prepared.job)
        )
        try:
            ownership = stack.enter_context(owning)
        except OSError as error:
            text = f"{prepared.job.place} cannot be locked: {error.strerror}"
            raise ModelDirError(text) from error
        space = Space(model_dir, notice)
        storage: Storage = RoomMakingStorage(LocalStorage(model_dir), space)
        if objects is None:
            journal = FileJournal(storage)
            yield _Home(ownership.check, space, storage, journal, journal.read())
            return
        mirror = brought(objects, model_dir, ownership.epoch, clock, notice)

        def give_up() -> bool:
            ownership.check()
            return reactor.has(StopRequested)

        storage = MirroredStorage(storage, mirror, give_up)
        journal = FileJournal(storage)
        history = journal.read()
        mirror.begin()
        stack.callback(_let_go, mirror, ownership.check)
        status = StatusFile(storage, prepared.policy, notice)
        yield _Home(ownership.check, space, storage, journal, history, (status,))


def _engine(
    model_dir: Path,
    job: str,
    lineage: str,
    clock: Clock,
    reactor: Reactor,
    mirror: Callable[[bytes], None] | None,
    redactor: Redactor,
) -> LocalEngine:
    cache = CompileCache(
        model_dir / "compile_cache", lambda text: reactor.post(Noticed(clock.now(), text))
    )
    probe = DeviceProbe(reactor, _marked(job, lineage), model_dir / simulated.FILE)
    return LocalEngine(reactor, clock, os.environ, mirror, cache, probe, redactor.text)


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


def _complain(text: str) -> None:
    """Before there is a run.log."""
    print(f"supervise: {text}", file=sys.stderr, flush=True)


def _watch_for_preemption(
    prepared: Prepared, job: str, lineage: str, clock: Clock, reactor: Reactor, stack: ExitStack
) -> PreemptionWatch:
    """Listen for announcements. What a command leaves behind is killed and swept as of a worker."""
    config = prepared.job.phases[0].init.autorestart.preemption

    def doomed(text: str) -> None:
        reactor.post(StopRequested(clock.now(), StopSource.PREEMPTION, text))

    def tell(text: str) -> None:
        reactor.post(Noticed(clock.now(), text))

    watch = PreemptionWatch(sources(config, _marked(job, lineage)), doomed, tell)
    stack.callback(watch.close)
    return watch


def _marked(job: str, lineage: str) -> dict[str, str]:
    """Our environment for what is no worker, but is killed and swept like one."""
    ours = {environment.JOB: job, environment.LINEAGE: lineage}
    return {**environment.scrubbed(os.environ), **ours}


def _service_manager(
    prepared: Prepared, clock: Clock, reactor: Reactor, stack: ExitStack
) -> tuple[Observer, ...]:
    manager = service_manager(os.environ, prepared.policy, clock, reactor.call_later)
    if manager is None:
        return ()
    stack.callback(manager.close)
    return (manager,)


def _make_model_dir(prepared: Prepared) -> None:
    """Make model_dir and see that it can be written.

    Raises:
        ConfigError: it never can be.
        ModelDirError: it cannot be now: the disk may be mended.
    """
    model_dir = prepared.job.model_dir
    try:
        model_dir.mkdir(parents=True, exist_ok=True)
        probe = model_dir / f".writable.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        if error.errno in (EROFS, EIO, ESTALE):
            raise ModelDirError(f"{model_dir} cannot be written: {error.strerror}") from error
        if error.errno in (ENOSPC, EDQUOT):
            return  # room is made where it can be, and where not it is told, once we own it
        location = (*prepared.job.locations[0], "init", "model_dir")
        message = f"cannot be written: {error.strerror} ({error.filename})"
        raise ConfigError([prepared.job.source.problem(location, message)]) from error


def _accept_changes(
    prepared: Prepared, history: History, config: Sequence[dict[str, Any]], redactor: Redactor
) -> list[Change]:
    """What changed in the config since the job last ran; a secret that changed is no change.

    Raises:
        ConfigError: something that must not.
    """
    if history.config is None:
        return []
    found = changes([redactor.params(params) for params in history.config], config)
    problems = [
        Problem(prepared.job.source.name, "", message)
        for _, message in refused(history.state, found, len(prepared.plans))
    ]
    if problems:
        raise ConfigError(problems)
    return found


def _tell_start(
    log: RunLog,
    prepared: Prepared,
    history: History,
    found: Sequence[Change],
    swept: Sequence[int],
) -> None:
    """What a person should know before the job goes on."""
    if prepared.job.remote is not None:
        log.say(f"the job is in {prepared.job.remote}; here, in {prepared.job.model_dir}")
    for plan in prepared.plans:
        if copies := _unmarked(plan):
            others = f" (so do {', '.join(copies[1:])})" if copies[1:] else ""
            log.say(unmarked(f"{plan.checkpoints}/{copies[0]}") + others, level="warning")
        if plan.is_command and plan.progress_pattern is None:
            log.say(
                f"phase {plan.name!r} names no progress pattern: unless the program reports its "
                "steps (to us or to jax.monitoring), a hang cannot be noticed"
            )
        if plan.success_is_default:
            log.say(f"phase {plan.name!r} names no success: exit code 0 is taken for success")
    if history.torn:
        text = f"the journal ended in the middle of a line: {history.torn} bytes were cut off"
        log.say(text, level="warning")
    for change in found:
        log.say(f"the config changed: {change}", level="warning")
    if swept:
        pids = ", ".join(str(pid) for pid in swept)
        log.say(f"killed what an earlier supervisor left behind: pid {pids}", level="warning")


def _unmarked(plan: PhasePlan) -> tuple[str, ...]:
    """Newer checkpoints than all that are committed, copied without their markers.

    Raises:
        ModelDirError: nobody can look.
    """
    try:
        return unmarked_copies(plan.checkpoints)
    except OSError as error:
        text = f"{plan.checkpoints} cannot be read: {error.strerror or error}"
        raise ModelDirError(text) from error


def _started(job: str, prepared: Prepared, state: JobState, clock: Clock) -> SupervisorStarted:
    phase = min(state.phase, len(prepared.plans) - 1)
    committed = newest_in(prepared, phase)
    epoch = clock.wall().timestamp() - clock.now()
    return SupervisorStarted(clock.now(), job, prepared.policy, committed, epoch)


def _let_go(mirror: Mirror, check: Check) -> None:
    """The last that happened gets into the bucket, if that is to be had, and ours."""
    try:
        check()
        patience = _LAST_WORDS
    except (LeaseTakenError, LeaseExpiredError):
        patience = 0.0
    if (why := mirror.close(patience)) is not None:
        _complain(f"the bucket lacks the newest of the job's files, which this host has: {why}")


def _leave_nothing_behind() -> None:
    """Whatever ends this supervisor, an error of ours too, nothing of the job outlives it."""
    while kill_descendants(()):
        pass
