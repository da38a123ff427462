"""Runs worker groups as processes on this host.

It starts, signals and kills, and posts the results as events. `launch` describes an attempt to
start, `starting` starts a worker, `group` is the live worker group, `ahead` prepares for the next
attempt, and `judging` judges the end.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from supervisor.config.plan import PhasePlan
from supervisor.core.events import (
    CheckpointCommitted,
    DevicesProbed,
    LaunchFailed,
    Noticed,
    WorkersObserved,
    WorkersStarted,
)
from supervisor.core.settling import Settling
from supervisor.diagnosis.failure import Survivor, WorkerExit
from supervisor.diagnosis.verdicts import launch_failure
from supervisor.engines.ahead.preparing import Preparations
from supervisor.engines.clearing import Clearing, Releasing
from supervisor.engines.group import Member, WorkerGroup
from supervisor.engines.handles import Memory, Watch
from supervisor.engines.hearing import Hearing
from supervisor.engines.host_port import Compilations, Host, MainLoop
from supervisor.engines.judging import Seen, judged, redacted, seen_of
from supervisor.engines.launch import Launch, Start
from supervisor.engines.pattern_warning import UnmatchedPatternWarning
from supervisor.engines.probing.device_probe import DeviceProbe
from supervisor.engines.probing.units import ProbeAnswer
from supervisor.engines.snapshot_keeper import SnapshotKeeper
from supervisor.engines.stack_dumps import dump_stacks
from supervisor.engines.starting import WorkerStarter
from supervisor.engines.survivors import SurvivorWatch
from supervisor.engines.worker_environment import placement_variables, ports_needed
from supervisor.host.notice import Notice
from supervisor.ports import Clock
from supervisor.protocol.location import Uri

_OBSERVE_INTERVAL = 5.0
_DRAIN_OUTPUT = 5.0
"""Seconds to read the rest of all workers' output, for which the main loop blocks."""
_EXIT_HANDLERS = 2.0
"""Least seconds for the exit handlers of a failed worker, if there are several workers."""


class LocalEngine:
    """Starts, signals and kills the one worker group of this host. Posts what comes of it."""

    def __init__(
        self,
        reactor: MainLoop,
        clock: Clock,
        machine: Host,
        environ: Mapping[str, str],
        mirror: Callable[[int, bytes], None] | None,
        compile_cache: Compilations,
        probe: DeviceProbe,
        redact: Callable[[str], str] = str,
        phases_with_steps: Collection[int] = (),
    ) -> None:
        """`environ` is what workers inherit; rank 0's output also goes to `mirror`, if given.

        `redact` removes secrets from texts about failures. `phases_with_steps` are the phases in
        which steps were reported before.
        """
        self._reactor = reactor
        self._clock = clock
        self._machine = machine
        self._compile_cache = compile_cache
        self._probe = probe
        self._redact = redact
        self._group: WorkerGroup | None = None
        self._killing = Clearing(reactor, machine)
        self._releasing = Releasing(reactor, clock, machine.chip_holders, self._notice, redact)
        self._pattern_warning = UnmatchedPatternWarning(self._notice, redact, phases_with_steps)
        self._snapshots = SnapshotKeeper(machine, self._notice, self._mention)
        self._ahead = Preparations(
            reactor, clock, machine, probe, self._notice, self._mention, redact
        )
        self._hearing = Hearing(
            reactor, clock, compile_cache, self._snapshots, self._ahead.look, redact
        )
        self._starter = WorkerStarter(
            machine,
            environ,
            mirror,
            compile_cache,
            self._ahead,
            self._hearing.on_message,
            self._notice,
        )

    @property
    def directory(self) -> Path | None:
        """The directory of the running attempt; None: no attempt runs."""
        return self._group.launch.directory if self._group is not None else None

    def start(self, launch: Launch) -> None:
        """Start the attempt's workers. Answered by `WorkersStarted` or `LaunchFailed`."""
        began = self._clock.now()
        if launch.plan.platform == "tpu":
            self._releasing.note_earlier_holders()
        machine = self._machine
        group = WorkerGroup(
            launch,
            machine,
            self._watcher(launch),
            machine.oom_kills(),
            machine.losses(),
            launch.pending_faults(),
            Settling(began),
        )
        self._group = group
        group.committed = newest = self._newest(launch.plan.checkpoint_dir)
        self._survivors = SurvivorWatch(
            group,
            self._reactor,
            self._clock,
            self._redact,
            self._mention,
            lambda survivors: self._tell_survivors(group, survivors),
        )
        argv, env = self._starter.program(launch, newest)
        memories = self._snapshot_memories(launch, newest)
        try:
            ports = machine.free_ports(ports_needed(launch))
            for rank in range(launch.world_size):
                place = placement_variables(launch, rank, ports, env)
                start = Start(
                    argv, {**env, **place, **launch.protocol_variables(rank, group.faults)}
                )
                self._begin(group, start, memories[rank] if memories else None)
        except (OSError, ValueError) as error:
            for worker in group.workers:  # we end them ourselves: not to be reported
                self._reactor.forget(worker.process.pidfd)
            failed = partial(self._launch_failed, group, error, argv)
            self._killing.kill_until_gone(lambda: self._kill(group), failed)
            return
        self._tell_start(group)
        self._reactor.call_later(_OBSERVE_INTERVAL, lambda: self._look_again(group))
        if len(group.workers) > 1:
            self._end_those_that_failed(group, ())
        now, standby = self._clock.now(), all(worker.standby for worker in group.workers)
        self._reactor.post(WorkersStarted(now, launch.attempt, group.pids, began, standby))

    def probe(self, plan: PhasePlan, number: int, units: tuple[str, ...] | None) -> None:
        """Probe these devices or hosts (None: all of the phase). Answered by `DevicesProbed`."""

        def answered(answer: ProbeAnswer) -> None:
            now = self._clock.now()
            told = answer.redacted(self._redact)
            found = DevicesProbed(now, number, told.healthy, told.bad, told.problem)
            self._reactor.post(found)

        self._probe.start_look(plan, units, answered)

    def dump_stacks(self, attempt: int) -> None:
        """Have the attempt's workers write their stacks, by every means available."""
        group = self._group
        if group is None or group.launch.attempt != attempt:
            return
        for worker in group.workers:
            for notice in dump_stacks(self._machine, worker, group.launch, self._clock.now()):
                self._notice(notice)

    def name_holders(self) -> None:
        """Tell people who or what keeps an accelerator busy."""
        for told in self._machine.describe_device_holders(self._redact):
            self._notice(told)

    def pass_on_sigterm(self) -> None:
        """Send SIGTERM to the workers while the main loop hangs. Safe in any thread."""
        group = self._group
        for worker in tuple(group.workers) if group is not None else ():
            worker.process.signal(signal.SIGTERM)

    def terminate(self, attempt: int) -> None:
        """Ask the attempt's workers and their survivors to save and exit."""
        if self._group is not None and self._group.launch.attempt == attempt:
            self._group.asked_to_stop = True
            self._ahead.pause()
            self._survivors.terminate()

    def kill(
        self, launch: Launch, exits: tuple[WorkerExit, ...], late: tuple[Survivor, ...] = ()
    ) -> None:
        """Kill all that is left of the attempt. Answered by `WorkersGone` once nothing is left.

        `exits` is used only for an attempt that an earlier supervisor started: it is all that is
        known of its end. If a process of `late` still runs, the attempt has failed.

        Raises:
            UnkillableError: a process does not die.
        """
        group = self._group
        if group is not None and group.launch.attempt != launch.attempt:
            group = None
        if group is not None and group.num_ended_before_kill is None:
            group.late = tuple(each for each in late if self._machine.lives(each.pid))
            group.kill()

        def gone() -> None:
            if group is not None:
                self._close(group)
            self._gone(launch, tuple(group.exits) if group is not None else exits, group)

        def released() -> None:
            if launch.plan.platform == "tpu":
                self._releasing.until_released(gone)
            else:
                gone()

        self._killing.kill_until_gone(lambda: self._kill(group), released)

    # --- starting ---------------------------------------------------------------------------

    def _begin(self, group: WorkerGroup, start: Start, memory: Memory | None) -> None:
        """Start the group's next worker, and read its output and reports from now on.

        Raises:
            OSError: it cannot be started.
        """
        worker = self._starter.start(group, start, memory)
        worker.look(self._clock.now())
        group.workers.append(worker)
        worker.output.start()
        self._hearing.begin(group, worker)
        self._reactor.watch(worker.process.pidfd, lambda: self._worker_ended(group, worker))

    def _tell_start(self, group: WorkerGroup) -> None:
        kinds = [worker.standby for worker in group.workers if worker.standby is not None]
        if len(group.workers) > 1 and kinds:
            of = f"{len(kinds)} of {len(group.workers)} workers"
            self._mention(
                Notice(
                    "standby-used",
                    f"standbys ({kinds[0]}) take over as {of}",
                    kind=kinds[0],
                    number=len(kinds),
                    num_workers=len(group.workers),
                )
            )
        elif kinds:
            self._mention(
                Notice(
                    "standby-used",
                    f"the standby ({kinds[0]}) takes over",
                    kind=kinds[0],
                    number=1,
                    num_workers=1,
                )
            )
        for fault in group.faults:
            self._notice(
                Notice("drill-armed", f"DRILL armed: {fault.describe()}", detail=fault.describe())
            )

    def _launch_failed(
        self, group: WorkerGroup, error: OSError | ValueError, argv: tuple[str, ...]
    ) -> None:
        """Post that not all workers could be started; those that were started are gone."""
        self._close(group)
        failure = redacted(launch_failure(error, argv), self._redact)
        self._reactor.post(LaunchFailed(self._clock.now(), group.launch.attempt, failure))

    def _snapshot_memories(self, launch: Launch, newest: int | None) -> Sequence[Memory]:
        """Returns the snapshot memory of each rank; empty: the phase has no snapshots."""
        if not launch.plan.snapshots:
            return ()
        return self._snapshots.lend(launch.phase, launch.world_size, launch.distrust, newest)

    def _watcher(self, launch: Launch) -> Watch:
        def committed(step: int) -> None:
            self._reactor.post(CheckpointCommitted(self._clock.now(), launch.phase, step))

        return self._machine.watch_checkpoints(launch.plan.checkpoint_dir, committed, self._notice)

    # --- watching ---------------------------------------------------------------------------

    def _worker_ended(self, group: WorkerGroup, worker: Member) -> None:
        for each in group.workers:
            each.pipe.drain()  # reports from before the end come first
        if group.has_ended(worker):
            self._ahead.pause()
            self._reactor.forget(worker.process.pidfd)
            self._observe(group)
            self._survivors.follow()

    def _look_again(self, group: WorkerGroup) -> None:
        if self._group is group:
            self._machine.refresh()
            for worker in group.workers:
                worker.look(self._clock.now())
            self._pattern_warning.look(group.launch, group.outputs, self._clock.now())
            self._observe(group)
            self._ahead.look(group)
            self._reactor.call_later(_OBSERVE_INTERVAL, lambda: self._look_again(group))

    def _end_those_that_failed(self, group: WorkerGroup, known: Sequence[Member]) -> None:
        """Kill the workers that were `known` to have failed at the last look and still live.

        A Python program that fails waits up to five minutes for the others in the exit handler of
        `jax.distributed`, while they wait for it in a collective.
        """
        if self._group is not group:
            return
        failed = [worker for worker in group.workers if group.has_left_failure_record(worker)]
        for worker in failed:
            if worker in known:
                self._notice(
                    Notice(
                        "rank-killed",
                        f"rank {worker.rank} has failed and does not end: it is killed",
                        rank=worker.rank,
                    )
                )
                worker.process.signal(signal.SIGKILL)
        self._reactor.call_later(_EXIT_HANDLERS, lambda: self._end_those_that_failed(group, failed))

    def _observe(self, group: WorkerGroup) -> None:
        self._snapshots.tell_size()
        survivors = self._survivors.look()
        if survivors is not None:  # if not known yet, `SurvivorWatch` tells later
            self._tell_survivors(group, survivors)

    def _tell_survivors(self, group: WorkerGroup, survivors: tuple[Survivor, ...]) -> None:
        now, attempt, exits = self._clock.now(), group.launch.attempt, tuple(group.exits)
        self._reactor.post(WorkersObserved(now, attempt, group.pids, exits, survivors))

    def _notice(self, told: Notice) -> None:
        self._reactor.post(Noticed(self._clock.now(), told))

    def _mention(self, told: Notice) -> None:
        self._reactor.post(Noticed(self._clock.now(), told, routine=True))

    def _newest(self, place: Path | Uri) -> int | None:
        try:
            return self._machine.newest_checkpoint(place)
        except OSError as error:
            self._notice(
                Notice(
                    "place-unreadable",
                    f"{place} cannot be read: {error.strerror or error}",
                    place=str(place),
                    reason=error.strerror,
                )
            )
            return None

    # --- ending -----------------------------------------------------------------------------

    def _kill(self, group: WorkerGroup | None) -> bool:
        """Kill all processes of the job except those in `Preparations.pids`, which belong to no
        attempt. Returns True while any is left."""
        self._ahead.pause()
        self._probe.stop()
        return self._machine.kill(self._ahead.pids) or not (group is None or group.all_have_ended())

    def _close(self, group: WorkerGroup) -> None:
        """Read what is left in the pipes of the dead workers, and close everything."""
        group.watcher.stop()
        end = self._clock.now() + _DRAIN_OUTPUT
        for worker in group.workers:
            worker.pipe.drain()
            self._reactor.forget(worker.pipe.read_end)
            self._reactor.forget(worker.process.pidfd)
            if not worker.close(max(0.0, end - self._clock.now())):
                self._notice(
                    Notice(
                        "output-held",
                        "somebody outside this job still holds the worker's output open",
                    )
                )
        if all(ended.clean for ended in group.exits):
            self._pattern_warning.look(group.launch, group.outputs, self._clock.now(), over=True)
        pending = group.launch.pending_faults()
        for fault in group.faults:
            if fault not in pending:
                self._notice(
                    Notice(
                        "drill-fired",
                        f"DRILL fired, as the config asks: {fault.describe()}",
                        detail=fault.describe(),
                    )
                )
        group.is_closed = True
        self._group = None

    def _gone(
        self, launch: Launch, exits: tuple[WorkerExit, ...], group: WorkerGroup | None
    ) -> None:
        """Judge the attempt by the evidence it left, and post `WorkersGone`."""
        at = self._clock.now()
        self._compile_cache.finish_attempt()
        committed = self._newest(launch.plan.checkpoint_dir)
        seen = seen_of(group, exits) if group is not None else Seen()
        gone = judged(at, self._machine, launch, exits, seen, committed, self._notice, self._redact)
        self._reactor.post(gone)
