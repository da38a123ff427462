"""The description of an attempt to start: command line, environment and files of its workers.

This module starts nothing, and reads nothing but the records of faults that have fired.
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
from supervisor.engines.python_script import with_interpreter
from supervisor.protocol import environment, metrics_file, save_request
from supervisor.protocol.adjustments import Adjustments
from supervisor.protocol.environment import Owner, WorkerIdentity
from supervisor.protocol.failure_history import FailureHistory
from supervisor.protocol.fault_injection import InjectedFault

_HOST = "host"


@dataclass(frozen=True, slots=True)
class Start:
    """The command line and environment of a worker."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Part:
    """The part of an attempt that one of several machines runs."""

    ranks: tuple[int, ...]
    coordinator: str
    """Address and port at which the ranks of all machines meet."""
    num_slices: int = 1
    """Number of TPU slices that the attempt runs on."""
    slice_number: int = 0
    """Which of them this machine is in."""
    slices_port: int = 0
    """The port at which several slices meet, at the address of `coordinator`."""


@dataclass(frozen=True, slots=True)
class Launch:
    """All that is needed to start an attempt of a phase. Paths are absolute."""

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
    failures: FailureHistory = field(default_factory=FailureHistory)
    """How often the job has failed so far."""
    distrust: str = ""
    """Why it must not resume from the snapshots in memory; empty: it may."""
    num_devices: int | None = None
    """The rung, as a number of devices; None: the config decides."""
    owner: Owner | None = None
    """The supervisor that owns model_dir; None: there is neither lock nor lease."""
    units: tuple[str, ...] = ()
    """The units of the rung: devices, or hosts if the phase has several workers (each worker stands
    for one host). Empty: all units, or as many as the program finds."""
    part: Part | None = None
    """The ranks that are started here; None: all of them."""

    @property
    def devices(self) -> int | None:
        """The number of devices of the attempt; None: as many as are found."""
        return self.plan.num_devices if self.num_devices is None else self.num_devices

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host of each worker if there are several workers, else empty."""
        if not self._has_hosts:
            return ()
        if self.units:
            return self.units
        number = self.plan.num_hosts
        if self.devices is not None:
            number = self.devices // self.plan.devices_per_worker
        return tuple(f"{_HOST}{index}" for index in range(number))

    def unit_of(self, rank: int, device: int) -> str | None:
        """Returns the unit of the device at place `device` in the process of `rank`; None: nobody
        knows. On TPU nothing documents which chip that is (`engines.probing.host_parts`)."""
        if hosts := self.hosts:
            return hosts[rank] if rank < len(hosts) else None
        units = self.units or self.plan.units
        is_known = self.plan.platform in ("cpu", "gpu") and device < len(units)
        return units[device] if is_known else None

    @property
    def _has_hosts(self) -> bool:
        """Whether each worker stands for a host."""
        return self.plan.workers > 1 or self.plan.num_hosts > 0

    @property
    def has_whole_hosts(self) -> bool:
        """Whether each worker has all devices of a machine of its own."""
        return self.part is not None and self._has_hosts

    @property
    def world_size(self) -> int:
        """How many workers the attempt has."""
        return len(self.hosts) or 1

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that are started here."""
        return self.part.ranks if self.part is not None else tuple(range(self.world_size))

    @property
    def needs_placement(self) -> bool:
        """Whether we must tell a worker which devices to use. A single worker finds all of them
        itself."""
        is_part = bool(self.units) and self.units != self.plan.units
        return is_part or self._has_hosts

    def device_ids(self, rank: int) -> tuple[str, ...]:
        """Returns the device ids of a worker; empty: as many as it finds."""
        if not self._has_hosts:
            return self.units or tuple(map(str, range(self.devices or 0)))
        size = self.plan.devices_per_worker
        if self.part is not None:  # every machine numbers its own devices
            return tuple(map(str, range(size)))
        first = int(self.hosts[rank].removeprefix(_HOST)) * size
        return tuple(map(str, range(first, first + size)))

    def file(self, rank: int, name: str) -> Path:
        """Returns the path of a file of one rank, in the attempt's directory."""
        return self.directory / f"rank{rank}.{name}"

    @property
    def modules_file(self) -> Path:
        """The file to which the bootstrap writes the modules that the program has imported."""
        return self.file(0, "modules.json")

    def values(self, newest: int | None) -> dict[str, str]:
        """Returns the values of the placeholders; `newest` is the newest committed step."""
        devices, batch = self.devices, self.plan.global_batch
        return {
            "model_dir": str(self.plan.model_dir),
            "num_devices": str(devices or ""),
            "per_device_batch": str(batch // devices) if batch and devices else "",
            "attempt": str(self.attempt),
            "resume_step": str(newest or 0),
            "params": str(self.params),
        }

    def command_line(self, values: Mapping[str, str]) -> tuple[list[str], str | None]:
        """Returns the command line of every worker, and why the bootstrap was left out (None: it
        was not, or was not asked for)."""
        argv = [placeholders.expand(text, values) for text in self.plan.argv]
        return bootstrapped(with_interpreter(argv)) if self.plan.bootstrap else (argv, None)

    def inherited(self, environ: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
        """Returns the environment of a program of this phase.

        Later ones win: `environ`, then `env_file` and `env_secrets`, then `env` of the config.
        """
        is_part_of_host = self.plan.platform == "tpu" and not self.has_whole_hosts
        all_that_tells = environment.ALL_TOPOLOGY if is_part_of_host else environment.STALE_TOPOLOGY
        stale = all_that_tells if self.needs_placement else ()
        kept = {name: value for name, value in environ.items() if name not in stale}
        given = self.plan.env.items()
        return {
            **kept,
            **self.plan.secrets,
            **{name: placeholders.expand(text, values) for name, text in given},
        }

    def protocol_variables(self, rank: int, faults: Sequence[InjectedFault]) -> dict[str, str]:
        """Returns the worker protocol's variables for one rank, with those of `faults` that are its
        own."""
        plan = self.plan
        identity = WorkerIdentity(
            self.job, self.attempt, rank, self.world_size, self.devices, self.lineage
        )
        env = {
            **identity.to_environment(),
            **self.adjustments.to_environment(),
            **self.failures.to_environment(),
            **(self.owner.to_environment() if self.owner is not None else {}),
            environment.FAILURE_FILE: str(self.file(rank, "failure.json")),
            environment.METRICS_FILE: str(self.model_dir / metrics_file.NAME),
            environment.EXECUTABLES: str(self.model_dir / "compile_cache" / "executables"),
            environment.TOKENS: str(self.model_dir / "tokens"),
            environment.STACKS_FILE: str(self.file(rank, "stacks.txt")),
            environment.SAVE_REQUEST: str(self.directory / save_request.NAME),
        }
        if given := [asdict(fault) for fault in faults if fault.rank == rank]:
            records = str(self._fault_records)
            env[environment.FAULTS] = json.dumps({"faults": given, "records": records})
        if plan.bootstrap and rank == 0:  # the other ranks import the same
            env[environment.MODULES_FILE] = str(self.modules_file)
        if plan.progress_pattern is not None:
            env[environment.STEPS_FROM_OUTPUT] = "1"
        if plan.save_on_sigterm:
            env[environment.SAVE_ON_SIGTERM] = "1"
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
