"""Runs worker groups as processes on this host.

It starts, signals and kills, and posts the results as events. `launch` describes an attempt to
start, `starting` starts a worker, `group` is the live worker group, `ahead` prepares for the next
attempt, and `judging` judges the end.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from supervisor.config import placeholders
from supervisor.config.named_program import with_shell_words
from supervisor.config.plan import PhasePlan
from supervisor.core.events import (
    CheckpointCommitted,
    CheckpointsFound,
    DevicesProbed,
    LaunchCancelled,
    LaunchFailed,
    Noticed,
    WorkersIdle,
    WorkersObserved,
    WorkersStarted,
)
from supervisor.core.settling import Settling
from supervisor.core.trained import trained_to
from supervisor.diagnosis.failure import Failure, Survivor, WorkerExit
from supervisor.diagnosis.verdicts import launch_failure
from supervisor.engines.ahead.preparing import Preparations
from supervisor.engines.checkpoint_search import Wanted
from supervisor.engines.clearing import Clearing, Releasing
from supervisor.engines.group import Member, WorkerGroup
from supervisor.engines.handles import BegunAgain, Finder, FoundPlace, Memory, Watch
from supervisor.engines.hearing import Hearing
from supervisor.engines.host_port import Compilations, Host, MainLoop
from supervisor.engines.judging import Judge, Seen, judged, redacted, seen_of, with_torn_step
from supervisor.engines.launch import Launch, Start
from supervisor.engines.manifest_keeping import ManifestKeeping
from supervisor.engines.newest_step import newest_told, steps_left
from supervisor.engines.pattern_warning import UnmatchedPatternWarning
from supervisor.engines.probing.device_probe import DeviceProbe
from supervisor.engines.probing.units import ProbeAnswer
from supervisor.engines.python_program import has_bootstrap
from supervisor.engines.snapshot_keeper import SnapshotKeeper
from supervisor.engines.stack_dumps import StackDumps
from supervisor.engines.starting import WorkerStarter
from supervisor.engines.step_recognition import StepRecognition
from supervisor.engines.survivors import SurvivorWatch
from supervisor.engines.verified_start import VerifiedStart
from supervisor.engines.worker_environment import placement_variables, ports_needed
from supervisor.host.notice import Notice
from supervisor.ports import Clock
from supervisor.protocol.epochs import SavedStep
from supervisor.protocol.fault_injection import InjectedFault

_OBSERVE_INTERVAL = 5.0
_DRAIN_OUTPUT = 5.0
"""Seconds to read the rest of all workers' output, for which the main loop blocks."""
_LONG_IDLE = 300.0
"""Seconds without output, reports or CPU time after which people are told."""
_LOOKS_AFTER_FAILURE = 6
"""Looks, `_OBSERVE_INTERVAL` apart, at a lone program that has failed and still lives, after which
people are told."""
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
        judge: Judge = judged,
        standby_log: str = "standby.log",
        elsewhere_until: float = 0.0,
    ) -> None:
        """`environ` is what workers inherit; rank 0's output also goes to `mirror`, if given.
        `judge` makes the event of an attempt's end, and `standby_log` is the name of the file with
        the standbys' output.

        `redact` removes secrets from texts about failures. `phases_with_steps` are the phases in
        which steps were reported before. Until the time `elsewhere_until`, what an earlier
        supervisor has started may live on other hosts.
        """
        self._reactor = reactor
        self._clock = clock
        self._machine = machine
        self._compile_cache = compile_cache
        self._probe = probe
        self._redact = redact
        self._environ = environ
        self._judge = judge
        self._elsewhere_until = elsewhere_until
        self._group: WorkerGroup | None = None
        self._killing = Clearing(reactor, machine)
        self._stack_dumps = StackDumps(machine, reactor, clock, self._notice, redact)
        self._begun_again: set[int] = set()
        """The phases in which it was told that the program begins again at each start."""
        self._releasing = Releasing(reactor, clock, machine.chip_holders, self._notice, redact)
        self._pattern_warning = UnmatchedPatternWarning(self._notice, redact, phases_with_steps)
        self._snapshots = SnapshotKeeper(machine, self._notice, self._mention)
        self._ahead = Preparations(
            reactor, clock, machine, probe, self._notice, self._mention, redact, standby_log
        )
        self._verified = VerifiedStart(reactor, clock, machine, self._notice, self._mention)
        self._manifests = ManifestKeeping(reactor, clock, machine, environ, self._notice)
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
            self._mention,
            StepRecognition(self._mention, redact),
        )

    @property
    def directory(self) -> Path | None:
        """The directory of the running attempt; None: no attempt runs."""
        return self._group.launch.directory if self._group is not None else None

    def start(self, launch: Launch) -> None:
        """Start the attempt's workers. Answered by `WorkersStarted` or `LaunchFailed`."""
        began = self._clock.now()
        self._verified.before(
            launch, partial(self._start, launch, began), partial(self._refused, launch)
        )

    def _start(self, launch: Launch, began: float) -> None:
        """Start the workers of an attempt whose start began at the time `began`."""
        self._manifests.begin(launch)
        if launch.plan.platform == "tpu":
            self._releasing.note_earlier_holders()
        machine = self._machine
        finder = self._finder(launch)
        group = WorkerGroup(
            launch,
            machine,
            finder if finder is not None else self._watcher(launch),
            machine.oom_kills(),
            machine.losses(),
            launch.pending_faults(),
            Settling(began),
            finder,
        )
        self._survivors = SurvivorWatch(
            group,
            self._reactor,
            self._clock,
            self._redact,
            self._mention,
            lambda survivors: self._tell_survivors(group, survivors),
        )
        self._group = group
        group.committed = newest = newest_told(machine, launch.plan, self._notice)
        if newest is not None:
            group.first_seen[newest] = began
        argv, env = self._starter.program(launch, newest)
        memories = self._snapshot_memories(launch, newest)
        try:
            ports = machine.free_ports(ports_needed(launch))
            for index, rank in enumerate(launch.ranks):
                start = _start_of(launch, rank, ports, argv, env, group.faults)
                self._begin(group, start, memories[index] if memories else None)
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

    def prepare_standby(self, launch: Launch) -> bool:
        """Prepare standbys for the ranks of `launch`, an attempt that runs on other machines. They
        are then used like those of an attempt that runs here. What snapshots in memory there are
        is freed.

        Returns False if it is not known yet what they should import, or workers run here.
        """
        if self._group is not None or not self._ahead.knows_modules(launch):
            return False
        self._snapshots.give_back()
        newest = newest_told(self._machine, launch.plan, self._notice)
        argv, env = self._starter.program(launch, newest)
        try:
            ports = self._machine.free_ports(ports_needed(launch))
            start = _start_of(launch, launch.ranks[0], ports, argv, env, ())
        except (OSError, ValueError) as error:
            told = f"no standby is prepared for attempt {launch.attempt}: {error}"
            self._notice(Notice("standby-failed", self._redact(told), reason=str(error)))
            return True
        self._ahead.prepare_standbys(launch, start, launch.plan.platform)
        return True

    @property
    def has_standby(self) -> bool:
        """Whether a standby is ready."""
        return self._ahead.has_standby

    def renew_standbys(self) -> None:
        """Kill all standbys. New ones are prepared as if none had failed."""
        self._ahead.renew()

    def probe(
        self,
        plan: PhasePlan,
        number: int,
        units: tuple[str, ...] | None,
        left_out: tuple[str, ...] = (),
    ) -> None:
        """See `engine.Engine`. There are no others here that could take a place."""

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
            self._stack_dumps.begin(worker, group.launch)

    def name_holders(self) -> None:
        """Tell people who or what keeps an accelerator busy."""
        for told in self._machine.describe_device_holders(self._redact):
            self._notice(told)

    def pass_on_sigterm(self) -> None:
        """Send SIGTERM to the workers while the main loop hangs. Safe in any thread."""
        group = self._group
        for worker in tuple(group.workers) if group is not None else ():
            worker.process.signal(signal.SIGTERM)

    def cancel_launch(self, attempt: int) -> None:
        """Start no worker of the attempt, if its checkpoint is still being verified."""
        if self._verified.cancel(attempt):
            self._reactor.post(LaunchCancelled(self._clock.now(), attempt))

    def terminate(self, attempt: int, *, interrupt: bool = False) -> None:
        """Ask the attempt's workers and their survivors to save and exit."""
        if self._group is not None and self._group.launch.attempt == attempt:
            self._stack_dumps.end()
            self._group.asked_to_stop = True
            self._ahead.pause()
            self._survivors.terminate(interrupt=interrupt)

    def kill(
        self, launch: Launch, exits: tuple[WorkerExit, ...], late: tuple[Survivor, ...] = ()
    ) -> None:
        """Kill all that is left of the attempt. Answered by `WorkersGone` once nothing is left.

        `exits` is used only for an attempt that an earlier supervisor started: it is all that is
        known of its end. If a process of `late` still runs that may do the work, the attempt has
        failed.

        Raises:
            UnkillableError: a process does not die.
        """
        group = self._group
        self._verified.cancel()
        if group is not None and group.launch.attempt != launch.attempt:
            group = None
        if group is not None and group.num_ended_before_kill is None:
            group.note_late(late)
            self._survivors.tell_unasked()
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

        def kill() -> bool:
            lives_elsewhere = group is None and self._clock.now() < self._elsewhere_until
            return self._kill(group) or lives_elsewhere

        self._killing.kill_until_gone(kill, released)

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

    def _refused(self, launch: Launch, failure: Failure) -> None:
        """Post that the workers were not started, because of the `failure`."""
        told = redacted(failure, self._redact)
        self._reactor.post(LaunchFailed(self._clock.now(), launch.attempt, told))

    def _launch_failed(
        self, group: WorkerGroup, error: OSError | ValueError, argv: tuple[str, ...]
    ) -> None:
        """Post that not all workers could be started; those that were started are gone."""
        self._close(group)
        failure = redacted(launch_failure(error, argv), self._redact)
        self._reactor.post(LaunchFailed(self._clock.now(), group.launch.attempt, failure))

    def _snapshot_memories(self, launch: Launch, newest: int | None) -> Sequence[Memory]:
        """Returns the snapshot memory of each rank that is started here; empty: there are none."""
        if not launch.plan.snapshots:
            return ()
        return self._snapshots.lend(launch.phase, len(launch.ranks), launch.distrust, newest)

    def _watcher(self, launch: Launch) -> Watch:
        place, own = launch.plan.checkpoint_dir, launch.plan.own_layout
        return self._machine.watch_checkpoints(
            place,
            partial(self._writers_of, launch),
            partial(self._committed, launch),
            partial(self._committed_lower, launch),
            self._notice,
            own,
        )

    def _writers_of(self, launch: Launch) -> tuple[int, ...]:
        """Returns the pids of the attempt's processes that may still write steps which nothing
        commits: our trainer never does. Safe in any thread."""
        group = self._group
        if group is None or group.launch is not launch or not launch.plan.is_command:
            return ()
        return self._survivors.writers()

    def _finder(self, launch: Launch) -> Finder | None:
        """Returns a finder of the checkpoint directory; None: the plan has it."""
        plan, known = launch.plan, launch.plan.checkpoint_dir
        if not (plan.finds_checkpoints and isinstance(known, Path)):
            return None
        values = launch.values(None)
        wanted = Wanted(
            known=known,
            model_dir=launch.model_dir,
            argv=with_shell_words([placeholders.expand(text, values) for text in plan.argv]),
            env=launch.inherited(self._environ, values),
            own=plan.env,
            is_bootstrapped=has_bootstrap(launch.command_line(values)[0]),
            layout=plan.own_layout,
            writers=partial(self._writers_of, launch),
            pids=partial(self._pids_of, launch),
        )

        def found(place: FoundPlace) -> None:
            now, directory = self._clock.now(), str(place.directory)
            self._manifests.found(place.directory)
            event = CheckpointsFound(now, launch.phase, directory, place.kinds, place.is_resumed)
            self._reactor.post(event)
            if place.again is not None:
                self._tell_begun_again(launch, directory, place.again)
            for number, step in enumerate(place.steps, 1):
                self._committed(launch, step, new=number == len(place.steps))

        return self._machine.find_checkpoints(
            wanted,
            found,
            self._tell_other_places,
            partial(self._committed, launch),
            partial(self._committed_lower, launch),
            self._notice,
        )

    def _tell_begun_again(self, launch: Launch, directory: str, again: BegunAgain) -> None:
        """Tell, once a phase, that a program with a new folder for each start restores nothing."""
        if launch.phase in self._begun_again:
            return
        self._begun_again.add(launch.phase)
        text = (
            f"attempt {launch.attempt} has committed step {again.step} in {directory}, though step "
            f"{again.newest} is committed in {again.last}: the program makes a new folder at each "
            "start, and has restored an older checkpoint, or none. What to do: it can restore only "
            "what it is told, so give it a fixed folder (an argument of its own), and have it "
            "restore from there"
        )
        self._notice(
            Notice(
                "not-resumed",
                text,
                attempt=launch.attempt,
                step=again.step,
                newest_committed_step=again.newest,
            )
        )

    def _tell_other_places(self, directory: Path, others: Mapping[Path, int]) -> None:
        places = [f"{path} (step {step})" for path, step in sorted(others.items())]
        text = (
            f"checkpoints are committed in {' and '.join(places)} too: only those in {directory} "
            "are progress and prove success. If the program restores from another folder, name "
            "that one: --set trainer.init.checkpoint.directory=FOLDER"
        )
        place = ", ".join(map(str, sorted(others)))
        self._mention(Notice("checkpoints-elsewhere", text, place=place))

    def _committed(self, launch: Launch, step: SavedStep, *, new: bool = False) -> None:
        group, now = self._group, self._clock.now()
        if group is not None and group.launch is launch:
            group.note_commit(step.number, now)
        self._reactor.post(CheckpointCommitted(now, launch.phase, step.number, new, step.epochs))

    def _committed_lower(self, launch: Launch, step: SavedStep) -> None:
        """Post a step below the newest one; our trainer never begins below what is there."""
        if launch.plan.is_command:
            self._committed(launch, step, new=True)

    def _pids_of(self, launch: Launch) -> tuple[int, ...]:
        """Returns the pids of the attempt's live workers. Safe in any thread."""
        group = self._group
        if group is None or group.launch is not launch:
            return ()
        return tuple(each.process.pid for each in (*group.workers,) if each.exit is None)

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
            self._tell_idleness(group)
            self._tell_unended(group)
            self._ahead.look(group)
            self._manifests.look(group.launch)
            self._reactor.call_later(_OBSERVE_INTERVAL, lambda: self._look_again(group))

    def _tell_idleness(self, group: WorkerGroup) -> None:
        """Post for how long the workers have done nothing: to the core if a step can complete
        their work, else to people, who may know that it is done."""
        now, before = self._clock.now(), group.idleness.seconds
        idle = group.look_for_idleness(now)
        if idle and group.launch.success.step is not None:
            launch, finder = group.launch, group.finder
            found = finder.found if finder is not None else None
            plan = launch.plan
            if finder is not None and found is not None:
                plan = plan.saving_in(str(found), finder.kinds)
            trained = self._trained(group, plan, group.newest)
            stage = group.speaker.stage
            self._reactor.post(WorkersIdle(now, launch.attempt, idle, stage, trained))
        elif before < _LONG_IDLE <= idle:
            self._notice(_idle_notice(idle))

    def _tell_unended(self, group: WorkerGroup) -> None:
        """Tell people once of a program that has failed and whose process does not end. Where it is
        one of several, it is killed: see `_end_those_that_failed`."""
        if len(group.workers) == 1 and group.has_left_failure_record(group.speaker):
            group.looks_after_failure += 1
            if group.looks_after_failure == _LOOKS_AFTER_FAILURE:
                self._notice(_unended_notice(group.speaker))

    def _trained(self, group: WorkerGroup, plan: PhasePlan, committed: int | None) -> bool | None:
        """Returns what `WorkersGone.trained` means."""
        target, at = group.launch.success.step, group.stepped_at
        if not plan.is_command or target is None or committed is None or committed < target:
            return None
        try:
            place, own = plan.checkpoint_dir, plan.own_layout
            ago = self._machine.seconds_since_commit(place, own, committed)
        except OSError:  # it is told where the newest step is looked for
            return None
        heard_after = None
        if ago is not None and at is not None:
            last = self._clock.now() - ago
            heard_after = at - min(last, group.first_seen.get(committed, last))
        return trained_to(committed, group.saved, group.step, heard_after)

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

    # --- ending -----------------------------------------------------------------------------

    def _kill(self, group: WorkerGroup | None) -> bool:
        """Kill all processes of the job except those that belong to no attempt: the `pids` of
        `Preparations` and `ManifestKeeping`. Returns True while any is left."""
        self._ahead.pause()
        self._probe.stop()
        spared = (*self._ahead.pids, *self._manifests.pids)
        return self._machine.kill(spared) or not (group is None or group.all_have_ended())

    def _close(self, group: WorkerGroup) -> None:
        """Read what is left in the pipes of the dead workers, and close everything."""
        group.watcher.stop()
        self._survivors.close()
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
            self._hearing.ended_well(group)
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
        all_exited = len(exits) == len(launch.ranks) and all(ended.clean for ended in exits)
        closed = self._survivors.have_closed_all() if group is not None else all_exited
        closed = closed and launch.plan.is_command
        plan = self._plan_at_the_end(launch, group, closed=closed)
        if group is not None and launch.plan.is_command:
            self._tell_lower_steps(launch, group, closed=closed)
        left = steps_left(self._machine, plan, self._notice, closed=closed, all_exited=all_exited)
        committed = left.committed
        seen = seen_of(group, exits) if group is not None else Seen()
        if (
            group is not None
            and group.late_are_helpers
            and committed not in (None, group.committed)
        ):
            seen = replace(seen, survivors=())  # the workers themselves have saved new steps
        judge = self._judge
        gone = judge(at, self._machine, launch, exits, seen, committed, self._notice, self._redact)
        trained = self._trained(group, plan, committed) if group is not None else None
        gone = with_torn_step(gone, left.torn)
        self._reactor.post(replace(gone, unproven=left.unproven, trained=trained))

    def _tell_lower_steps(self, launch: Launch, group: WorkerGroup, *, closed: bool) -> None:
        """Post what the attempt committed last below the newest step, which comes first. `closed`:
        see `HostFiles.newest_checkpoint`."""
        with suppress(OSError):  # it is told where the newest step is looked for
            for number, step in enumerate(group.watcher.last_lower(closed=closed)):
                self._committed(launch, step, new=number > 0)

    def _plan_at_the_end(
        self, launch: Launch, group: WorkerGroup | None, *, closed: bool
    ) -> PhasePlan:
        """Returns the plan of an attempt that is over, with the checkpoint directory that was
        found, if one was. `closed`: see `HostFiles.newest_checkpoint`."""
        if group is None or group.finder is None:
            return launch.plan
        try:
            found = group.finder.last_look(closed=closed)
        except TimeoutError as error:
            place = str(launch.plan.checkpoint_dir)
            told = f"the checkpoints of attempt {launch.attempt} were not looked for: {error}"
            self._notice(Notice("checkpoints-unwatched", told, place=place, reason=str(error)))
            return launch.plan
        if found is None:
            return launch.plan
        return launch.plan.saving_in(str(found), group.finder.kinds)


def _start_of(
    launch: Launch,
    rank: int,
    ports: Sequence[int],
    argv: tuple[str, ...],
    env: Mapping[str, str],
    faults: Sequence[InjectedFault],
) -> Start:
    """Returns what a rank is started with.

    Raises:
        OSError, ValueError: see `placement_variables`.
    """
    place = placement_variables(launch, rank, ports, env)
    return Start(argv, {**env, **place, **launch.protocol_variables(rank, faults)})


def _unended_notice(worker: Member) -> Notice:
    text = (
        f"rank {worker.rank} has failed, as its output says, but its process does not end: threads "
        "or child processes that are no daemons keep it. It is left alone, because they may save. "
        f"To have the job go on, `kill -9 {worker.process.pid}` on its host. For the next time, "
        "make them daemons (daemon=True), or give progress.pattern: then a hang is noticed"
    )
    return Notice("rank-not-ended", text, rank=worker.rank)


def _idle_notice(idle: float) -> Notice:
    text = (
        f"the program has printed nothing, reported nothing and used next to no CPU time for "
        f"{idle:.0f} s: it waits for something, hangs, or is done and does not exit. It is left "
        "alone: with success.step (--success-step) a program that is done would be ended, and with "
        "progress.pattern one that hangs"
    )
    return Notice("workers-idle", text, seconds=idle)
