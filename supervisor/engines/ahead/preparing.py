"""Prepares a fast next start while an attempt runs.

Standbys come first, then what another rung needs: a probe process that waits, and prefetched
compilations. These processes belong to no attempt, and must never delay one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from supervisor.config import gpus
from supervisor.engines.ahead.prefetching import Prefetcher
from supervisor.engines.ahead.standby_pool import (
    IMPORTS_NEED,
    StandbyPool,
    UsedStandby,
    choose,
    why_no_standby,
)
from supervisor.engines.group import WorkerGroup
from supervisor.engines.host_port import Host, MainLoop
from supervisor.engines.launch import Launch, Start
from supervisor.engines.probing.device_probe import DeviceProbe
from supervisor.host.notice import Notice, Tell
from supervisor.ports import Clock
from supervisor.protocol import environment

_PROBE_NEEDS = 1 << 30
"""Bytes of memory that must be free to start a waiting probe process; it takes a tenth of them."""


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
        standby_log: str,
    ) -> None:
        """`warn` tells people of problems, `tell` of normal things; `redact` removes secrets from
        texts about failures. `standby_log` is the name of the file with the standbys' output."""
        self._clock = clock
        self._machine = machine
        self._warn = warn
        self._probe = probe
        self._standby_log = standby_log
        self._standbys = StandbyPool(reactor, machine, warn, tell, redact)
        self._prefetcher = Prefetcher(reactor, clock, machine, warn, tell, redact)

    @property
    def pids(self) -> tuple[int, ...]:
        """The pids of these processes, which belong to no attempt."""
        return (*self._standbys.pids, *self._probe.pids, *self._prefetcher.pids)

    def look(self, group: WorkerGroup) -> None:
        """Prepare what is missing, if the attempt has recovered and is not about to end."""
        is_ending = group.exits or group.asked_to_stop
        if not is_ending and group.has_recovered(self._clock.now()):
            self._standbys.resume()
            self._prepare_standbys(group)
            if not self._standbys.are_at_work:
                self._prepare_probe(group)
                self._prefetcher.look(group.launch, group.speaker.start)

    def take(self, phase: str, start: Start, descriptors: Mapping[str, int]) -> UsedStandby | None:
        """Turn a standby into the worker `start`: see `StandbyPool.take`."""
        return self._standbys.take(phase, start, descriptors)

    @property
    def has_standby(self) -> bool:
        """Whether a standby is ready."""
        return self._standbys.has_ready

    def renew(self) -> None:
        """Kill all standbys, and prepare new ones as if none had failed."""
        self._standbys.renew()

    def pause(self) -> None:
        """Stop the background work, because the attempt is about to end. It goes on when the next
        attempt has recovered."""
        self._standbys.pause()
        self._prefetcher.pause()

    def _prepare_standbys(self, group: WorkerGroup) -> None:
        """Start missing standbys, one for each worker of the next attempt."""
        worker = group.speaker
        platform = group.launch.plan.platform or group.platform
        self.prepare_standbys(group.launch, worker.start, platform, worker.process.pid)

    def knows_modules(self, launch: Launch) -> bool:
        """Whether the modules are known that a standby should import."""
        is_known = not launch.plan.bootstrap or launch.plan.preload is not None
        return is_known or self._machine.exists(launch.modules_file, launch.model_dir)

    def prepare_standbys(
        self, launch: Launch, start: Start, platform: str | None, worker: int | None = None
    ) -> None:
        """Start missing standbys, one for each rank that `launch` starts here, if it is known what
        they should import. They can become workers like `start`. `worker` is the pid of such a
        worker; None: none runs here."""
        plan = launch.plan
        if plan.standby == "off" or (plan.is_command and not plan.bootstrap):
            return
        missing = self._standbys.missing(plan.name, len(launch.ranks))
        if not missing or not self.knows_modules(launch):
            return
        if (why := why_no_standby(plan.argv, plan.env)) is not None:
            self._standbys.give_up(plan.name, why)
            return
        extra = {}
        if plan.bootstrap and plan.preload is not None:
            extra[environment.PRELOAD] = ",".join(plan.preload)
        elif plan.bootstrap:
            extra[environment.MODULES_FILE] = str(launch.modules_file)
        mode = choose(
            plan.standby,
            platform=platform,
            can_warm_up=not plan.is_command and plan.workers == 1,
            worker_memory=self._machine.resident(worker) if worker is not None else 0,
            free_memory=self._machine.available_memory() // missing,
            gpu_share=gpus.memory_share(start.env),
        )
        if mode is None:
            self._standbys.give_up(
                plan.name, f"there is not enough free memory ({IMPORTS_NEED >> 30} GiB is needed)"
            )
            return
        output = launch.directory.parent / self._standby_log
        for _ in range(missing):
            self._standbys.prepare(plan.name, start, mode, extra, output)

    def _prepare_probe(self, group: WorkerGroup) -> None:
        """Start a waiting probe process, if the job can run on fewer devices."""
        plan = group.launch.plan
        is_wanted = plan.prefetch or plan.standby != "off"
        needs_one = len(plan.rungs) > 1 and plan.units and is_wanted
        if not needs_one or self._probe.pids or self._machine.available_memory() < _PROBE_NEEDS:
            return
        try:
            self._probe.prepare(plan)
        except OSError as error:
            self._warn(
                Notice(
                    "prober-failed",
                    f"cannot start the waiting probe process: {error}; the next probe takes longer",
                    reason=str(error),
                )
            )
