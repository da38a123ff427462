"""The real world of one supervisor on the simulated machine. Each decision is checked against the
truth before it is carried out."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from supervisor.adapters.stores.space import RoomMakingStorage, Space
from supervisor.config.command import SuccessConfig
from supervisor.config.plan import PhasePlan
from supervisor.core.decisions import (
    NEEDS_DURABLE_JOURNAL,
    BeginPhase,
    Decision,
    DumpStacks,
    FinishJob,
    KillWorkers,
    StartWorkers,
    Wait,
)
from supervisor.core.events import Event, Noticed, RungCompileFailed, WorkersGone, WorkersObserved
from supervisor.core.policy import RestartPolicy
from supervisor.core.state import JobState
from supervisor.diagnosis.failure import Survivor
from supervisor.diagnosis.rules.rule import GUARD_LOST
from supervisor.engines.local import LocalEngine
from supervisor.engines.probing.device_probe import DeviceProbe
from supervisor.files.attempts import attempt_folder
from supervisor.files.segments import JOURNAL
from supervisor.model_dir_ownership import Ownership
from supervisor.prepare import Prepared
from supervisor.world import LocalWorld, newest_in
from tests.simulation.chance import ViolationError
from tests.simulation.disk import FakeStorage
from tests.simulation.group import Group
from tests.simulation.loop import FaultyLoop
from tests.simulation.machine import SimulatedMachine
from tests.simulation.outage import SimulatedSpace
from tests.simulation.scenario import Scenario
from tests.simulation.true_host import TrueHost

_MODEL_DIR = Path("/nowhere")
_PATIENCE = 29.99
"""Seconds to wait for a chip that is open (30, less what rounding takes off)."""


class CheckedWorld:
    """See `ports.World`."""

    def __init__(
        self,
        host: TrueHost,
        storage: FakeStorage,
        scenario: Scenario,
        policy: RestartPolicy,
        effect: Callable[[str], None],
        tell: Callable[[str], None],
        give_up: float,
    ) -> None:
        """The job must have ended by the (virtual) time `give_up`."""
        self.state: Callable[[], JobState] = JobState
        """Returns the runtime's state, against which decisions are checked."""
        self.machine = SimulatedMachine(host, policy, effect, self._check_group)
        host.watcher = self.machine
        self.loop = FaultyLoop(host, self.machine, give_up, tell, self._check_event)
        self.machine.guard.keep(self.loop)
        self._host = host
        self._storage = storage
        self._policy = policy
        self._effect = effect
        self._late: dict[int, tuple[Survivor, ...]] = {}
        """What should have ended with the workers of each attempt."""
        self._gone: set[int] = set()
        """The attempts that the engine has said to be gone."""
        self._started: StartWorkers | None = None
        self._was_full = False
        """Whether the last attempt failed because the disk was full."""
        self._silent: set[int] = set()
        """The attempts that were called silent."""
        clock, machine, loop = host.clock, self.machine, self.loop
        probe = DeviceProbe(loop, clock, machine, {})
        engine = LocalEngine(loop, clock, machine, {}, None, _NoCache(), probe)
        prepared = self._prepared = _prepared(scenario, policy)
        params = [{"trainer": {"phase": n}} for n in range(len(policy.phases))]
        owner = Ownership(check=lambda: None)
        self.space = SimulatedSpace(host.disk, self._over, tell)
        space = cast(Space, self.space)
        self.storage = RoomMakingStorage(storage, space)
        kept = self.storage, clock, loop, engine, space, owner
        self._world = LocalWorld("0" * 12, "0" * 12, prepared, params, *kept, machine)

    def newest(self, phase: int) -> int | None:
        """See `world.newest_in`."""
        return newest_in(self.machine, self._prepared, phase)

    def _over(self) -> list[int]:
        """Return the attempts that are over."""
        return [attempt for attempt, group in self._host.groups.items() if not group.alive]

    def wait(self, until: float | None) -> Sequence[Event]:
        """See `ports.World`."""
        self._effect("while the supervisor waits")
        return self._world.wait(until)

    def carry_out(self, decision: Decision) -> None:
        """See `ports.World`."""
        if isinstance(decision, NEEDS_DURABLE_JOURNAL):
            self._check_durable(decision)
        self._effect(f"before {type(decision).__name__} is carried out")
        match decision:
            case BeginPhase(phase):
                self._host.work.done.discard(phase)
            case StartWorkers():
                self._check_start(decision)
                self._check_units(decision)
                self._started = decision
                self.machine.expect(decision)
            case DumpStacks(attempt):
                self._silent.add(attempt)
            case KillWorkers():
                self._check_exits(decision)
                self._late.setdefault(decision.attempt, decision.survivors)
                self.machine.expect(decision)
        self._world.carry_out(decision)
        if isinstance(decision, StartWorkers):
            self._check_room()
        if isinstance(decision, Wait) and decision.device_is_busy:
            self._check_chip_holder_named()
        self._effect(f"after {type(decision).__name__} was carried out")

    # --- what must be so --------------------------------------------------------------------------

    def _check_durable(self, decision: BeginPhase | StartWorkers | FinishJob) -> None:
        name = type(decision).__name__
        data = self._storage.content.get(JOURNAL, b"")
        if self._storage.durable.get(JOURNAL, 0) < len(data):
            raise ViolationError(f"{name} is carried out although the journal is not durable")
        last = json.loads(data.splitlines()[-1]).get("decisions", []) if data else []
        if not any(told["kind"] == name and told["reason"] == decision.reason for told in last):
            raise ViolationError(f"{name} is carried out although the journal does not tell of it")

    def _check_start(self, start: StartWorkers) -> None:
        attempt, phase = start.attempt, start.phase
        if alive := self._host.alive():
            others = [group.attempt for group in alive]
            raise ViolationError(f"attempt {attempt} starts although {others} still live")
        if attempt <= max(self._host.groups, default=0):
            raise ViolationError(f"attempt {attempt} starts again")
        for earlier in range(phase):
            if not self._host.work.is_done(earlier, self._policy.phases[earlier].success):
                raise ViolationError(f"phase {phase} starts although phase {earlier} is not done")
        self.machine.compiles.check_none_is_in_the_way()
        if start.directory not in self._storage.content:
            raise ViolationError(f"attempt {attempt} has no directory")

    def _check_chip_holder_named(self) -> None:
        told = [event.text for event in self.loop.told if isinstance(event, Noticed)]
        if any(str(each) not in map(str, told) for each in self._host.chips.in_the_way):
            raise ViolationError("it waits for a device, and does not tell who has it")

    def _check_room(self) -> None:
        if self._was_full and self._host.disk.is_full and self.space.has_old_output:
            raise ViolationError("it starts again on a full disk, and makes no room")

    def _check_units(self, start: StartWorkers) -> None:
        """Check that a start uses a rung of the ladder, the right number of units, and none in
        quarantine."""
        phase, state = self._policy.phases[start.phase], self.state()
        if start.num_devices is None:
            return
        size = start.num_devices * len(phase.units) // phase.rungs[0]
        known = set(phase.units) - {entry.unit for entry in state.quarantine.entries}
        if start.num_devices not in phase.rungs or len({*start.units} & known) != size:
            raise ViolationError(f"attempt {start.attempt} runs on {start.units}")
        if any(each.num_devices == start.num_devices for each in state.ladder.struck):
            raise ViolationError(f"attempt {start.attempt} runs on a rung that is struck")

    def _check_group(self, group: Group) -> None:
        assert self._started is not None
        folder = self._started.directory
        for name in (f"{folder}/{attempt_folder(group.attempt)}", f"{folder}/params.yaml"):
            if name not in self._storage.content:
                raise ViolationError(f"attempt {group.attempt} runs without {name}")
        if self.machine.units and group.units != self.machine.units:
            raise ViolationError(f"attempt {group.attempt} runs on {group.units}")
        self._check_snapshot(group)

    def _check_event(self, event: Event) -> None:
        """Check that what the engine says of its own attempt is what truly happened."""
        if isinstance(event, Noticed) and "until it is closed" in event.text:
            self._check_chip_wait(event.text)
        if isinstance(event, RungCompileFailed):
            self.machine.compiles.check_told(event)
        if not isinstance(event, WorkersObserved | WorkersGone):
            return
        group = self._host.groups.get(event.attempt)
        if group is None or group.owner is not self.machine:
            return
        if isinstance(event, WorkersObserved):
            told = {each.pid for each in event.survivors}
            is_known = len(event.exits) == len(group.ranks) and not self.machine.guard.is_dead
            if is_known and told != self.machine.left_behind(group):
                raise ViolationError(f"told to live on: {told}")
            if any(self.machine.words_left(group, one.rank) for one in event.exits):
                raise ViolationError("an exit is told before the last words are read")
            stopped = {one.rank for one in event.exits if one.told_to_stop}
            if not stopped <= group.told_to_stop:
                raise ViolationError(f"told of a foreign SIGTERM: {stopped}")
        elif event.attempt not in self._gone:  # after that, only the attempt's files are known
            self._gone.add(event.attempt)
            self._check_group_gone(event, group)

    def _check_chip_wait(self, told: str) -> None:
        by_right = self.machine.by_right if self._started is not None else ()
        if any(f"pid {pid} " in told for pid in by_right):
            raise ViolationError(f"it waits for who has a chip by right: {told}")

    def _check_chips_closed(self, attempt: int) -> None:
        """Check that no attempt is over while what it left has a chip open, unless that takes too
        long."""
        left = set(self._host.chips.remnants) - self.machine.by_right
        waited = self._host.clock.time - self.machine.freed[attempt]
        if self._host.scenario.on_tpu and left and waited < _PATIENCE:
            raise ViolationError(f"it goes on after {waited:.1f} s although a chip is open: {left}")

    def _check_group_gone(self, event: WorkersGone, group: Group) -> None:
        self._check_chips_closed(event.attempt)
        if group.alive:
            raise ViolationError(f"told to be gone: {group.alive} live")
        if event.step != group.told_step:
            raise ViolationError(f"the last step told is {group.told_step}, not {event.step}")
        self._was_full = event.failure is not None and event.failure.cause == "disk full"
        if event.failure is None:
            return
        away = self._host.disk.is_away  # then nobody knows what is on the disk
        if group.did_its_work and not away and not self._late.get(event.attempt):
            raise ViolationError(f"a failure, although all is done: {event.failure.root_cause}")
        own = [one for one in group.exits if one.rank not in group.killed]
        failed = any(one.code != group.success.exit_code for one in own)
        known = {one.rank for one in own}
        # A supervisor that did not run meanwhile cannot tell a SIGKILL before the guard's end from
        # those that came with it: then the guard is blamed, and no rank.
        alike = all(one.signal == "SIGKILL" for one in own) and not group.recorded
        by_guard = event.failure.rule == GUARD_LOST and group.guard_died and alike
        if failed and not by_guard and event.failure.rank not in known | group.recorded:
            raise ViolationError(f"rank {event.failure.rank} is blamed, which was killed")
        blamed, lost = event.failure.rule == GUARD_LOST, group.lost_guard
        is_wrong = not group.guard_died if blamed else lost and not (own or group.recorded)
        if is_wrong:  # killed unseen before the guard, it may have died with the guard
            raise ViolationError(f"lost with its guard: {lost}, but told: {event.failure.rule}")

    def _check_snapshot(self, group: Group) -> None:
        """Check a snapshot that is used against the design's rules and what truly happened."""
        found, last = self.machine.snapshots[group.attempt], self._host.last_before(group)
        if not group.from_snapshot:
            return
        if found is None or last is None or last.owner is not self.machine:
            raise ViolationError("a snapshot outlives its supervisor")
        if (found.attempt, found.phase) != (last.attempt, group.phase):
            raise ViolationError("a snapshot is of a history that is over")
        if last.wrong and last.attempt not in self._silent:
            raise ViolationError("a snapshot is used after more than a kill, hang or preemption")
        if last.from_snapshot and not last.committed:
            raise ViolationError("a second attempt resumes from memory without a new checkpoint")
        if found.step < (self._host.work.newest(group.phase) or 0):
            raise ViolationError("a snapshot is used although a checkpoint is newer")

    def _check_exits(self, kill: KillWorkers) -> None:
        group = self._host.groups.get(kill.attempt)
        truly = {(one.rank, one.code, one.signal) for one in group.exits} if group else set()
        if not {(one.rank, one.code, one.signal) for one in kill.exits} <= truly:
            raise ViolationError(f"attempt {kill.attempt} did not end as it is said to have")


def _prepared(scenario: Scenario, policy: RestartPolicy) -> Prepared:
    """Return the job as the config would have made it."""
    phases = range(len(policy.phases))
    return Prepared(
        job=cast(Any, _Job()),
        plans=tuple(_plan(scenario, policy, phase) for phase in phases),
        policy=policy,
        ladders=(),
        rules=tuple(scenario.rules for _ in phases),
    )


def _plan(scenario: Scenario, policy: RestartPolicy, phase: int) -> PhasePlan:
    limits = policy.phases[phase]
    workers = scenario.world_size
    full = limits.rungs[0] if limits.rungs else 2 * workers
    return PhasePlan(
        name=limits.name,
        argv=("train", "{params}"),
        env={},
        model_dir=_MODEL_DIR,
        checkpoint_dir=_MODEL_DIR / "checkpoints" / str(phase),
        params={},
        success=SuccessConfig(),
        success_is_default=False,
        is_command=False,
        progress_pattern=None,
        bootstrap=False,
        num_devices=full,
        global_batch=None,
        max_steps=None,
        faults=(),
        platform="tpu" if scenario.on_tpu else "cpu",
        standby=scenario.standby,
        rungs=limits.rungs,
        prefetch=scenario.hazards.prefetches,
        units=limits.units,
        snapshots=scenario.snapshot_every is not None,
        workers=workers,
    )


@dataclass(frozen=True, slots=True)
class _Job:
    model_dir: Path = _MODEL_DIR


class _NoCache:
    """See `host_port.Compilations`: nothing is cached."""

    def environment(self, given: object) -> dict[str, str]:
        """See `host_port.Compilations`."""
        return {}

    def take_over(self) -> None:
        """See `host_port.Compilations`."""

    def finish_attempt(self) -> None:
        """See `host_port.Compilations`."""
