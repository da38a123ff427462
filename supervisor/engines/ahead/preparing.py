"""What makes the next start a quick one, done while an attempt is on its way.

Its standbys first, then what another rung needs: a process that can look at the devices, and
compiled steps. All of it belongs to no attempt, and none of it must ever keep one waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from supervisor.config import gpus
from supervisor.engines.ahead.prefetching import Prefetcher
from supervisor.engines.ahead.standby_pool import StandbyPool, Taken, choose, why_never
from supervisor.engines.group import WorkerGroup
from supervisor.engines.host_port import Host, MainLoop
from supervisor.engines.launch import Start
from supervisor.engines.probing.device_probe import DeviceProbe
from supervisor.host.notice import Notice, Tell
from supervisor.ports import Clock
from supervisor.protocol import environment

_PROBE_TAKES = 1 << 30
"""Bytes that must be left for a process that waits to look at devices; it takes a tenth of them."""


class Preparations:
    """The standbys, the waiting probe and the prefetched compiles of a job."""

    def __init__(
        self,
        reactor: MainLoop,
        clock: Clock,
        machine: Host,
        probe: DeviceProbe,
        warn: Tell,
        tell: Tell,
        redact: Callable[[str], str],
    ) -> None:
        """`warn` a person of what is not as it should be, `tell` what is; `redact` takes the
        secrets out of what is told of a failure."""
        self._clock = clock
        self._machine = machine
        self._warn = warn
        self._probe = probe
        self._standbys = StandbyPool(reactor, machine, warn, tell, redact)
        self._prefetcher = Prefetcher(reactor, clock, machine, warn, tell, redact)

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that are of no attempt."""
        return (*self._standbys.pids, *self._probe.pids, *self._prefetcher.pids)

    def look(self, group: WorkerGroup) -> None:
        """Go on with what is missing, if the attempt has recovered and is not about to end."""
        is_ending = group.exits or group.asked_to_stop
        if not is_ending and group.has_recovered(self._clock.now()):
            self._standbys.release()
            self._prepare_standbys(group)
            if not self._standbys.are_at_work:
                self._prepare_probe(group)
                self._prefetcher.look(group.launch, group.speaker.start)

    def take(self, phase: str, start: Start, descriptors: Mapping[str, int]) -> Taken | None:
        """Make a standby the worker `start`; see `StandbyPool.take`."""
        return self._standbys.take(phase, start, descriptors)

    def yield_cpu(self) -> None:
        """The attempt is about to end: what competes with that, and with the recovery, waits until
        the next attempt has recovered."""
        self._standbys.hold()
        self._prefetcher.hold()

    def _prepare_standbys(self, group: WorkerGroup) -> None:
        """Have a standby of each worker for what comes after this attempt."""
        launch, plan, worker = group.launch, group.launch.plan, group.speaker
        if plan.standby == "off" or (plan.is_command and not plan.bootstrap):
            return
        missing = self._standbys.missing(plan.name, launch.world_size)
        if not missing or not group.modules_are_known:
            return
        if (why := why_never(plan.argv, plan.env)) is not None:
            self._standbys.give_up(plan.name, why)
            return
        extra = {}
        if plan.bootstrap and plan.preload is not None:
            extra[environment.PRELOAD] = ",".join(plan.preload)
        elif plan.bootstrap:
            extra[environment.MODULES_FILE] = str(launch.modules_file)
        mode = choose(
            plan.standby,
            platform=plan.platform or group.platform,
            knows_how=not plan.is_command and plan.workers == 1,
            held=self._machine.resident(worker.process.pid),
            available=self._machine.available_memory() // missing,
            gpu_share=gpus.share(worker.start.env),
        )
        if mode is None:
            self._standbys.give_up(plan.name, "there is not enough memory for one")
            return
        output = launch.directory.parent / "standby.log"
        for _ in range(missing):
            self._standbys.prepare(plan.name, worker.start, mode, extra, output)

    def _prepare_probe(self, group: WorkerGroup) -> None:
        """Have a process wait that can look at the devices, if the job can do with fewer."""
        plan = group.launch.plan
        is_wanted = plan.prefetch or plan.standby != "off"
        needs_one = len(plan.rungs) > 1 and plan.units and is_wanted
        if not needs_one or self._probe.pids or self._machine.available_memory() < _PROBE_TAKES:
            return
        try:
            self._probe.prepare(plan)
        except OSError as error:
            self._warn(
                Notice(
                    "prober-failed",
                    f"nothing waits to look at the devices: {error}",
                    reason=str(error),
                )
            )
