"""What an attempt is started from, and what its workers are told by it: command line, environment
and files.

Nothing is started here; of the outside only the records of faults are looked at.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from supervisor.config import placeholders
from supervisor.config.plan import PhasePlan
from supervisor.diagnosis.rules import Rule
from supervisor.diagnosis.success import Success
from supervisor.engines.python_program import bootstrapped
from supervisor.protocol import environment
from supervisor.protocol.adjustments import Adjustments
from supervisor.protocol.environment import Owner, WorkerIdentity
from supervisor.protocol.fault_injection import InjectedFault

_HOST = "host"


@dataclass(frozen=True, slots=True)
class Start:
    """How a worker is started."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Launch:
    """What an attempt of a phase is started from. Paths are absolute."""

    job: str
    lineage: str
    attempt: int
    phase: int
    plan: PhasePlan
    success: Success
    rules: tuple[Rule, ...]
    model_dir: Path
    directory: Path
    """The attempt's own directory."""
    params: Path
    """The phase's resolved config."""
    adjustments: Adjustments = field(default_factory=Adjustments)
    distrust: str = ""
    """Why it must not resume from the snapshots in memory; empty: it may."""
    num_devices: int | None = None
    """The rung; None: what the config says."""
    owner: Owner | None = None
    """Whose workers they are; None: nobody else can own model_dir."""
    units: tuple[str, ...] = ()
    """What the rung is placed on: devices, or hosts where the phase has several workers, each of
    which stands for a host of its own. Empty: all of them, or those that are found."""

    @property
    def devices(self) -> int | None:
        """How many devices the attempt has; None: as many as are found."""
        return self.plan.num_devices if self.num_devices is None else self.num_devices

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host of each worker, where there are several; a single one has no such name."""
        if self.plan.workers == 1:
            return ()
        assert self.devices is not None, "several workers have devices to share out"
        number = self.devices // self.plan.devices_per_worker
        return self.units or tuple(f"{_HOST}{index}" for index in range(number))

    @property
    def world_size(self) -> int:
        """How many workers the attempt has."""
        return len(self.hosts) or 1

    @property
    def is_placed(self) -> bool:
        """Whether it is for us to say which devices a worker sees: all of them it finds itself."""
        is_part = bool(self.units) and self.units != self.plan.units
        return is_part or self.plan.workers > 1

    def device_ids(self, rank: int) -> tuple[str, ...]:
        """The devices of a worker; none: as many as it finds."""
        if self.plan.workers == 1:
            return self.units or tuple(map(str, range(self.devices or 0)))
        size = self.plan.devices_per_worker
        first = int(self.hosts[rank].removeprefix(_HOST)) * size
        return tuple(map(str, range(first, first + size)))

    def file(self, rank: int, name: str) -> Path:
        """Where something of one rank's is kept."""
        return self.directory / f"rank{rank}.{name}"

    @property
    def modules_file(self) -> Path:
        """Where the bootstrap writes which modules the program has imported."""
        return self.file(0, "modules.json")

    def values(self, newest: int | None) -> dict[str, str]:
        """What the placeholders stand for; `newest` is the newest committed step."""
        devices, batch = self.devices, self.plan.global_batch
        return {
            "model_dir": str(self.plan.place),
            "num_devices": str(devices or ""),
            "per_device_batch": str(batch // devices) if batch and devices else "",
            "attempt": str(self.attempt),
            "resume_step": str(newest or 0),
            "params": str(self.params),
        }

    def command_line(self, values: Mapping[str, str]) -> tuple[list[str], str | None]:
        """The command line of every worker. The second value says why a Python program is to run
        without the bootstrap that it should have; None: there is nothing to say."""
        argv = [placeholders.expand(text, values) for text in self.plan.argv]
        return bootstrapped(argv) if self.plan.bootstrap else (argv, None)

    def inherited(self, environ: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
        """The environment that a program of this phase has: from `environ`, over that from its
        `env_file` and `env_secrets`, over that from the config itself."""
        whole = environment.PLACED if self.plan.platform == "tpu" else environment.STALE_TOPOLOGY
        stale = whole if self.is_placed else ()
        kept = {name: value for name, value in environ.items() if name not in stale}
        given = self.plan.env.items()
        return {
            **kept,
            **self.plan.secrets,
            **{name: placeholders.expand(text, values) for name, text in given},
        }

    def told(self, rank: int, faults: Sequence[InjectedFault]) -> dict[str, str]:
        """What one worker is told by the worker protocol; of `faults`, those that are its own."""
        plan = self.plan
        identity = WorkerIdentity(
            self.job, self.attempt, rank, self.world_size, self.devices, self.lineage
        )
        env = {
            **identity.to_environment(),
            **self.adjustments.to_environment(),
            **(self.owner.to_environment() if self.owner is not None else {}),
            environment.FAILURE_FILE: str(self.file(rank, "failure.json")),
            environment.EXECUTABLES: str(self.model_dir / "compile_cache" / "executables"),
            environment.STACKS_FILE: str(self.file(rank, "stacks.txt")),
        }
        if given := [asdict(fault) for fault in faults if fault.rank == rank]:
            records = str(self._fault_records)
            env[environment.FAULTS] = json.dumps({"faults": given, "records": records})
        if plan.bootstrap and rank == 0:  # the others import the same
            env[environment.MODULES_FILE] = str(self.modules_file)
        if plan.progress_pattern is not None:
            env[environment.STEPS_FROM_OUTPUT] = "1"
        return env

    def pending_faults(self) -> list[InjectedFault]:
        """The faults of the phase that have not fired yet in this job."""
        faults = [
            InjectedFault(id=f"{self.plan.name}-{index}", **fault.model_dump())
            for index, fault in enumerate(self.plan.faults)
        ]
        return [fault for fault in faults if not (self._fault_records / fault.id).exists()]

    @property
    def _fault_records(self) -> Path:
        return self.model_dir / "drills"
