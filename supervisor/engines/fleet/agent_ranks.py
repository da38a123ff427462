"""The ranks of one host, as its agent starts and ends them: by the engine of one host.

That engine judges nothing here: how an attempt ended is kept as evidence, and the leader judges it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from supervisor.adapters.kernel.reactor import Reactor
from supervisor.adapters.processes.guard_client import GuardClient
from supervisor.config.plan import PhasePlan
from supervisor.core.events import WorkersGone
from supervisor.diagnosis.failure import RankEvidence, WorkerExit
from supervisor.engines.fleet.agent_host import AgentHost
from supervisor.engines.host_port import HostFiles
from supervisor.engines.judging import Seen, evidence_of_ranks
from supervisor.engines.launch import Launch
from supervisor.engines.local import LocalEngine
from supervisor.engines.probing.device_probe import DeviceProbe
from supervisor.host.notice import Tell
from supervisor.ports import Clock
from supervisor.protocol import environment, simulated


class Ranks(Protocol):
    """Starts and ends the ranks of this host. It answers as an `Engine` does, by events."""

    evidence: Sequence[RankEvidence]
    """How the ranks ended of the attempt that is gone, in the order in which they did."""
    seen: Seen
    """What was seen of them as a group."""

    def start(self, launch: Launch, newest: int | None, cache: Mapping[str, str]) -> None:
        """Start the ranks; `newest` is the newest committed step, `cache` the variables of the
        compilation cache."""
        ...

    def prepare(self, launch: Launch, newest: int | None, cache: Mapping[str, str]) -> bool:
        """Prepare a standby for the ranks of `launch`, which run elsewhere; see `start`. Returns
        False if that cannot be done yet."""
        ...

    @property
    def has_standby(self) -> bool:
        """Whether a standby is ready."""
        ...

    def renew_standbys(self) -> None:
        """Kill all standbys. New ones are prepared as if none had failed."""
        ...

    def kill(self, launch: Launch) -> None:
        """See `Engine.kill`."""
        ...

    def terminate(self, attempt: int, *, interrupt: bool = False) -> None:
        """See `Engine.terminate`."""
        ...

    def dump_stacks(self, attempt: int) -> None:
        """See `Engine.dump_stacks`."""
        ...

    def probe(self, plan: PhasePlan, number: int) -> None:
        """See `Engine.probe`: all devices of this host."""
        ...

    def name_holders(self) -> None:
        """See `Engine.name_holders`."""
        ...


_WAS_AWAY = "they are older than the last attempt, of which this host had no rank"
"""Why an attempt must not resume from the snapshots in memory: the other hosts may have some of the
same step that another attempt has taken."""


class _TheirCache:
    """Implements `host_port.Compilations` with what the leader says."""

    def __init__(self) -> None:
        self.variables: Mapping[str, str] = {}

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """See `host_port.Compilations`."""
        return dict(self.variables)

    def take_over(self) -> None:
        """See `host_port.Compilations`. The leader does it."""

    def finish_attempt(self) -> None:
        """See `host_port.Compilations`. The leader does it."""


class LocalRanks:
    """Implements `Ranks` with processes."""

    def __init__(
        self,
        reactor: Reactor,
        clock: Clock,
        guard: GuardClient,
        environ: Mapping[str, str],
        launch: Launch,
    ) -> None:
        """`launch` says of which job and model_dir all ranks are."""
        self.evidence: Sequence[RankEvidence] = ()
        self.seen = Seen()
        self._cache = _TheirCache()
        inherited = environment.without_supervisor_variables(environ)
        marks = {environment.JOB: launch.job, environment.LINEAGE: launch.lineage}
        self._host = AgentHost(guard, launch.model_dir / simulated.FILE)
        self._attempt = 0
        """The last attempt of which ranks were started here; 0: none."""
        self._program: tuple[object, ...] | None = None
        """What the standbys are prepared for."""
        self._probe = probe = DeviceProbe(reactor, clock, self._host, {**inherited, **marks})
        self._engine = LocalEngine(
            reactor,
            clock,
            self._host,
            inherited,
            None,
            self._cache,
            probe,
            judge=self._collect,
            standby_log=f"standby-{socket.gethostname()}.log",
        )

    def start(self, launch: Launch, newest: int | None, cache: Mapping[str, str]) -> None:
        """See `Ranks`."""
        self._host.speaks, self.evidence = 0 in launch.ranks, ()
        self._probe.stop()  # the leader did not wait for its answer
        self._note(launch, newest, cache)
        if launch.attempt != self._attempt + 1 and not launch.distrust:
            launch = replace(launch, distrust=_WAS_AWAY)
        self._attempt = launch.attempt
        self._engine.start(launch)

    def prepare(self, launch: Launch, newest: int | None, cache: Mapping[str, str]) -> bool:
        """See `Ranks`."""
        self._note(launch, newest, cache)
        return self._engine.prepare_standby(launch)

    @property
    def has_standby(self) -> bool:
        """See `Ranks`."""
        return self._engine.has_standby

    def renew_standbys(self) -> None:
        """See `Ranks`."""
        self._engine.renew_standbys()

    def kill(self, launch: Launch) -> None:
        """See `Ranks`."""
        self._engine.kill(launch, ())

    def terminate(self, attempt: int, *, interrupt: bool = False) -> None:
        """See `Ranks`."""
        self._engine.terminate(attempt, interrupt=interrupt)

    def dump_stacks(self, attempt: int) -> None:
        """See `Ranks`."""
        self._engine.dump_stacks(attempt)

    def probe(self, plan: PhasePlan, number: int) -> None:
        """See `Ranks`."""
        self._engine.probe(plan, number, None)

    def name_holders(self) -> None:
        """See `Ranks`."""
        self._engine.name_holders()

    def _note(self, launch: Launch, newest: int | None, cache: Mapping[str, str]) -> None:
        """Take over what the leader says of an attempt. A standby of another program ends: of an
        earlier phase, or of the config of an earlier leader."""
        plan = launch.plan
        program = (plan.name, plan.argv, plan.env, plan.params, plan.preload, plan.standby)
        if self._program not in (None, program):
            self._engine.renew_standbys()
        self._program = program
        self._host.newest, self._cache.variables = newest, cache

    def _collect(
        self,
        at: float,
        files: HostFiles,
        launch: Launch,
        exits: Sequence[WorkerExit],
        seen: Seen,
        committed: int | None,
        tell: Tell,
        redact: Callable[[str], str],
    ) -> WorkersGone:
        """Keep the evidence of an attempt's end, in place of judging it."""
        self.evidence = tuple(evidence_of_ranks(files, launch, exits, seen, tell))
        self.seen = seen
        return WorkersGone(at, launch.attempt, None, None, None, None)
