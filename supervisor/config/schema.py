"""The supervisor's part of `trainer.yaml`, as frozen models.

What belongs to our trainer (`model`, `optimizer`, `loop`, `fit`, ...) is opaque here: its own
schema, in `trainer/schema.py`, is asked by running `python -m trainer.check`.
"""

from __future__ import annotations

import builtins
import signal
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from supervisor.config.command import Command, words_needed
from supervisor.config.fields import (
    Bytes,
    Seconds,
    Section,
    StageName,
    local_place,
    place,
    steps,
    steps_or_duration,
)
from supervisor.config.rules import RuleConfig
from supervisor.config.topology import parse_slice
from supervisor.protocol.drills import SIMULATED

TRAINER_SECTIONS = ("seed", "data_shuffle_seed", "model", "optimizer", "loop", "determinism")
"""Keys of `trainer.init` that are our trainer's business."""


class Devices(Section):
    """The accelerators that the job is meant to have."""

    platform: Literal["cpu", "gpu", "tpu"]
    type: str | None = None
    """The accelerator type of a TPU slice, such as v5e-8."""
    slices: Annotated[int, Field(ge=1)] | None = None
    """How many slices of this type there are."""
    count: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if self.type is not None:
            if self.platform != "tpu":
                raise ValueError("type is only for platform tpu")
            size = parse_slice(self.type).chips * (self.slices or 1)
            if self.count is not None and self.count != size:
                what = self.type if self.slices is None else f"{self.slices} x {self.type}"
                raise ValueError(f"type {what} has {size} chips, not {self.count}")
        elif self.slices is not None:
            raise ValueError("slices needs a type: {platform: tpu, type: v5e-16, slices: 4}")
        return self

    @property
    def num_devices(self) -> int | None:
        """How many accelerators that is (chips on TPU); None: as many as are found."""
        if self.type is None:
            return self.count
        return parse_slice(self.type).chips * (self.slices or 1)


class Snapshot(Section):
    """How often our trainer takes a snapshot in memory."""

    every: Annotated[int, BeforeValidator(steps)]


class Checkpoint(Section):
    """Where checkpoints are and how often our trainer makes one."""

    directory: Annotated[str, AfterValidator(place)] | None = None
    every: Annotated[int | str, BeforeValidator(steps_or_duration)] = 100
    keep: Annotated[int, Field(ge=1)] = 3
    snapshot: Snapshot | None = None


class BackoffConfig(Section):
    """The wait before the second restart in a row, and its upper bound."""

    first: Seconds = 10.0
    max: Seconds = 300.0


class Preemption(Section):
    """Who may announce that the machine will be taken away."""

    source: Literal["auto", "gce", "none"] = "auto"
    notice: Seconds | None = None
    file: Annotated[str, Field(min_length=1)] | None = None
    command: Annotated[list[str], Field(min_length=1)] | None = None


def _off(value: Any) -> Any:
    return "off" if value is False else value  # YAML reads the bare word as a truth value


class Autorestart(Section):
    """When to restart, and when to give up."""

    max_num_restarts: Annotated[int, Field(ge=0)]
    max_num_preemptions: Annotated[int, Field(ge=0)] = 20
    max_total_restarts: Annotated[int, Field(ge=0)] | None = None
    """Charged restarts of the phase in all, which nothing refills; None: any number."""
    min_num_devices: Annotated[int, Field(ge=1)] = 1
    wait_for_capacity: Seconds = 600.0
    """How long to wait for devices below the smallest rung, before the job ends with 69."""
    wait_for_replacement: Seconds = 0.0
    """How long to wait for lost devices to come back before the job goes on with fewer."""
    regrow: Literal["at_restart", "at_checkpoint"] = "at_restart"
    """When a job that has shrunk takes a larger rung that is there again: at its next restart, or
    by a restart right after a checkpoint, once that rung has been well for `regrow_after`."""
    regrow_after: Seconds = 60.0
    min_num_slices: Annotated[int, Field(ge=1)] | None = None
    ladder: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)] | None = None
    """The numbers of devices to train on; None: all that are possible."""
    grace_period: Seconds = 25.0
    backoff: BackoffConfig = BackoffConfig()
    deadlines: dict[StageName, Seconds] = Field(default_factory=dict)
    standby: Annotated[Literal["off", "imports", "ready"] | None, BeforeValidator(_off)] = None
    """A process that waits to become the next worker; None: of the kind that suits."""
    prefetch: bool = True
    """Whether programs for other rungs are compiled while the job trains."""
    repeated_failure_limit: Annotated[int | None, Field(ge=0)] = None
    rules: list[RuleConfig] = Field(default_factory=list)
    preemption: Preemption = Preemption()

    @field_validator("max_total_restarts")
    @classmethod
    def _bears_those_in_a_row(cls, total: int | None, info: ValidationInfo) -> int | None:
        in_a_row = info.data.get("max_num_restarts")
        if total is not None and in_a_row is not None and total < in_a_row:
            raise ValueError(
                f"is less than max_num_restarts ({in_a_row}), which could never be spent: raise "
                "it, or leave it out for any number"
            )
        return total


class CompileCacheConfig(Section):
    """What makes compiled programs in a bucket trustworthy, which are native code; at most one."""

    key_file: Annotated[str, Field(min_length=1), AfterValidator(local_place)] | None = None
    """A key that is not in the bucket: what is there is signed, and used only if it is."""
    from_bucket: bool = False
    """Whoever may write to the bucket may also run code here."""

    @model_validator(mode="after")
    def _one_kind_of_trust(self) -> Self:
        if self.key_file is not None and self.from_bucket:
            raise ValueError("give either key_file or from_bucket: true, which needs no key")
        return self


class Limits(Section):
    """What things below model_dir may take together, in bytes; the oldest is deleted first."""

    outputs: Bytes = 10 << 30
    """The outputs of all attempts."""
    records: Bytes = 1 << 30
    """The failure records and stacks of all attempts."""
    compile_cache: Bytes = 4 << 30
    executables: Bytes = 4 << 30
    """Our trainer's compiled steps."""


class Provision(Section):
    """Where and as what `supervise provision` asks for the slice that `devices` names."""

    project: Annotated[str, Field(pattern=r"^[a-z][a-z0-9.:-]*[a-z0-9]$")]
    zone: Annotated[str, Field(pattern=r"^[a-z]+-[a-z]+[0-9]+-[a-z]$")]
    runtime_version: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")]
    """The image of the machine, such as v2-alpha-tpuv5-lite."""
    spot: bool = True
    network: Annotated[str, Field(min_length=1)] | None = None
    service_account: Annotated[str, Field(pattern=r"^[^@\s]+@[^@\s]+$")] | None = None
    smaller_after: Seconds = 1800.0
    """How long to wait for a slice before the next smaller rung is asked for."""
    lock: Annotated[str, Field(min_length=1)] | None = None
    """A requirements file with hashes: what pip installs there; None: ours, for a TPU."""
    user: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_-]{0,31}$")] = "supervise"
    """As whom the job runs there; it is made if it is not there."""


class Init(Section):
    """What is true of the job whichever program it runs."""

    model_dir: Annotated[str, Field(min_length=1), AfterValidator(place)]
    devices: Devices | None = None
    workers: Annotated[int, Field(ge=1)] = 1
    """Processes that share the devices, each as if it were a host of its own."""
    seed: Any = None
    data_shuffle_seed: Any = None
    model: Any = None
    optimizer: Any = None
    loop: Any = None
    determinism: Any = None
    checkpoint: Checkpoint = Checkpoint()
    autorestart: Autorestart
    provision: Provision | None = None
    compile_cache: CompileCacheConfig = CompileCacheConfig()
    limits: Limits = Limits()


class StartFrom(Section):
    """Which phase's result this one starts from, and how much of it."""

    phase: str | None = None
    load: Literal["params", "all"] = "params"


Unit = Annotated[str, Field(pattern=r"^(host)?\d{1,6}$")]
Host = Annotated[str, Field(pattern=r"^host\d{1,6}$")]


class Fault(Section):
    """A drill: a real fault, right after a step or on entering a stage; exactly one kind."""

    step: Annotated[int, Field(ge=1)] | None = None
    stage: StageName | None = None
    rank: Annotated[int, Field(ge=0)] = 0
    signal: str | None = None
    exception: str | None = None
    message: str = "injected by a drill"
    exit_code: Annotated[int, Field(ge=0, le=255)] | None = None
    hang: bool = False
    device_lost: Unit | None = None
    device_wrong_result: Unit | None = None
    device_returns: Unit | None = None
    host_lost: Host | None = None

    @model_validator(mode="after")
    def _one_moment(self) -> Self:
        if (self.step is None) == (self.stage is None):
            raise ValueError("give either step or stage: when it strikes")
        return self

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        kinds = ("signal", "exception", "exit_code", "hang", *SIMULATED)
        given = [getattr(self, kind) for kind in kinds]
        if sum(value is not None and value is not False for value in given) != 1:
            raise ValueError(f"give exactly one of {', '.join(kinds)}")
        if self.signal is not None and self.signal not in signal.Signals.__members__:
            raise ValueError(f"{self.signal!r} is not a signal such as SIGKILL")
        if self.exception is not None and not _names_an_exception(self.exception):
            raise ValueError(f"{self.exception!r} is not a built-in exception; give module.Name")
        return self

    @property
    def simulated(self) -> tuple[str, str] | None:
        """Its kind and its unit, if it is one of simulated devices."""
        return next(((kind, unit) for kind in SIMULATED if (unit := getattr(self, kind))), None)


def _names_an_exception(name: str) -> bool:
    """Whether `name` is a built-in exception, or looks like one of a module's."""
    if "." in name:
        return all(part.isidentifier() for part in name.split("."))
    kind = getattr(builtins, name, None)
    return isinstance(kind, type) and issubclass(kind, BaseException)


class Phase(Section):
    """One `trainer:` mapping."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")] | None = None
    start_from: StartFrom | None = None
    init: Init
    fit: dict[str, Any] | None = None
    command: Command | None = None
    faults: list[Fault] = Field(default_factory=list)

    @field_validator("command", mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if isinstance(value, str):
            raise ValueError(words_needed(value))
        return {"argv": value} if isinstance(value, list) else value
