"""The schema of `trainer.yaml`, as frozen models; our trainer's own sections are in `training`.

The description of a key is the text below it: `supervise schema` has it for editors.
"""

from __future__ import annotations

import builtins
import signal
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    Strict,
    ValidationInfo,
    field_validator,
    model_validator,
)

from supervisor.config.command import Command, words_needed
from supervisor.config.fields import (
    Also,
    Bytes,
    Deadline,
    Seconds,
    Section,
    StageName,
    local_place,
    place,
)
from supervisor.config.own_rules import RuleConfig
from supervisor.config.topology import parse_slice
from supervisor.config.training.sections import (
    CheckpointSchedule,
    DeterminismConfig,
    FitConfig,
    Load,
    LoopConfig,
    ModelConfig,
    OptimizerConfig,
    Seed,
)
from supervisor.protocol.fault_injection import SIMULATED

TRAINER_SECTIONS = ("seed", "data_shuffle_seed", "model", "optimizer", "loop", "determinism")
"""Keys of `trainer.init` that are our trainer's business."""


class Devices(Section):
    """The accelerators that the job is meant to have."""

    platform: Literal["cpu", "gpu", "tpu"]
    """Kind of accelerator; `cpu` devices are simulated."""
    type: str | None = None
    """Accelerator type of a TPU slice, such as v5e-8."""
    slices: Annotated[int, Field(ge=1)] | None = None
    """Number of slices of this type."""
    count: Annotated[int, Field(ge=1)] | None = None
    """Number of accelerators (chips on TPU). Default: as many as are found."""

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


class Checkpoint(CheckpointSchedule):
    """Where checkpoints are and how often our trainer makes one."""

    directory: Annotated[str, Strict(), AfterValidator(place)] | None = None
    """Where the program saves. Default: {model_dir}/checkpoints, with several phases
    {model_dir}/checkpoints/PHASE."""


class BackoffConfig(Section):
    """The wait before the second restart in a row, and its upper bound."""

    first: Seconds = 10.0
    """Wait before the second restart in a row; each further one waits twice as long."""
    max: Seconds = 300.0
    """The longest wait."""


class Preemption(Section):
    """Who may announce that the machine will be taken away."""

    source: Literal["auto", "gce", "none"] = "auto"
    """Where announcements come from: `gce` is Google's metadata server, `auto` asks it if it is
    there."""
    notice: Seconds | None = None
    """How long the machine stays at least once its end is announced. Default: nobody knows, so the
    job is asked to save at once."""
    file: Annotated[str, Field(min_length=1)] | None = None
    """A file that announces a preemption by being there."""
    command: Annotated[list[str], Field(min_length=1)] | None = None
    """A program that announces a preemption by exiting with 0."""


def _off(value: Any) -> Any:
    return "off" if value is False else value  # YAML reads the bare word as a truth value


class Autorestart(Section):
    """When to restart, and when to give up."""

    max_num_restarts: Annotated[int, Field(ge=0)]
    """Consecutive restarts without a new committed checkpoint."""
    max_num_preemptions: Annotated[int, Field(ge=0)] = 20
    """Consecutive preemptions of a worker alone without a new committed checkpoint; announced
    preemptions are free."""
    max_total_restarts: Annotated[int, Field(ge=0)] | None = None
    """Charged restarts of the phase in all, which nothing refills. Default: any number."""
    min_num_devices: Annotated[int, Field(ge=1)] = 1
    """The smallest number of accelerators (chips on TPU) to train on."""
    wait_for_capacity: Seconds = 600.0
    """How long to wait for devices below the smallest rung, before the job ends with 69."""
    wait_for_replacement: Seconds = 0.0
    """How long to wait for lost devices to come back before the job goes on with fewer."""
    regrow: Literal["at_restart", "at_checkpoint"] = "at_restart"
    """When a job that has shrunk takes a larger rung that is there again: at its next restart, or
    by a restart right after a checkpoint, once that rung has been well for `regrow_after`."""
    regrow_after: Seconds = 60.0
    """How long a larger rung must have been well before a restart takes it."""
    min_num_slices: Annotated[int, Field(ge=1)] | None = None
    """The smallest number of TPU slices to train on."""
    ladder: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)] | None = None
    """Numbers of devices to train on, in descending order. Default: all that are possible."""
    grace_period: Seconds = 25.0
    """Time between SIGTERM and SIGKILL."""
    backoff: BackoffConfig = BackoffConfig()
    """Waits between restarts; the first restart never waits."""
    deadlines: dict[StageName, Deadline] = Field(default_factory=dict)
    """How long a stage may take without a sign of life. Default: learned from the job."""
    standby: Annotated[
        Literal["off", "imports", "ready"] | None, BeforeValidator(_off), Also({"const": False})
    ] = None
    """Kind of process that waits to become the next worker. Default: the kind that suits."""
    prefetch: bool = True
    """Whether programs for other rungs are compiled while the job trains."""
    repeated_failure_limit: Annotated[int | None, Field(ge=0)] = None
    """How often the same failure at the same step ends the job; 0: never. Default: 2 before any
    checkpoint, 3 after."""
    rules: list[RuleConfig] = Field(default_factory=list)
    """Rules that come before ours."""
    preemption: Preemption = Preemption()
    """Who may announce that the machine will be taken away."""

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
    """File with a key that is not in the bucket: what is there is signed, and used only if it
    is."""
    from_bucket: bool = False
    """Use what is in the bucket unsigned: whoever may write to it may also run code here."""

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
    """JAX's cache of compiled programs."""
    executables: Bytes = 4 << 30
    """Our trainer's compiled steps."""


class Provision(Section):
    """Where and as what `supervise provision` asks for the slice that `devices` names."""

    project: Annotated[str, Field(pattern=r"^[a-z][a-z0-9.:-]*[a-z0-9]$")]
    """Google Cloud project."""
    zone: Annotated[str, Field(pattern=r"^[a-z]+-[a-z]+[0-9]+-[a-z]$")]
    """Zone, such as us-west4-a."""
    runtime_version: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")]
    """Image of the machine, such as v2-alpha-tpuv5-lite."""
    spot: bool = True
    """Whether to ask for spot capacity, which is cheaper and may be taken away."""
    network: Annotated[str, Field(min_length=1)] | None = None
    """Network of the machine. Default: the project's."""
    service_account: Annotated[str, Field(pattern=r"^[^@\s]+@[^@\s]+$")] | None = None
    """Service account of the machine. Default: the project's."""
    smaller_after: Seconds = 1800.0
    """How long to wait for a slice before the next smaller rung is asked for."""
    lock: Annotated[str, Field(min_length=1)] | None = None
    """Requirements file with hashes: what pip installs there. Default: ours, for a TPU."""
    user: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_-]{0,31}$")] = "supervise"
    """User that runs the job there, who is made if there is none."""


class Init(Section):
    """What is true of the job; the trainer's own sections are only for `fit`."""

    model_dir: Annotated[str, Field(min_length=1), AfterValidator(place)]
    """Directory, or a URI such as gs://BUCKET/PATH, for everything that the job leaves."""
    devices: Devices | None = None
    """Accelerators to train on. Default: those that are found."""
    workers: Annotated[int, Field(ge=1)] = 1
    """Processes that share the devices, each as if it were a host of its own."""
    seed: Seed = 0
    """Seed of the initialisation and of dropout (fit)."""
    data_shuffle_seed: Seed = 1
    """Seed of the order of the data (fit)."""
    model: ModelConfig | None = None
    """Shape of the model (fit, required)."""
    optimizer: OptimizerConfig | None = None
    """Optimizer and learning rate (fit, required)."""
    loop: LoopConfig | None = None
    """How long to train, and how much at once (fit, required)."""
    determinism: DeterminismConfig = DeterminismConfig()
    """How far a run computes the same on another number of devices (fit)."""
    checkpoint: Checkpoint = Checkpoint()
    """Checkpoints."""
    autorestart: Autorestart
    """When to restart, and when to give up."""
    provision: Provision | None = None
    """What `supervise provision` asks Google Cloud for."""
    compile_cache: CompileCacheConfig = CompileCacheConfig()
    """Whether compiled programs in a bucket are trusted."""
    limits: Limits = Limits()
    """The most that things below model_dir may take."""


class StartFrom(Section):
    """Which phase's result this one starts from, and how much of it."""

    phase: str | None = None
    """Name of an earlier phase. Default: the one before."""
    load: Annotated[Load, Field(strict=False)] = Load.PARAMS
    """How much to load: `params`, or `all` (with the optimizer's state)."""


Unit = Annotated[str, Field(pattern=r"^(host)?\d{1,6}$")]
Host = Annotated[str, Field(pattern=r"^host\d{1,6}$")]


class Fault(Section):
    """A drill: a real fault, right after a step or on entering a stage; exactly one kind."""

    step: Annotated[int, Field(ge=1)] | None = None
    """It strikes after this step."""
    stage: StageName | None = None
    """It strikes on entering this stage."""
    rank: Annotated[int, Field(ge=0)] = 0
    """Worker that it strikes."""
    signal: str | None = None
    """Signal that the worker sends itself, such as SIGKILL."""
    exception: str | None = None
    """Exception that the worker raises: a built-in one, or module.Name."""
    message: str = "injected by a drill"
    """Text of the exception."""
    exit_code: Annotated[int, Field(ge=0, le=255)] | None = None
    """Code with which the worker exits."""
    hang: bool = False
    """Whether the worker hangs."""
    device_lost: Unit | None = None
    """Simulated device that is lost."""
    device_wrong_result: Unit | None = None
    """Simulated device that computes wrong results."""
    device_returns: Unit | None = None
    """Simulated device that comes back."""
    host_lost: Host | None = None
    """Simulated host that is lost."""

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
    """Name of the phase. Default: phase1, phase2, ..."""
    start_from: StartFrom | None = None
    """Which phase's result this one starts from. Default: the parameters of the one before."""
    init: Init
    """What is true of the job whichever program it runs."""
    fit: FitConfig | None = None
    """What our trainer trains on; or give `command`."""
    command: Annotated[
        Command | None, Also({"type": "array", "items": {"type": "string"}, "minItems": 1})
    ] = None
    """Any program in place of our trainer; a list is short for `argv` alone."""
    faults: list[Fault] = Field(default_factory=list)
    """Drills: real faults, each once per job."""

    @field_validator("command", mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if isinstance(value, str):
            raise ValueError(words_needed(value))
        return {"argv": value} if isinstance(value, list) else value
