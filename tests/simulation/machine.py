"""The simulated machine, as the engine of one supervisor uses it: see `engines.host_port.Host`.

`true_host.py` decides what the workers do. This module turns that into bytes in pipes, files and
exits of processes, which the real engine reads, and turns the engine's signals into what happens to
the workers.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from errno import EAGAIN, ENOENT
from json import loads
from signal import SIGKILL, SIGTERM, Signals

from supervisor.core.decisions import KillWorkers, StartWorkers
from supervisor.core.policy import RestartPolicy
from supervisor.diagnosis.failure import WorkerExit
from supervisor.host.tree import Stat
from supervisor.protocol import environment
from supervisor.protocol.adjustments import Adjustments
from supervisor.protocol.failure_record import FailureRecord
from supervisor.protocol.messages import (
    AdjustableMessage,
    Message,
    RestoredMessage,
    SavedMessage,
    SigtermMessage,
    StageMessage,
    StepMessage,
    encode,
)
from supervisor.protocol.simulated import HOST
from tests.simulation.chance import ViolationError
from tests.simulation.channels import SimulatedChannels
from tests.simulation.compiles import Compile, Compiles, Program
from tests.simulation.files import SimulatedFiles
from tests.simulation.group import LEFTOVER, Group
from tests.simulation.guard import SimulatedGuard
from tests.simulation.kernel import SimulatedKernel
from tests.simulation.pipes import (
    ConnectionEnds,
    OutputEnds,
    ProgressEnds,
    Snapshot,
    SnapshotEnds,
)
from tests.simulation.processes import Probe, Process, Standby
from tests.simulation.true_host import TrueHost

_GIBIBYTE = 1 << 30


class SimulatedMachine(SimulatedKernel, SimulatedChannels, SimulatedFiles):
    """Implements `engines.host_port.Host`; and `group.Watcher`, which is told what truly
    happens."""

    def __init__(
        self,
        host: TrueHost,
        policy: RestartPolicy,
        effect: Callable[[str], None],
        check: Callable[[Group], None],
    ) -> None:
        """`effect` may end the supervisor; `check` is called with each group that begins."""
        SimulatedKernel.__init__(self)
        SimulatedChannels.__init__(self, host)
        self.compiles = Compiles(host.stream("compiles"), host.accidents)
        self.guard = SimulatedGuard(self, next(self._numbers))
        self.snapshots: dict[int, Snapshot | None] = {}
        """The snapshot that each attempt found in memory when it began."""
        self.phase = 0
        """The phase of the attempt that was started or killed last."""
        self.units: tuple[str, ...] = ()
        """The units that it must be placed on; empty: any."""
        self.by_right: set[int] = set()
        """The pids that had a chip open when the attempt began: the engine must not wait for
        those."""
        self.freed: dict[int, float] = {}
        """When the last process of each attempt was gone, after the attempt was killed."""
        self._attempt = 0
        """The attempt that was started or killed last."""
        self._policy = policy
        self._effect = effect
        self._check = check
        self._pids = itertools.count(1000 * (1 + len(host.groups)))
        self._by_pidfd: dict[int, Process] = {}
        self._waiting: defaultdict[int, list[Process]] = defaultdict(list)
        """Workers of an attempt that wait until the others are started."""

    # --- for the simulation -----------------------------------------------------------------------

    @property
    def is_gone(self) -> bool:
        """Whether the supervisor has ended."""
        return self.host.watcher is not self

    def die(self) -> None:
        """End the supervisor: its own processes end with it."""
        self.host.watcher = None
        for process in self._processes:
            if process.group is None:
                process.end(WorkerExit(0, signal="SIGKILL"))

    def expect(self, decision: StartWorkers | KillWorkers) -> None:
        """Note the decision that the engine is about to carry out."""
        self.phase, self._attempt = decision.phase, decision.attempt
        self.units = decision.units if isinstance(decision, StartWorkers) else ()
        if isinstance(decision, StartWorkers):
            self.by_right = {holder.pid for holder in self.host.chips.holders}

    def can_be_read(self, descriptor: int) -> bool:
        """Whether the main loop has something to do for this descriptor."""
        if descriptor == self.guard.pidfd:
            return self.guard.is_dead
        if (process := self._by_pidfd.get(descriptor)) is not None:
            return not process.lives
        end = self._ends[descriptor]
        assert isinstance(end, ProgressEnds | ConnectionEnds)
        return end.can_be_read

    def unread(self, attempt: int, until: float) -> bool:
        """Whether a living worker of the attempt had sent something by the time `until` that is
        still unread."""
        return any(
            when <= until
            for process in self._processes
            if process.group is not None and process.group.attempt == attempt and process.lives
            for end in process.held
            if isinstance(end, ProgressEnds)
            for when, _ in end.written
        )

    def _own(self, group: Group) -> bool:
        return group.owner is self and not self.is_gone

    def _workers(self, group: Group) -> list[Process]:
        return [each for each in self._processes if each.group is group and each.rank != LEFTOVER]

    def _worker(self, group: Group, rank: int) -> Process:
        return next(each for each in self._workers(group) if each.rank == rank)

    # --- what happens (`group.Watcher`) -----------------------------------------------------------

    def ended(self, group: Group) -> None:
        """A process of the group ended."""
        if group.owner is self:
            known = {one.rank: one for one in group.exits}
            for process in self._processes:
                if process.group is group and process.rank not in group.alive:
                    process.end(known.get(process.rank, WorkerExit(LEFTOVER, code=0)))

    def said(self, group: Group, message: Message) -> None:
        """A worker of the group sent a message."""
        self._say(group, group.ranks[0], message)
        if isinstance(message, StepMessage | StageMessage) and message.step is not None:
            group.told_step = message.step

    def _say(self, group: Group, rank: int, message: Message) -> None:
        process = self._worker(group, rank)
        if self._own(group) and process.lives:
            for end in process.held:
                if isinstance(end, ProgressEnds):
                    end.written.append((self.host.clock.now(), encode(message)))

    def got_sigterm(self, group: Group, rank: int) -> None:
        """A rank of the group got a SIGTERM, from anybody."""
        self._say(group, rank, SigtermMessage())

    def recorded(self, group: Group, record: FailureRecord) -> None:
        """A rank of the group left a failure record."""
        group.recorded.add(record.rank)
        path = self._worker(group, record.rank).env[environment.FAILURE_FILE]
        self.host.keep(path, record)

    def printed(self, group: Group) -> None:
        """The group printed that its work is done."""
        for process in self._workers(group):
            for end in process.held:
                if isinstance(end, OutputEnds):
                    end.write(b"all is done\n")

    def committed(self, group: Group, step: int) -> None:
        """A checkpoint of the group was committed."""
        self.said(group, SavedMessage(step, self.host.between(0.5, 20.0)))

    def restored(self, group: Group) -> None:
        """The group has its state; it clears the snapshots if it did not resume from one."""
        if self._own(group):
            if not group.from_snapshot:
                for memory in self._memories(group):
                    memory.empty()
            self.said(group, RestoredMessage(group.resumed_from, group.from_snapshot))

    def snapped(self, group: Group, step: int) -> None:
        """The group took a snapshot."""
        if self._own(group):
            for memory in self._memories(group):
                memory.content = Snapshot(group.phase, group.attempt, step)

    def _memories(self, group: Group) -> list[SnapshotEnds]:
        held = [end for process in self._workers(group) for end in process.held]
        return [end for end in held if isinstance(end, SnapshotEnds)]

    # --- processes --------------------------------------------------------------------------------

    def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        output: int,
        inherit: Sequence[int] = (),
    ) -> Process:
        """See `Processes`."""
        self._effect("before a process is started")
        self.guard.begin_to_start(argv[0])
        if self.host.happens(self.host.faults.launch_fails):
            number = ENOENT if self.host.happens(self.host.faults.fatal) else EAGAIN
            raise OSError(number, "the launch fails", argv[0])
        kind = Process
        if environment.STANDBY in env:
            kind = Standby
        elif "trainer.probe" in argv:
            kind = Probe
        elif "trainer.prefetch" in argv:
            kind = Compile
        pid, pidfd = next(self._pids), next(self._numbers)
        process = kind(self, pid, pidfd, env, (output, *inherit))
        self._by_pidfd[pidfd] = process
        self._processes.append(process)
        if isinstance(process, Standby | Probe):
            process.begin()
        elif isinstance(process, Compile):
            self._compile(process)
        else:
            self.becomes_worker(process, env)
        self._effect("after a process was started")
        return process

    def _compile(self, process: Compile) -> None:
        group = self.host.groups[max(self.host.groups)]
        process.begin(Program.of(self.phase, process.env), self.compiles)
        own = group if group.owner is self else None
        self.compiles.begins(process, own, self._policy.phases[self.phase].rungs)

    def becomes_worker(self, process: Process, env: Mapping[str, str]) -> None:
        """Make a process a worker. Once all workers of its group are there, the group begins."""
        identity = environment.WorkerIdentity.from_environment(env)
        assert identity is not None
        process.rank = identity.rank
        workers = self._waiting[identity.attempt]
        workers.append(process)
        if len(workers) < identity.world_size:
            return
        memories = [end for end in process.held if isinstance(end, SnapshotEnds)]
        for memory in memories:
            memory.phases.add(self.phase)
            if len(memory.phases) > 1:
                raise ViolationError(f"memory for snapshots is lent to phases {memory.phases}")
        found = memories[0].content if memories else None
        is_known = bool(self.host.devices.units)
        units = _units(workers) if is_known else ()
        asked = Adjustments.from_environment(env)
        attempt, step = identity.attempt, found.step if found is not None else None
        rung = identity.num_devices if is_known else None
        success = self._policy.phases[self.phase].success
        group = self.host.launch(attempt, self.phase, success, self, asked, step, rung, units)
        assert len(group.ranks) == identity.world_size
        self.snapshots[attempt] = found
        for worker in workers:
            worker.group = group
        if LEFTOVER in group.alive:
            self._leave(group, process)
        self._check(group)
        if group.from_snapshot:  # it belongs to this attempt from now on
            for memory in self._memories(group):
                assert memory.content is not None
                memory.content = replace(memory.content, attempt=attempt)
        self.said(group, AdjustableMessage(group.adjustable))

    def _leave(self, group: Group, parent: Process) -> None:
        """Start a process that may outlive its parent, with all that the parent has open."""
        child = Process(self, next(self._pids), next(self._numbers), {}, ())
        child.group, child.rank = group, LEFTOVER
        for end in parent.held:
            end.inherited(child)
            child.held.append(end)
        self._processes.append(child)

    def signalled(self, process: Process, number: Signals) -> None:
        """Pass a signal for a worker on to the host."""
        assert process.group is not None
        if number == SIGTERM:
            self.host.terminate(process.group)
        elif number == SIGKILL:
            self.host.kill_rank(process.group, process.rank)

    def kill(self, spared: Collection[int] = ()) -> bool:
        """See `Processes`."""
        self._effect("before what is left is killed")
        if self.guard.is_dead:
            return not self._is_free(is_left=self.guard.bury())
        for group in self.host.alive():
            self.host.kill(group)
        for process in self._processes:
            if process.group is None and process.lives and process.pid not in spared:
                if isinstance(process, Standby) and process.is_waiting:
                    raise ViolationError("a standby is killed with the attempt")
                if isinstance(process, Compile) and not process.is_dying:
                    raise ViolationError("a compile is killed with the attempt")
                process.signal(SIGKILL)
        own = (each for each in self._processes if each.lives and each.pid not in spared)
        return not self._is_free(is_left=bool(self.host.alive()) or any(own))

    def _is_free(self, *, is_left: bool) -> bool:
        if not is_left:
            self.freed.setdefault(self._attempt, self.host.clock.time)
        return not is_left

    pause = 0.05

    def give_up_early(self) -> None:
        """See `Processes`."""

    def give_up_early_on_idle(self) -> None:
        """See `Processes`."""

    def refresh(self) -> None:
        """See `Processes`."""

    def losses(self) -> Callable[[], int]:
        """See `Processes`."""
        return self.guard.losses()

    def orphans(self) -> list[tuple[int, Stat]] | None:
        """See `Processes`."""
        if self.guard.is_dead:
            return []
        if self.host.happens(self.host.faults.late):
            return None
        return [
            (each.pid, Stat("S", 1, each.pid, each.pid))
            for each in self._processes
            if each.rank == LEFTOVER and each.lives and each.group and not each.group.workers
        ]

    def orphan_exit(self, pid: int) -> int | None:
        """See `Processes`."""
        return None

    def exit_info(self, pid: int, seen: Stat) -> None:
        """See `Processes`."""

    def is_shell(self, pid: int) -> bool:
        """See `Processes`."""
        return False

    def words_left(self, group: Group, rank: int) -> bool:
        """Whether something that a rank had sent is still unread."""
        ends = self._worker(group, rank).held
        return any(end.written for end in ends if isinstance(end, ProgressEnds))

    def left_behind(self, group: Group) -> set[int]:
        """Return the pids of the processes that live although their parents have ended."""
        mine = (each for each in self._processes if each.group is group and each.rank == LEFTOVER)
        return {each.pid for each in mine if each.lives and not group.workers}


def _units(workers: Sequence[Process]) -> tuple[str, ...]:
    """Return the units that the workers of a group were told to run on."""
    given = [loads(each.env[environment.SIMULATED_DEVICES])["units"] for each in workers]
    are_hosts = given[0][0].startswith(HOST)
    return tuple(each[0] for each in given) if are_hosts else tuple(given[0])
