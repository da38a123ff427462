"""Runs one job: takes model_dir, recovers the state from its journal, and runs it to its end."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from supervisor.adapters.kernel import stall
from supervisor.adapters.kernel.clock import SystemClock
from supervisor.adapters.kernel.reactor import Reactor
from supervisor.adapters.platforms.preemption import PreemptionWatch
from supervisor.adapters.processes.guard_client import GuardClient
from supervisor.adapters.processes.leftovers import lineage_of
from supervisor.adapters.stores.compile_cache import CompileCache
from supervisor.adapters.stores.journal import History, JournalError
from supervisor.adapters.telling.alive_file import AliveFile
from supervisor.adapters.telling.http_child import shown_over_http
from supervisor.adapters.telling.runlog import RunLog
from supervisor.config.problems import ConfigError, Problem
from supervisor.core import cache_trust
from supervisor.core.changes import Change, changes, computes_something_else, refused
from supervisor.core.events import (
    Event,
    MaintenanceAnnounced,
    StopRequested,
    StopSource,
    SupervisorStarted,
)
from supervisor.core.exit_codes import ExitCode
from supervisor.core.stopping import time_to_stop
from supervisor.engine_choice import engine_of
from supervisor.engines.guard_watch import keep_guard
from supervisor.engines.preemption_sources import preemption_sources
from supervisor.engines.this_host import ThisHost
from supervisor.guard_keeper import record_and_contain, sweep_leftovers
from supervisor.history.writer import writer
from supervisor.host.notice import Notice
from supervisor.host.unkillable import UnkillableError
from supervisor.later_data import check_later_data
from supervisor.model_dir_ownership import JobGoneError, ModelDirError, is_gone
from supervisor.observers import Display, LongestSave, make_display, observers_of
from supervisor.open_model_dir import OpenModelDir, open_model_dir
from supervisor.preflight import check, start_warnings
from supervisor.prepare import Prepared
from supervisor.protocol import environment, simulated
from supervisor.repair import highest_attempt
from supervisor.runtime import Runtime
from supervisor.start_notes import tell_start
from supervisor.supervision import RunOptions, Supervision
from supervisor.world import LocalWorld, newest_in

_SHUTDOWN_MARGIN = 10.0
"""Seconds beyond the grace period before a supervisor that was told to stop counts as hung. A
healthy one needs them to kill its workers, close their pipes and judge how they ended."""
_FIRST_ANNOUNCEMENT_TIMEOUT = 1.0
"""Seconds to wait for the first answer to whether a preemption of this machine is announced. It
usually takes a few milliseconds."""


def run_job(prepared: Prepared, options: RunOptions) -> int:
    """Run the job until it ends; returns its exit code, before the config's `exit_codes` map it.

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
        instance, redactor = uuid.uuid4().hex, prepared.redactor(os.environ)
        reactor = Reactor(clock)
        reactor.outlive_idle_signals()
        guard = stack.enter_context(keep_guard(reactor, clock))
        supervision = Supervision(
            prepared, options, instance, clock, reactor, guard, redactor, stack
        )
        end_process = partial(_exit_process, prepared, supervision.complain)
        opened = open_model_dir(supervision, prerequisites, end_process)
        config = _accepted_config(supervision, opened.history)
        reactor.stop_on_signals()
        stack.callback(_kill_all_processes, guard, reactor)
        return _run_opened(supervision, opened, config)


@dataclass(frozen=True, slots=True)
class _RunConfig:
    """The config of a run, as the journal records it."""

    params: list[dict[str, Any]]
    """The content of params.yaml for each phase."""
    changes: list[Change]
    """What changed since the job last ran. A changed secret does not count."""


def _accepted_config(supervision: Supervision, history: History) -> _RunConfig:
    """Returns the config of this run.

    Raises:
        ConfigError: a key changed that must not.
    """
    prepared, redactor = supervision.prepared, supervision.redactor
    config = [redactor.params(plan.params) for plan in prepared.plans]
    if history.config is None:
        return _RunConfig(config, [])
    found = changes([redactor.params(params) for params in history.config], config)
    once = supervision.options.once
    problems = [
        Problem(prepared.job.source.name, "", message)
        for _, message in refused(history.state, found, len(prepared.plans), once=once)
    ]
    if problems:
        raise ConfigError(problems)
    return _RunConfig(config, found)


def _run_opened(supervision: Supervision, opened: OpenModelDir, config: _RunConfig) -> int:
    """Run the job in the model_dir that we own. See `run_job`."""
    prepared, clock, reactor = supervision.prepared, supervision.clock, supervision.reactor
    history, model_dir = opened.history, prepared.job.model_dir
    warnings = _take_over(supervision, opened)
    lineage = lineage_of(os.environ, f"{opened.job}@{supervision.instance}")
    helper_environ = _marked(opened.job, lineage)
    longest_save = LongestSave(history.state.longest_save)
    preemption = _watch_for_preemption(supervision, helper_environ, longest_save)
    display = make_display(supervision)
    log = _begun_log(supervision, opened, config, display, warnings)
    cache = CompileCache(model_dir / cache_trust.FOLDER, supervision.notice)
    observers = observers_of(supervision, opened, cache, log, display, helper_environ)
    unrecorded = _highest_attempt(opened)
    history.transitions.clear()  # after thousands of attempts they take tens of MB
    host = ThisHost(supervision.guard, model_dir / simulated.FILE)
    engine = engine_of(supervision, opened, host, display, cache, helper_environ, log)
    opened.space.in_use = lambda: engine.directory
    world = LocalWorld(
        opened.job,
        lineage,
        prepared,
        config.params,
        opened.storage,
        clock,
        reactor,
        engine,
        opened.space,
        opened.ownership,
        host,
    )
    if (reason := preemption.announced_machine_end(_FIRST_ANNOUNCEMENT_TIMEOUT)) is not None:
        text = f"a preemption is announced: {reason}; nothing is started here"
        log.say(Notice("preemption-announced", text, reason=reason), level="warning")
        return int(ExitCode.DRAINED)
    _begin_beside(supervision, history.state.phase)
    all_observers = observers, longest_save
    runtime = Runtime(world, opened.journal, clock, all_observers, history.state, prepared.policy)
    grace = prepared.policy.grace_period + _SHUTDOWN_MARGIN
    kill_and_exit = partial(_kill_workers_and_exit, supervision)
    with stall.watched(reactor, grace, engine.pass_on_sigterm, kill_and_exit):
        first = _start_event(supervision, opened, host, config.changes, unrecorded)
        return _run_to_the_end(runtime, first, prepared, log)


def _take_over(supervision: Supervision, opened: OpenModelDir) -> list[Notice]:
    """Kill what an earlier supervisor left behind, and have the guard contain what we start.
    Returns what a person should know before the job goes on."""
    prepared, history = supervision.prepared, opened.history
    model_dir, instance = prepared.job.model_dir, supervision.instance
    once = supervision.options.once
    warnings = start_warnings(prepared, state=history.state, once=once)
    warnings += sweep_leftovers(model_dir, history.state.job)
    record_and_contain(supervision.guard, opened.storage, model_dir, opened.job, instance)
    return warnings


def _marked(job: str, lineage: str) -> dict[str, str]:
    """Returns the environment for helper processes: the marks in it let us sweep them like a
    worker's."""
    ours = {environment.JOB: job, environment.LINEAGE: lineage}
    return {**environment.without_supervisor_variables(os.environ), **ours}


def _watch_for_preemption(
    supervision: Supervision, helper_environ: Mapping[str, str], longest_save: LongestSave
) -> PreemptionWatch:
    """Listen for announced preemptions until the run ends.

    A process that an announcement command leaves behind is killed and swept like a worker's.
    """
    clock, reactor, prepared = supervision.clock, supervision.reactor, supervision.prepared
    config = prepared.job.phases[0].init.autorestart.preemption
    notice = supervision.notice

    def on_preemption(text: str, notice: float | None) -> None:
        reactor.post(StopRequested(clock.now(), StopSource.PREEMPTION, text, notice=notice))

    def on_maintenance(text: str) -> None:
        reactor.post(MaintenanceAnnounced(clock.now(), text))

    def time_needed() -> float:
        return time_to_stop(longest_save.seconds, prepared.policy)

    sources = preemption_sources(config, helper_environ, supervision.guard, time_needed, notice)
    redact = supervision.redactor.text
    watch = PreemptionWatch(sources, on_preemption, on_maintenance, notice, redact)
    supervision.stack.callback(watch.close)
    return watch


def _begun_log(
    supervision: Supervision,
    opened: OpenModelDir,
    config: _RunConfig,
    display: Display,
    warnings: Sequence[Notice],
) -> RunLog:
    """Returns run.log, which has been told of this start. The journal has its config by then."""
    clock, options, history = supervision.clock, supervision.options, opened.history
    log = RunLog(
        opened.storage,
        clock,
        display.line,
        options.log_format,
        supervision.redactor.text,
        display.has_shown,
    )
    supervision.stack.callback(log.say_what_waits)  # if this supervisor ends before its job goes on
    prepared, found = supervision.prepared, config.changes
    tell_start(log, prepared, history, found, warnings, once=options.once)
    if history.config != config.params:
        told = [str(change) for change in found]
        opened.journal.record_config(clock.wall(), config.params, told)
    return log


def _highest_attempt(opened: OpenModelDir) -> int:
    """Returns the highest attempt number that has a folder; the journal may have lost its records.

    0 if the journal is empty. Skips phase folders that are older than the first one in the journal:
    they belong to an earlier job whose journal somebody moved away.

    Raises:
        ModelDirError: the folders cannot be listed.
    """
    history = opened.history
    if not history.number:
        return 0
    try:
        return highest_attempt(opened.storage, min(history.past.directories, default=""))
    except OSError as error:
        raise ModelDirError(f"the attempts cannot be listed: {error.strerror}") from error


def _begin_beside(supervision: Supervision, phase: int) -> None:
    """Begin what goes on beside the job and never decides: the file of `--alive-file`, the check of
    the data from `phase` on, and the pages of `--http`."""
    prepared, reactor = supervision.prepared, supervision.reactor
    alive_file, http = supervision.options.alive_file, supervision.options.http
    if alive_file is not None:
        AliveFile(alive_file, reactor.call_later, supervision.notice)
    check_later_data(prepared.plans[phase:], supervision.notice)
    if http is not None:
        shown = shown_over_http(http, str(prepared.job.model_dir), reactor, supervision.notice)
        supervision.stack.enter_context(shown)


def _start_event(
    supervision: Supervision,
    opened: OpenModelDir,
    host: ThisHost,
    config_changes: Sequence[Change],
    attempt: int,
) -> SupervisorStarted:
    prepared, clock, state = supervision.prepared, supervision.clock, opened.history.state
    phase = min(state.phase, len(prepared.plans) - 1)
    committed = newest_in(host, prepared, phase, state.checkpoints, state.checkpoint_kinds)
    epoch = clock.wall().timestamp() - clock.now()
    return SupervisorStarted(
        clock.now(),
        opened.job,
        prepared.policy,
        committed,
        epoch,
        supervision.options.once,
        attempt,
        writer(),
        changed=computes_something_else(config_changes, phase),
        lease_epoch=opened.ownership.epoch,
    )


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


def _kill_workers_and_exit(supervision: Supervision, why: str) -> None:
    """Kill the workers, then end this process; called from another thread.

    The workers go first: one that waits for the same file system may hold a kernel lock that this
    process needs before it can end.
    """
    supervision.guard.request_kill()
    text = f"{why}: the supervisor ends now and kills the workers"
    told = f"{text}; run the same command again to resume"
    _exit_process(supervision.prepared, supervision.complain, ExitCode.DRAINED, told)


def _exit_process(
    prepared: Prepared, complain: Callable[[str], None], code: ExitCode, why: str
) -> None:
    """End this process, from another thread, with `code` as the config's `exit_codes` map it."""
    complain(why)
    os._exit(prepared.job.exit_codes.get(code, code))


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
