"""The machine below the supervisors: its worker groups train, fail and end, as truly happens.

Supervisors come and go, and see only what `machine.py` tells them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from json import dumps
from random import Random

from supervisor.adapters.processes.output import OutputSink
from supervisor.config.judgement import Remedy
from supervisor.diagnosis.failure import WorkerExit
from supervisor.diagnosis.success import Success
from supervisor.protocol.adjustments import SKIP_STEPS, Adjustments
from supervisor.protocol.failure_record import FailureRecord
from supervisor.protocol.messages import Message, Stage, StageMessage, StepMessage
from tests.simulation.accidents import Accidents, Death
from tests.simulation.chance import Chance
from tests.simulation.chips import Chips
from tests.simulation.devices import Devices
from tests.simulation.group import LEFTOVER, Group, Watcher
from tests.simulation.outage import Disk
from tests.simulation.scenario import Scenario
from tests.simulation.work import Work

_STRIDE = (2.0, 8.0)
"""The least and the most seconds from one step to the next. Each step is reported."""


class TrueHost(Chance):
    """Time, worker groups, and what they leave behind."""

    def __init__(self, scenario: Scenario, rng: Random, tell: Callable[[str], None]) -> None:
        super().__init__(scenario, rng, tell)
        self.watcher: Watcher | None = None
        self.groups: dict[int, Group] = {}
        self.work = Work()
        self.devices = Devices(self)
        self.chips = Chips(self)
        self.disk = Disk(
            scenario.hazards.outages, self.stream("just full"), lambda: self.clock.time
        )
        self.kept: dict[str, bytes] = {}
        """The files that workers have left, by path."""
        self.outputs: dict[str, OutputSink] = {}
        """What is kept of the workers' outputs, by path."""
        self.accidents = Accidents(self)
        self._missing = set(scenario.missing)

    def keep(self, path: str, record: FailureRecord) -> None:
        """Write the failure record of a process, unless the disk fails."""
        if self.disk.fails and not self.disk.takes_little:
            return
        self.kept[path] = dumps(asdict(record)).encode()

    # --- beginning ------------------------------------------------------------------------------

    def alive(self) -> list[Group]:
        """Return the groups that have a living process."""
        return [group for group in self.groups.values() if group.alive]

    def last_before(self, group: Group) -> Group | None:
        """Return the group that was started before `group`; None: it is the first."""
        earlier = [attempt for attempt in self.groups if attempt < group.attempt]
        return self.groups[max(earlier)] if earlier else None

    def launch(
        self,
        attempt: int,
        phase: int,
        success: Success,
        owner: Watcher,
        asked: Adjustments,
        snapshot: int | None,
        num_devices: int | None,
        units: tuple[str, ...],
    ) -> Group:
        """Start a worker group. It restores the snapshot in memory or, if that is newer, the newest
        checkpoint, and adjusts what it is asked to."""
        several = self.scenario.world_size > 1 and bool(units)
        ranks = tuple(range(len(units) if several else self.scenario.world_size))
        step = self.work.newest(phase)
        from_snapshot = snapshot is not None and (step is None or snapshot >= step)
        step = snapshot if from_snapshot else step
        adjustable = self.scenario.adjustable
        if len(asked.skip_steps) < self.scenario.max_skipped:
            adjustable = (*adjustable, SKIP_STEPS)
        group = Group(
            attempt,
            phase,
            success,
            ranks,
            owner,
            set(ranks),
            step,
            step or 0,
            asked,
            adjustable,
            num_devices,
            units,
        )
        group.from_snapshot = from_snapshot
        if self.happens(self.faults.leftover):
            group.alive.add(LEFTOVER)
        self.groups[attempt] = group
        self.later(self.between(0.0, 2 * _STRIDE[0]), lambda: self._restored(group))
        self.later(self.between(*_STRIDE), lambda: self._advance(group))
        return group

    # --- training -------------------------------------------------------------------------------

    def _restored(self, group: Group) -> None:
        if not group.dying and len(group.workers) == len(group.ranks):
            group.owner.restored(group)

    def _advance(self, group: Group) -> None:
        """Train one step, unless something happens to the group."""
        if group.stuck or group.asked or group.dying or len(group.workers) < len(group.ranks):
            return
        faults = self.faults
        if group.num_devices in self.scenario.too_small:
            self._die(group, *self.accidents.too_small_rung())
        elif self.devices.missing.intersection(group.units):
            self._die(group, *self.accidents.lost_unit(group, self.devices.missing))
        elif self.devices.wrong.intersection(group.units) and self.happens(0.5):
            self._die(group, *self.accidents.wrong_unit())
        elif (trouble := self._trouble(group)) is not None:
            self._die(group, *trouble)
        elif self.happens(faults.worker_fails):
            self._fail(group)
        elif self.happens(faults.struck):
            self._die(group, WorkerExit(self.rng.choice(group.ranks), signal="SIGKILL"), None)
        elif self.happens(faults.hangs * (1 if group.has_begun else 3)):
            self._hang(group)
        elif group.step >= self._target(group):
            self._finish(group)
        else:
            self._take_step(group)

    def _take_step(self, group: Group) -> None:
        group.step += 1
        self.work.completes(group.phase, group.step)
        message: Message = StepMessage(group.step)
        if group.step == (group.resumed_from or 0) + 1:
            message = StageMessage(Stage.TRAINING, group.step)
        if self.watcher is not None:
            self.watcher.said(group, message)
        self._change_stages(group)
        every = self.scenario.snapshot_every
        if every and group.step % every == 0 and not self.happens(self.faults.slow):
            group.owner.snapped(group, group.step)
        if group.step % self.scenario.commit_every == 0 or group.step >= self._target(group):
            if self.disk.fails:
                self._die(group, *self.accidents.disk_failure(group, is_full=self.disk.is_full))
                return
            self._commit(group)
        self.later(self.between(*_STRIDE), lambda: self._advance(group))

    def _change_stages(self, group: Group) -> None:
        for number in range(self.scenario.changes):
            stage = Stage.TRAINING if number % 2 else Stage.SAVING
            if self.watcher is not None:
                self.watcher.said(group, StageMessage(stage, group.step))

    def _trouble(self, group: Group) -> Death | None:
        """Return the end of a rank by a cause that comes again at every try; None: there is no such
        cause."""
        if max(group.adjustments.inflight, group.adjustments.accumulation) < self.scenario.need:
            return self.accidents.with_remedy(group.ranks[0], Remedy.LESS_AT_ONCE, group.step)
        if self.scenario.on_tpu and not group.has_begun and self.chips.remnants:
            return self.accidents.with_remedy(group.ranks[0], Remedy.WAIT, None)
        if group.step >= self._target(group):
            return None
        if group.step + 1 in self.scenario.bad_steps - {*group.adjustments.skip_steps}:
            return self.accidents.with_remedy(group.ranks[0], Remedy.ROLL_BACK, group.step)
        return self._missed(group) if group.step + 1 in self._missing else None

    def _missed(self, group: Group) -> Death:
        """Return the end of a rank that does not find a file. Somebody may put the file there
        before the next attempt."""
        if self.happens(0.4):
            self._missing.discard(group.step + 1)
        if self.happens(0.4):  # it saves before it dies
            self._commit(group)
        return self.accidents.missing_file(group)

    def _target(self, group: Group) -> int:
        step = group.success.step
        return self.scenario.num_steps if step is None else step

    def _hang(self, group: Group) -> None:
        self.tell(f"attempt {group.attempt} hangs")
        group.stuck = True
        group.deaf = self.happens(0.6)
        if self.watcher is not None and not group.has_begun:
            self.watcher.said(group, StageMessage(Stage.INITIALIZING))

        def somebody_kills_it() -> None:
            """End a hang that no watchdog sees, because the group never reported: a person has to
            notice it."""
            if group.workers and not group.dying:
                self._end(group, WorkerExit(group.workers[0], signal="SIGKILL"))

        self.later(max(0.0, self.scenario.benign - self.clock.time) + 1000.0, somebody_kills_it)

    def _finish(self, group: Group) -> None:
        """Let every rank exit by itself, one after the other, whether the work is done or not."""
        if self.disk.fails and group.success.file is not None:
            self._die(group, *self.accidents.disk_failure(group, is_full=self.disk.is_full))
            return
        if group.step >= self._target(group):
            group.printed = True
            group.owner.printed(group)
            self.work.files.add(group.phase)
        group.wrong = not group.printed
        code = group.success.exit_code
        spread = 20.0 if self.happens(self.faults.slow) else 0.2
        for rank in group.ranks:
            ended = WorkerExit(rank, code=code, told_to_stop=rank in group.told_to_stop)
            self._end_later(self.between(0.0, spread), group, ended)

    def _fail(self, group: Group) -> None:
        """Let a rank fail in one of many ways; the others then wait for it."""
        if self.happens(self.faults.last_commit):
            group.step = min(group.step + 1, self._target(group))
            self.work.completes(group.phase, group.step)
            group.owner.said(group, StepMessage(group.step))
            self._commit(group)
        if self.happens(self.faults.early_exit):
            self._finish(group)
            return
        rank = self.rng.choice(group.ranks)
        if self.happens(self.faults.preempted / 2):
            self.tell(f"attempt {group.attempt} rank {rank} gets a SIGTERM: all save and exit")
            group.told_to_stop.add(rank)
            group.owner.got_sigterm(group, rank)
            self._finish(group)
            return
        self._die(group, *self.accidents.any(group, rank))

    def _die(self, group: Group, ended: WorkerExit, record: FailureRecord | None) -> None:
        """Let a rank die; the others then wait for it."""
        group.stuck = group.deaf = True
        outside = ended.signal in ("SIGKILL", "SIGTERM") or ended.code in (137, 143)
        group.wrong = record is not None or not outside
        self._fall_with(group, ended.rank)
        if record is not None:
            group.owner.recorded(group, record)
            if len(group.workers) > 1 and self.happens(self.faults.slow):
                handlers = self.between(0.0, 1.0) if self.happens(0.5) else 300.0
                self._end_later(handlers, group, ended)  # jax.distributed's handlers wait long
                return
        self._end(group, ended)

    def _fall_with(self, group: Group, first: int) -> None:
        """Let peers of a dying rank fail because of it, before or after the rank itself has
        ended."""
        for rank in group.workers:
            if rank != first and self.happens(self.faults.cascade):
                death = self.accidents.peer_failure(rank)
                self.later(self.between(0.0, 3.0), partial(self._fall, group, *death))

    def _fall(self, group: Group, ended: WorkerExit, record: FailureRecord | None) -> None:
        if ended.rank in group.alive:
            if record is not None:
                group.owner.recorded(group, record)
            self._end(group, ended)

    def _commit(self, group: Group) -> None:
        phase, step, there = group.phase, group.step, self.work.committed[group.phase]
        if step == 0 or step in there or self.disk.fails:
            return
        self.tell(f"checkpoint {step} of phase {phase} is truly committed")
        if there and self.happens(self.faults.vanishes):
            gone = self.rng.choice(sorted(there))
            there.discard(gone)
            self.tell(f"checkpoint {gone} of phase {phase} vanishes")
        group.committed |= self.work.commits(phase, step)
        if self.watcher is not None:
            self.watcher.committed(group, step)

    # --- ending ---------------------------------------------------------------------------------

    def _end_later(self, delay: float, group: Group, ended: WorkerExit) -> None:
        self.later(delay, lambda: self._end(group, ended))

    def _end(self, group: Group, ended: WorkerExit) -> None:
        if ended.rank not in group.alive:
            return
        group.alive.discard(ended.rank)
        if ended.rank != LEFTOVER:
            group.exits.append(ended)
        if LEFTOVER in group.alive and not group.workers and self.happens(0.8):
            left = WorkerExit(LEFTOVER, code=0)
            self._end_later(self.between(0.0, 4.0 if self.happens(0.9) else 40.0), group, left)
        if group.did_its_work:
            self.work.done.add(group.phase)
        self.tell(f"attempt {group.attempt} rank {ended.rank} truly ends: {ended}")
        if self.scenario.on_tpu and not group.alive:
            self.chips.worker_died(group)
        if self.watcher is not None:
            self.watcher.ended(group)

    def terminate(self, group: Group) -> None:
        """Send SIGTERM from the supervisor: the group saves and exits, unless it is stuck or
        ignores it."""
        if group.asked or group.dying:
            return
        group.asked = True
        if group.deaf or self.happens(self.faults.ignores_sigterm):
            return
        for rank in group.workers:
            group.owner.got_sigterm(group, rank)
        slow = self.happens(self.faults.slow)

        def save_and_exit() -> None:
            if group.dying or len(group.workers) < len(group.ranks):
                return
            self._commit(group)
            for rank in group.ranks:
                code = self.rng.choice((group.success.exit_code, 0, 143))
                self._end(group, WorkerExit(rank, code=code))

        self.later(self.between(10.0, 40.0) if slow else self.between(0.1, 4.0), save_and_exit)

    def kill(self, group: Group) -> None:
        """Send SIGKILL to all processes of the group."""
        group.dying = True
        for process in sorted(group.alive):
            self.kill_rank(group, process)

    def kill_rank(self, group: Group, rank: int) -> None:
        """Send SIGKILL to one process of the group. It dies, but perhaps late, as if it waited for
        a disk."""
        if rank in group.killed:
            return
        group.killed.add(rank)
        group.stuck = group.deaf = True
        slow = self.happens(self.faults.slow)
        delay = self.between(0.0, 30.0) if slow else self.between(0.0, 0.05)
        self._end_later(delay, group, WorkerExit(rank, signal="SIGKILL"))

    def end_leftover(self, group: Group) -> None:
        """Send SIGTERM to what the workers left behind: it ends soon, or ignores the signal."""
        if not self.happens(self.faults.ignores_sigterm):
            self._end_later(self.between(0.0, 2.0), group, WorkerExit(LEFTOVER, code=0))

    def lose_power(self) -> None:
        """Let the machine die, and with it every process."""
        for group in self.alive():
            group.alive.clear()
            group.dying = True
        self.clock.boot()
