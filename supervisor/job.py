"""Runs one job: takes model_dir, recovers the state from its journal, and runs it to its end."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from supervisor.adapters.kernel import stall
from supervisor.adapters.kernel.clock import SystemClock
from supervisor.adapters.kernel.reactor import Reactor
from supervisor.adapters.platforms.preemption import PreemptionWatch
from supervisor.adapters.processes.guard_client import GuardClient
from supervisor.adapters.processes.leftovers import lineage_of
from supervisor.adapters.stores.compile_cache import CompileCache
from supervisor.adapters.stores.journal import FileJournal, History, JournalError, phases_on_record
from supervisor.adapters.stores.lease import LeaseExpiredError, LeaseTakenError, LeaseTimes
from supervisor.adapters.stores.mirror import Mirror, MirroredStorage
from supervisor.adapters.stores.requests import is_stop_asked
from supervisor.adapters.stores.space import RoomMakingStorage, Space
from supervisor.adapters.stores.storage import LocalStorage
from supervisor.adapters.telling.alive_file import AliveFile
from supervisor.adapters.telling.http_child import shown_over_http
from supervisor.adapters.telling.runlog import LogFormat, RunLog
from supervisor.config.problems import ConfigError, Problem
from supervisor.core import cache_trust
from supervisor.core.changes import Change, changes, computes_something_else, refused
from supervisor.core.events import (
    Event,
    MaintenanceAnnounced,
    Noticed,
    StopRequested,
    StopSource,
    SupervisorStarted,
)
from supervisor.core.exit_codes import ExitCode
from supervisor.core.state import JobState
from supervisor.core.stopping import time_to_stop
from supervisor.diagnosis.redaction import Redactor
from supervisor.engines.engine import Engine
from supervisor.engines.guard_watch import keep_guard
from supervisor.engines.local import LocalEngine
from supervisor.engines.preemption_sources import preemption_sources
from supervisor.engines.probing.device_probe import DeviceProbe
from supervisor.engines.this_host import ThisHost
from supervisor.guard_keeper import record_and_contain, sweep_leftovers
from supervisor.history.writer import writer
from supervisor.host.identity import Identity
from supervisor.host.notice import Notice, Tell
from supervisor.host.outlet import say_on_stderr
from supervisor.host.unkillable import UnkillableError
from supervisor.model_dir_ownership import (
    Exclusion,
    JobGoneError,
    ModelDir,
    ModelDirError,
    Ownership,
    OwnershipCheck,
    is_gone,
    own_model_dir,
)
from supervisor.observers import Display, LongestSave, make_display, observers_of
from supervisor.ports import Clock, Storage
from supervisor.preflight import Prerequisites, check, make_model_dir, start_warnings
from supervisor.prepare import Prepared
from supervisor.protocol import environment, simulated
from supervisor.protocol.reading import UnreadableError
from supervisor.remote import bring_job, lease_place
from supervisor.repair import highest_attempt
from supervisor.runtime import Runtime
from supervisor.start_notes import tell_start
from supervisor.world import LocalWorld, newest_in

_FINAL_UPLOAD_TIMEOUT = 20.0
"""Seconds to upload the remaining files to the bucket when the job ends."""
_SHUTDOWN_MARGIN = 10.0
"""Seconds beyond the grace period before a supervisor that was told to stop counts as hung. A
healthy one needs them to kill its workers, close their pipes and judge how they ended."""
_FIRST_ANNOUNCEMENT_TIMEOUT = 1.0
"""Seconds to wait for the first answer to whether a preemption of this machine is announced. It
usually takes a few milliseconds."""

_CACHE_NOT_SHARED = (
    "compiled programs are not kept in the bucket: they are native code, so say whom to trust, by "
    "trainer.init.compile_cache: {key_file: PATH} (whoever has a key that is not in the bucket) or "
    "{from_bucket: true} (whoever may write to the bucket)"
)


class NoClusterError(Exception):
    """The cluster that has the hosts of the job does not answer."""


def run_job(
    prepared: Prepared,
    log_format: LogFormat,
    exclusion: Exclusion | None = None,
    *,
    once: bool = False,
    alive_file: Path | None = None,
    http: str | None = None,
) -> int:
    """Run the job until it ends; returns its exit code, before the config's `exit_codes` map it.

    `once`: do nothing if the job has succeeded already, even if only its exit code says so.
    `alive_file`: see `AliveFile`.
    `http`: the address at which the job is shown while it runs; None: it is not.

    Raises:
        ConfigError: model_dir cannot be used, or the config does not fit the job that is in it.
        LockHeldError, LeaseHeldError, LeaseTakenError: another supervisor owns model_dir.
        LeaseExpiredError: another supervisor may own model_dir by now.
        UnkillableError: a process of the job, or of an earlier supervisor, cannot be killed.
        JournalError, ModelDirError: model_dir cannot be read or written (any more).
        JobGoneError, GuardStartError, NoClusterError: see these classes.
    """
    clock, prerequisites = SystemClock(), check(prepared)
    with ExitStack() as stack:
        instance = uuid.uuid4().hex
        redactor = prepared.redactor(os.environ)
        complain = partial(_complain, redactor)
        reactor = Reactor(clock)
        guard = stack.enter_context(keep_guard(reactor, clock))
        opened = stack.enter_context(
            _open_model_dir(
                prepared, prerequisites, instance, clock, reactor, guard, exclusion, complain
            )
        )
        storage, space = opened.storage, opened.space
        journal, history = opened.journal, opened.history
        config = [redactor.params(plan.params) for plan in prepared.plans]
        config_changes = _accept_changes(prepared, history, config, redactor, once=once)
        reactor.stop_on_signals()
        job = history.state.job or uuid.uuid4().hex[:12]
        stack.callback(_kill_all_processes, guard, reactor)
        warnings = start_warnings(prepared, state=history.state, once=once)
        warnings += sweep_leftovers(prepared.job.model_dir, history.state.job)
        record_and_contain(guard, storage, prepared.job.model_dir, job, instance)
        lineage = lineage_of(os.environ, f"{job}@{instance}")
        longest_save = LongestSave(history.state.longest_save)
        preemption = _watch_for_preemption(
            prepared, guard, job, lineage, clock, reactor, stack, redactor, longest_save
        )
        display = make_display(prepared, clock, reactor.post, stack, log_format)
        log = RunLog(storage, clock, display.line, log_format, redactor.text, display.has_shown)
        stack.callback(log.say_what_waits)  # if this supervisor ends before its job goes on
        tell_start(log, prepared, history, config_changes, warnings, once=once)
        if history.config != config:
            journal.record_config(clock.wall(), config, [str(change) for change in config_changes])
        cache = CompileCache(
            prepared.job.model_dir / cache_trust.FOLDER,
            lambda text: reactor.post(Noticed(clock.now(), text)),
        )
        observers = observers_of(
            prepared,
            clock,
            reactor,
            storage,
            space,
            cache,
            journal,
            history,
            log,
            display,
            complain,
            guard,
            _marked(job, lineage),
            stack,
        )
        known = frozenset(history.past.stepped)
        unrecorded = _highest_attempt(storage, history)
        history.transitions.clear()  # after thousands of attempts they take tens of MB
        simulation = prepared.job.model_dir / simulated.FILE
        host = ThisHost(guard, simulation)
        probe = DeviceProbe(reactor, clock, host, _marked(job, lineage))
        engine = _engine(
            prepared,
            job,
            opened,
            reactor,
            clock,
            host,
            display,
            cache,
            probe,
            redactor,
            known,
            partial(log.say, level="warning"),
            stack,
        )
        space.in_use = lambda: engine.directory
        world = LocalWorld(
            job,
            lineage,
            prepared,
            config,
            storage,
            clock,
            reactor,
            engine,
            space,
            opened.ownership,
            host,
        )
        if (reason := preemption.announced_machine_end(_FIRST_ANNOUNCEMENT_TIMEOUT)) is not None:
            text = f"a preemption is announced: {reason}; nothing is started here"
            log.say(Notice("preemption-announced", text, reason=reason), level="warning")
            return int(ExitCode.DRAINED)
        if alive_file is not None:
            AliveFile(
                alive_file,
                reactor.call_later,
                lambda told: reactor.post(Noticed(clock.now(), told)),
            )
        if http is not None:
            _show_over_http(http, prepared, clock, reactor, stack)
        runtime = Runtime(
            world, journal, clock, (observers, longest_save), history.state, prepared.policy
        )
        end_process = partial(_kill_workers_and_exit, prepared, guard, complain)
        grace = prepared.policy.grace_period + _SHUTDOWN_MARGIN
        with stall.watched(reactor, grace, engine.pass_on_sigterm, end_process):
            return _run_to_the_end(
                runtime,
                _start_event(
                    job,
                    prepared,
                    host,
                    history.state,
                    config_changes,
                    clock,
                    unrecorded,
                    once=once,
                ),
                prepared,
                log,
            )


def _show_over_http(
    address: str, prepared: Prepared, clock: Clock, reactor: Reactor, stack: ExitStack
) -> None:
    """Show the job at `address` until `stack` ends."""

    def say(told: Notice, routine: bool) -> None:
        reactor.post(Noticed(clock.now(), told, routine))

    model_dir = str(prepared.job.model_dir)
    stack.enter_context(shown_over_http(address, model_dir, reactor, say))


def _engine(
    prepared: Prepared,
    job: str,
    opened: _OpenModelDir,
    reactor: Reactor,
    clock: Clock,
    host: ThisHost,
    display: Display,
    cache: CompileCache,
    probe: DeviceProbe,
    redactor: Redactor,
    phases_with_steps: frozenset[int],
    tell_now: Tell,
    stack: ExitStack,
) -> Engine:
    """Returns the engine of the job, which ends with `stack`.

    Raises:
        ConfigError: the cluster of the hosts can never be used as it is.
        NoClusterError: it does not answer.
    """
    init, redact = prepared.job.phases[0].init, redactor.text
    if init.hosts is None:
        mirror, known = display.mirror, phases_with_steps
        return LocalEngine(reactor, clock, host, os.environ, mirror, cache, probe, redact, known)
    from supervisor.engines.fleet import on_ray  # a job on one machine needs none of it

    own, platform = opened.ownership, prepared.plans[0].platform
    try:
        return on_ray.engine_on_ray(
            init,
            platform,
            job,
            own.epoch,
            own.owner,
            own.check,
            reactor,
            clock,
            host,
            cache,
            redact,
            opened.history.config,
            partial(is_stop_asked, prepared.job.model_dir, Identity.of_this_process()),
            tell_now,
            stack,
        )
    except on_ray.ClusterRefusedError as error:
        raise ConfigError([prepared.job.problem(0, ("init", "hosts"), str(error))]) from error
    except on_ray.ClusterUnreachableError as error:
        told = "start the cluster, or correct trainer.init.hosts.address, then run the same command"
        raise NoClusterError(f"{error}; {told}: nothing was started") from error


@dataclass(frozen=True, slots=True)
class _OpenModelDir:
    """The model_dir that we own, and the job in it."""

    ownership: Ownership
    space: Space
    storage: Storage
    journal: FileJournal
    history: History


@contextmanager
def _open_model_dir(
    prepared: Prepared,
    prerequisites: Prerequisites,
    token: str,
    clock: Clock,
    reactor: Reactor,
    guard: GuardClient,
    exclusion: Exclusion | None,
    complain: Callable[[str], None],
) -> Iterator[_OpenModelDir]:
    """Take model_dir for the block; if the job is in a bucket, bring it here and mirror it there.

    Raises:
        ModelDirError: model_dir cannot be used.
        LockHeldError, LeaseHeldError: another supervisor owns it.
    """
    model_dir = prepared.job.model_dir
    objects, trust = prerequisites.objects, prerequisites.trust
    make_model_dir(prepared)
    means = exclusion or Exclusion.needed_by(model_dir, in_bucket=objects is not None)
    if prepared.job.phases[0].init.hosts is not None and means.lease is None:
        means = replace(means, lease=LeaseTimes())  # its number is the epoch that agents obey

    def notice(told: Notice) -> None:
        reactor.post(Noticed(clock.now(), told))

    with ExitStack() as stack:
        space = Space(model_dir, notice, partial(phases_on_record, LocalStorage(model_dir)))
        storage: Storage = RoomMakingStorage(LocalStorage(model_dir), space)
        owning = own_model_dir(
            ModelDir(model_dir, storage, lease_place(prepared.job)),
            token,
            clock,
            reactor,
            guard,
            means,
            complain,
            partial(_exit_process, prepared, complain),
        )
        try:
            ownership = stack.enter_context(owning)
        except OSError as error:
            why = (
                error if isinstance(error, UnreadableError) else error.strerror
            )  # it names the file
            text = f"{prepared.job.shown_model_dir} cannot be locked: {why}"
            raise ModelDirError(text) from error
        if objects is None:
            journal = FileJournal(storage, tell=notice)
            yield _OpenModelDir(ownership, space, storage, journal, journal.read())
            return
        if not trust.shares:
            reactor.post(
                Noticed(
                    clock.now(),
                    Notice("compiled-programs-kept-here", _CACHE_NOT_SHARED),
                    routine=True,
                )
            )
        mirror = bring_job(objects, prepared.job, trust, ownership.epoch, clock, notice)

        def give_up() -> bool:
            ownership.check()
            reactor.note_progress()
            return reactor.has_event(StopRequested)

        storage = MirroredStorage(storage, mirror, give_up)
        journal = FileJournal(storage, tell=notice)
        history = journal.read()
        mirror.begin()
        stack.callback(_finish_upload, mirror, ownership.check, complain)
        yield _OpenModelDir(ownership, space, storage, journal, history)


def _complain(redactor: Redactor, text: str) -> None:
    """Write a line to standard error, when there is no run.log or no time for it."""
    say_on_stderr(f"supervise: {redactor.text(text)}")


def _watch_for_preemption(
    prepared: Prepared,
    guard: GuardClient,
    job: str,
    lineage: str,
    clock: Clock,
    reactor: Reactor,
    stack: ExitStack,
    redactor: Redactor,
    longest_save: LongestSave,
) -> PreemptionWatch:
    """Listen for announced preemptions until `stack` ends.

    A process that an announcement command leaves behind is killed and swept like a worker's.
    """
    config = prepared.job.phases[0].init.autorestart.preemption

    def on_preemption(text: str, notice: float | None) -> None:
        reactor.post(StopRequested(clock.now(), StopSource.PREEMPTION, text, notice=notice))

    def on_maintenance(text: str) -> None:
        reactor.post(MaintenanceAnnounced(clock.now(), text))

    def post_notice(notice: Notice) -> None:
        reactor.post(Noticed(clock.now(), notice))

    def time_needed() -> float:
        return time_to_stop(longest_save.seconds, prepared.policy)

    sources = preemption_sources(config, _marked(job, lineage), guard, time_needed, post_notice)
    watch = PreemptionWatch(sources, on_preemption, on_maintenance, post_notice, redactor.text)
    stack.callback(watch.close)
    return watch


def _marked(job: str, lineage: str) -> dict[str, str]:
    """Returns the environment for helper processes: the marks in it let us sweep them like a
    worker's."""
    ours = {environment.JOB: job, environment.LINEAGE: lineage}
    return {**environment.without_supervisor_variables(os.environ), **ours}


def _accept_changes(
    prepared: Prepared,
    history: History,
    config: Sequence[dict[str, Any]],
    redactor: Redactor,
    *,
    once: bool,
) -> list[Change]:
    """Returns what changed in the config since the job last ran. A changed secret does not count.

    Raises:
        ConfigError: a key changed that must not.
    """
    if history.config is None:
        return []
    found = changes([redactor.params(params) for params in history.config], config)
    problems = [
        Problem(prepared.job.source.name, "", message)
        for _, message in refused(history.state, found, len(prepared.plans), once=once)
    ]
    if problems:
        raise ConfigError(problems)
    return found


def _start_event(
    job: str,
    prepared: Prepared,
    host: ThisHost,
    state: JobState,
    config_changes: Sequence[Change],
    clock: Clock,
    attempt: int,
    *,
    once: bool,
) -> SupervisorStarted:
    phase = min(state.phase, len(prepared.plans) - 1)
    committed = newest_in(host, prepared, phase, state.checkpoints, state.checkpoint_kinds)
    epoch = clock.wall().timestamp() - clock.now()
    return SupervisorStarted(
        clock.now(),
        job,
        prepared.policy,
        committed,
        epoch,
        once,
        attempt,
        writer(),
        changed=computes_something_else(config_changes, phase),
    )


def _highest_attempt(storage: Storage, history: History) -> int:
    """Returns the highest attempt number that has a folder; the journal may have lost its records.

    0 if the journal is empty. Skips phase folders that are older than the first one in the journal:
    they belong to an earlier job whose journal somebody moved away.

    Raises:
        ModelDirError: the folders cannot be listed.
    """
    if not history.number:
        return 0
    try:
        return highest_attempt(storage, min(history.past.directories, default=""))
    except OSError as error:
        raise ModelDirError(f"the attempts cannot be listed: {error.strerror}") from error


def _run_to_the_end(runtime: Runtime, first: Event, prepared: Prepared, log: RunLog) -> int:
    try:
        final = runtime.run(first)
    except (JournalError, ModelDirError, UnkillableError) as error:
        text = f"the supervisor ends now and kills the workers: {error}"
        log.say(Notice("supervisor-failed", text, reason=str(error)), level="error")
        if prepared.job.remote is None and is_gone(prepared.job.model_dir):
            raise JobGoneError(str(error)) from error
        raise
    assert final.exit_code is not None
    return final.exit_code


def _kill_workers_and_exit(
    prepared: Prepared, guard: GuardClient, complain: Callable[[str], None], why: str
) -> None:
    """Kill the workers, then end this process; called from another thread.

    The workers go first: one that waits for the same file system may hold a kernel lock that this
    process needs before it can end.
    """
    guard.request_kill()
    text = f"{why}: the supervisor ends now and kills the workers"
    how = "run the same command again to resume"
    _exit_process(prepared, complain, ExitCode.DRAINED, f"{text}; {how}")


def _exit_process(
    prepared: Prepared, complain: Callable[[str], None], code: ExitCode, why: str
) -> None:
    """End this process, from another thread, with `code` as the config's `exit_codes` map it."""
    complain(why)
    os._exit(prepared.job.exit_codes.get(code, code))


def _finish_upload(mirror: Mirror, check: OwnershipCheck, complain: Callable[[str], None]) -> None:
    """Upload the remaining files and end the mirror; does not wait if another supervisor may own
    model_dir."""
    try:
        check()
        timeout = _FINAL_UPLOAD_TIMEOUT
    except (LeaseTakenError, LeaseExpiredError):
        timeout = 0.0
    if (why := mirror.close(timeout)) is not None:
        complain(f"the newest files of the job are on this host only, not in the bucket: {why}")


def _kill_all_processes(guard: GuardClient, reactor: Reactor) -> None:
    """Kill every process of the job, whatever ends this supervisor, even an error of our own.

    Runs while we still own model_dir, so that no process is left when somebody else may take it.

    Raises:
        UnkillableError: a process does not die.
    """
    stop_requests = reactor.stop_requests
    while guard.kill():
        time.sleep(guard.pause)
        if reactor.stop_requests != stop_requests:
            guard.give_up_early()
