"""Resolves each phase into a plan: the program, the place of its checkpoints, its success.

`fit` is short for a command that runs our trainer, so a plan has the same fields for both. After
this module only `PhasePlan.is_command` tells them apart.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from supervisor.config import placeholders
from supervisor.config.command import Command, SuccessConfig
from supervisor.config.conflicts import phase_name, starting_phase
from supervisor.config.feasible_rungs import FeasibleRungs
from supervisor.config.load import Job
from supervisor.config.own_layout import OwnLayout
from supervisor.config.schema import TRAINER_SECTIONS, Checkpoint, Fault, Phase
from supervisor.config.topology import SliceShape, parse_slice
from supervisor.config.training.sections import Load
from supervisor.config.usual_names import UsualNames
from supervisor.protocol.checkpoint_layouts import MARKER
from supervisor.protocol.location import Uri

JAX_PLATFORMS = "JAX_PLATFORMS"
_JAX_PLATFORM = {"cpu": "cpu", "gpu": "cuda", "tpu": "tpu,cpu"}
"""JAX_PLATFORMS by platform. With `tpu,cpu` a program may use the CPU beside the TPU: jax prefers
the first platform of the list, and raises an error if it cannot initialise one of them
(`xla_bridge.backends`, jax 0.10.2). `cuda,cpu` would be wrong: jax skips CUDA if it finds no device
file of NVIDIA, and uses the CPU."""


def may_fall_back_to_cpu(platform: str | None, platforms: str) -> bool:
    """True if jax may use the CPU in place of `platform`, without an error, when JAX_PLATFORMS is
    `platforms`."""
    names = [name.strip() for name in platforms.split(",")]
    falls_back = "cpu" in (names if platform == "gpu" else names[:1])
    return platform in ("gpu", "tpu") and (falls_back or not platforms.strip())


@dataclass(frozen=True, slots=True)
class PhasePlan:
    """A resolved phase. The placeholders in `argv` and `env` are not expanded yet."""

    name: str
    argv: tuple[str, ...]
    env: dict[str, str]
    model_dir: Path | Uri
    """The model_dir that programs and people see: a URI, or a directory."""
    checkpoint_dir: Path | Uri
    params: dict[str, Any]
    """The resolved config, as in params.yaml."""
    success: SuccessConfig
    success_is_default: bool
    is_command: bool
    """Whether the program is a command, not our trainer. A command may not use the worker protocol,
    and the step that means success need not be in a checkpoint."""
    progress_pattern: str | None
    bootstrap: bool
    """Whether a Python program runs under the bootstrap, which reports its failures, stages and
    saves."""
    num_devices: int | None
    global_batch: int | None
    """Examples in a step of a command; None: the config does not say."""
    max_steps: int | None
    faults: tuple[Fault, ...]
    own_layout: OwnLayout | UsualNames | None = None
    """The layout of the checkpoints, if the config describes it; else which names count. None: all
    usual names do."""
    platform: str | None = None
    tpu: SliceShape | None = None
    """The TPU slice; None: the platform is not TPU, or the config names no type."""
    verifies_checkpoints: bool = False
    """Whether the supervisor verifies the newest checkpoint of a command before each launch."""
    save_on_sigterm: bool = False
    """Whether the bootstrap makes SIGTERM save a checkpoint by the program's next call of Orbax."""
    standby: str | None = None
    """`off`, `imports` or `ready`; None: the supervisor chooses."""
    preload: tuple[str, ...] | None = None
    """Modules that a standby of a command imports; None: those that an earlier attempt imported."""
    rungs: tuple[int, ...] = ()
    """The numbers of devices that the phase can run on, in descending order; empty if the number
    of devices is not known."""
    prefetch: bool = True
    """Whether the program is compiled ahead of time for other rungs."""
    units: tuple[str, ...] = ()
    """The ids of the units of the full rung: devices, or hosts if there are several workers. Empty
    if devices are on other hosts too, or their number is not known. See `num_hosts`."""
    snapshots: bool = False
    """Whether the workers take snapshots in memory, which the supervisor gives to them."""
    workers: int = 1
    num_hosts: int = 0
    """How many machines of a cluster the full rung has, with one worker each; 0: it runs on this
    machine."""
    env_file: str | None = None
    """The file with the secret variables of the program's environment."""
    env_secrets: Mapping[str, str] = field(default_factory=dict)
    """The secret in Secret Manager that has the value of a variable, by variable."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The variables from `env_file` and `env_secrets` with their values, after `secret_variables`
    has read them."""
    finds_checkpoints: bool = False
    """Whether the checkpoint directory is found while the program runs, because the config names
    none. Until then `checkpoint_dir` is the default one."""

    def saving_in(self, found: str | None, kinds: tuple[str, ...] = ()) -> PhasePlan:
        """Returns the plan with the checkpoint directory that was `found` (None: none was), in
        which only names of these `kinds` count (none: all do). A directory that the config names
        stays."""
        if found is None or not self.finds_checkpoints:
            return self
        own = self.own_layout
        if isinstance(own, UsualNames):
            own = UsualNames(kinds)
        return replace(self, checkpoint_dir=Path(found), own_layout=own)

    @property
    def devices_per_worker(self) -> int:
        """The number of devices of each worker; 0: the number of devices is not known."""
        return (self.num_devices or 0) // self.workers


def plan_phases(
    job: Job, trainer_sections: Sequence[Mapping[str, Any]], ladders: Sequence[FeasibleRungs]
) -> tuple[PhasePlan, ...]:
    """Returns the plan of every phase.

    `ladders` has the ladder of each phase. `trainer_sections` has for each phase the sections of
    our trainer with their defaults; it is empty for a command.
    """
    several = len(job.phases) > 1
    directories = [_checkpoints(job, index, several=several) for index in range(len(job.phases))]
    pairs = zip(trainer_sections, ladders, strict=True)
    return tuple(
        _plan(job, index, directories, sections, ladder)
        for index, (sections, ladder) in enumerate(pairs)
    )


def _plan(
    job: Job,
    index: int,
    directories: Sequence[Path | Uri],
    sections: Mapping[str, Any],
    ladder: FeasibleRungs,
) -> PhasePlan:
    phase = job.phases[index]
    name = phase_name(phase, index)
    params = _params(job, index, directories, sections)
    max_steps = None
    if phase.command is not None:
        argv, env = tuple(phase.command.argv), dict(phase.command.env)
        success = phase.command.success or SuccessConfig()
        max_steps = success.step
    else:
        argv, env = (sys.executable, "-P", "-m", "trainer", "{params}"), {}
        max_steps = _last_step(params["trainer"])
        success = SuccessConfig(step=max_steps)
    command = phase.command
    is_named = phase.init.checkpoint.directory is not None
    finds = command is not None and not is_named and isinstance(job.shown_model_dir, Path)
    return PhasePlan(
        name=name,
        argv=argv,
        env={**_platform(phase), **env},
        env_file=command.env_file if command is not None else None,
        env_secrets=dict(command.env_secrets) if command is not None else {},
        model_dir=job.shown_model_dir,
        checkpoint_dir=directories[index],
        own_layout=_own_layout(phase.init.checkpoint, finds=finds),
        verifies_checkpoints=command is not None and bool(phase.init.checkpoint.verify),
        params=params,
        success=success,
        success_is_default=command is not None and command.success is None,
        is_command=command is not None,
        progress_pattern=command.progress.pattern if command and command.progress else None,
        bootstrap=command is not None and command.bootstrap,
        save_on_sigterm=command is not None and command.save_on_sigterm,
        preload=_preload(command),
        standby=phase.init.autorestart.standby,
        prefetch=phase.init.autorestart.prefetch and (command is not None or _trains(phase)),
        platform=phase.init.devices.platform if phase.init.devices else None,
        tpu=_tpu(phase),
        num_devices=_num_devices(phase),
        rungs=tuple(rung.num_devices for rung in ladder.rungs),
        units=_units(phase),
        global_batch=command.global_batch if command is not None else None,
        max_steps=max_steps,
        faults=tuple(phase.faults),
        snapshots=phase.init.checkpoint.snapshot is not None,
        workers=phase.init.num_workers,
        num_hosts=_num_hosts(phase),
        finds_checkpoints=finds,
    )


def _trains(phase: Phase) -> bool:
    return phase.fit is not None and phase.fit.train_dataloader is not None


def _last_step(trainer: Mapping[str, Any]) -> int:
    """Returns the last step of a phase of our trainer; one that only evaluates has a step for each
    batch."""
    max_steps = trainer["init"]["loop"].get("max_steps")
    return int(trainer["fit"]["validation"]["steps"] if max_steps is None else max_steps)


def _own_layout(checkpoint: Checkpoint, *, finds: bool) -> OwnLayout | UsualNames | None:
    if checkpoint.pattern is None:
        return UsualNames() if finds else None
    marker = (checkpoint.marker or MARKER) if checkpoint.committed == "marker" else None
    return OwnLayout(checkpoint.pattern, marker)


def _checkpoints(job: Job, index: int, *, several: bool) -> Path | Uri:
    phase = job.phases[index]
    if phase.init.checkpoint.directory is not None:
        values = {"model_dir": str(job.shown_model_dir)}
        given = placeholders.expand(phase.init.checkpoint.directory, values)
        return Uri.parse(given) or Path(given).expanduser().absolute()
    root = job.shown_model_dir / "checkpoints"
    return root / phase_name(phase, index) if several else root


def _params(
    job: Job, index: int, directories: Sequence[Path | Uri], sections: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the config of one phase with all defaults filled in."""
    phase = job.phases[index]
    params = phase.model_dump(mode="json", exclude_none=True)
    params["name"] = phase_name(phase, index)
    if phase.command is not None:
        for section in TRAINER_SECTIONS:
            params["init"].pop(section, None)
    for section, value in sections.items():
        if section == "init":
            params["init"].update(value)
        else:
            params[section] = value
    params["init"]["model_dir"] = str(job.shown_model_dir)
    params["init"]["checkpoint"]["directory"] = str(directories[index])
    start = _start_from(job, index, directories) if phase.fit is not None else None
    if start is not None:
        params["start_from"] = start
    return {"trainer": params}


def _start_from(job: Job, index: int, directories: Sequence[Path | Uri]) -> dict[str, str] | None:
    start, source = job.phases[index].start_from, starting_phase(job.phases, index)
    if start is not None and start.directory is not None:
        place = Uri.parse(start.directory) or Path(start.directory).expanduser().absolute()
    elif source is not None:
        place = directories[source]
    else:
        return None
    return {
        "directory": str(place),
        "load": (start.load if start is not None else Load.PARAMS).value,
    }


def _num_devices(phase: Phase) -> int | None:
    return phase.init.devices.num_devices if phase.init.devices else None


def _tpu(phase: Phase) -> SliceShape | None:
    devices = phase.init.devices
    return None if devices is None or devices.type is None else parse_slice(devices.type)


def _num_hosts(phase: Phase) -> int:
    return phase.init.hosts.count if phase.init.hosts is not None else 0


def _units(phase: Phase) -> tuple[str, ...]:
    devices = phase.init.devices
    if devices is None or devices.num_devices is None or phase.init.hosts is not None:
        return ()
    slices = devices.slices is not None and devices.slices > 1
    if slices or (devices.type is not None and not parse_slice(devices.type).is_part_of_a_host):
        return ()
    if phase.init.workers > 1:
        return tuple(f"host{rank}" for rank in range(phase.init.workers))
    return tuple(str(device) for device in range(devices.num_devices))


def _preload(command: Command | None) -> tuple[str, ...] | None:
    return None if command is None or command.preload is None else tuple(command.preload)


def _platform(phase: Phase) -> dict[str, str]:
    """Returns the environment that makes JAX use the platform of the config, or else fail."""
    devices = phase.init.devices
    return {} if devices is None else {JAX_PLATFORMS: _JAX_PLATFORM[devices.platform]}
