"""The schema of `trainer.yaml`, as frozen models. The sections of our trainer are in `training`.

The docstring below a key is its description in the JSON Schema, which editors show.
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

from supervisor.config import placeholders
from supervisor.config.command import (
    TEMPLATE_FORM,
    WITH_A_GROUP,
    Command,
    explain_text_command,
)
from supervisor.config.fields import (
    LOCAL_PLACE_FORM,
    PLACE_FORM,
    Bytes,
    Deadline,
    LostAfter,
    Seconds,
    Section,
    StageName,
    UnixTime,
    checked_local_place,
    checked_place,
)
from supervisor.config.notify import Notify
from supervisor.config.own_rules import RuleConfig
from supervisor.config.patterns import Pattern
from supervisor.config.schema_clauses import (
    AlternativeForm,
    Keywords,
    absent,
    at_most_one,
    exactly_one,
    given,
    has,
    if_there,
    when,
    with_clauses,
)
from supervisor.config.topology import PATTERN_OF_TYPES, parse_slice
from supervisor.config.training.sections import (
    CheckpointSchedule,
    DeterminismConfig,
    DpoConfig,
    FitConfig,
    Folder,
    GrpoConfig,
    Load,
    LoopConfig,
    LoraConfig,
    MetricsConfig,
    ModelConfig,
    OptimizerConfig,
    SdcConfig,
    Seed,
)
from supervisor.protocol.fault_injection import SIMULATED

TRAINER_SECTIONS = (
    "seed",
    "data_shuffle_seed",
    "model",
    "tokenizer",
    "lora",
    "dpo",
    "grpo",
    "optimizer",
    "loop",
    "determinism",
    "sdc",
    "metrics",
)
"""Keys of `trainer.init` that only our trainer reads."""


_TYPE_FORM = Keywords(
    {"pattern": PATTERN_OF_TYPES, "errorMessage": "Give a TPU type such as v5e-8, v4-16 or v5p-8."}
)


class Devices(Section):
    """The accelerators of the job."""

    model_config = with_clauses(
        when(
            given("type"),
            if_there("platform", {"const": "tpu"}, "`type` is only for platform tpu."),
        ),
        when(given("slices"), given("type", "`slices` needs a `type`, such as v5e-16.")),
    )

    platform: Literal["cpu", "gpu", "tpu"]
    """Kind of accelerator; `cpu` devices are simulated."""
    type: Annotated[str, _TYPE_FORM] | None = None
    """Accelerator type of a TPU slice, such as v5e-8."""
    slices: Annotated[int, Field(ge=1)] | None = None
    """Number of slices of this type."""
    count: Annotated[int, Field(ge=1)] | None = None
    """Number of accelerators (chips on TPU). Default: all that the program finds."""

    @model_validator(mode="after")
    def _check_size(self) -> Self:
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
        """The number of accelerators (chips on TPU); None: all that the program finds."""
        if self.type is None:
            return self.count
        return parse_slice(self.type).chips * (self.slices or 1)


class Checkpoint(CheckpointSchedule):
    """Where checkpoints are, what they are called, and how often our trainer saves one."""

    model_config = with_clauses(
        when(given("committed"), given("pattern", "`committed` needs a `pattern`.")),
        when(given("verify"), absent("pattern", "`verify` is only for the known layouts.")),
        when(
            given("marker"),
            has("committed", {"const": "marker"}, "`marker` needs `committed: marker`."),
        ),
    )

    directory: (
        Annotated[
            str,
            Strict(),
            AfterValidator(checked_place),
            PLACE_FORM,
            Keywords(placeholders.make_schema(("model_dir",))),
        ]
        | None
    ) = None
    """Directory or URI in which the program saves its checkpoints. Default:
    {model_dir}/checkpoints, with several phases {model_dir}/checkpoints/PHASE. If a command saves
    elsewhere first, that directory is found and told; this key chooses another one, such as the one
    from which the program restores."""
    pattern: Annotated[str, WITH_A_GROUP] | None = None
    """Regular expression that the whole name of a checkpoint of the command matches, with one
    group, for the step: `ckpt-(\\d+)\\.pt`. Nothing else counts then. Default: the known
    layouts."""
    committed: Literal["closed", "marker"] | None = None
    """What commits a checkpoint whose name matches `pattern`. `closed`: it is a file, and the
    program closes it; not in a bucket. `marker`: it is a folder, and the program writes `marker`
    into it last. Default: closed."""
    marker: Annotated[str, Field(pattern=r"^[^/]+$")] | None = None
    """Name of the file that the program writes last. Default: commit_success.txt."""
    verify: bool | None = None
    """Whether the supervisor compares the newest checkpoint of the command with a manifest before
    each launch, and moves a damaged one aside. It makes the manifests in the background, for
    layouts with a commit (Orbax, AXLearn, Levanter, PyTorch DCP), not in a bucket. Our trainer
    verifies its own checkpoints anyway. Default: false."""

    @field_validator("pattern")
    @classmethod
    def _check_one_group(cls, value: str | None) -> str | None:
        if value is not None and Pattern(value).groups != 1:
            raise ValueError(r"needs exactly one group, for the step: 'ckpt-(\d+)\.pt'")
        return value

    @model_validator(mode="after")
    def _check_layout(self) -> Self:
        if self.committed is not None and self.pattern is None:
            raise ValueError(r"committed needs a pattern, such as 'ckpt-(\d+)\.pt'")
        if self.marker is not None and self.committed != "marker":
            raise ValueError("marker needs committed: marker")
        if self.verify and self.pattern is not None:
            raise ValueError(
                "verify is only for the known layouts that a marker or a rename commits: leave out "
                "pattern, or verify"
            )
        return self


class BackoffConfig(Section):
    """The waits before restarts in a row."""

    first: Seconds = 10.0
    """Wait before the second restart in a row. Each further restart waits twice as long. Each wait
    is up to 20% shorter or longer, so that many jobs do not restart together."""
    max: Seconds = 300.0
    """The longest wait."""


class Preemption(Section):
    """How the supervisor learns early that the machine will be taken away."""

    source: Literal["auto", "gce", "none"] = "auto"
    """Service that announces preemptions: `gce` is Google's metadata server; `auto` is the same, if
    this is a machine of Google's or GCE_METADATA_HOST names a metadata server, and the end of a
    Slurm allocation; `none` is no service."""
    until: UnixTime | None = None
    """When this machine is taken away, as at the end of a batch system's allocation: an ISO time
    with its time zone (2026-11-30T08:00:00Z), or a Unix time. The job saves just before it.
    Default: with `source: auto` the end that Slurm names (SLURM_JOB_END_TIME); else none."""
    notice: Seconds | None = None
    """How long the machine stays at least after the announcement. The job trains on until a save
    needs the rest of this time. Default: unknown; the job saves at once."""
    file: Annotated[str, Field(min_length=1)] | None = None
    """File whose existence announces a preemption. Its first line says why."""
    command: Annotated[list[str], Field(min_length=1)] | None = None
    """Program that announces a preemption by printing a line that says why and exiting with 0. It
    may wait as long as it likes. It runs again 5 s after any other end."""


def _false_is_off(value: Any) -> Any:
    return "off" if value is False else value


class Autorestart(Section):
    """When to restart, and when to give up."""

    max_num_restarts: Annotated[int, Field(ge=0)]
    """The most restarts in a row without a new committed checkpoint."""
    max_num_preemptions: Annotated[int, Field(ge=0)] = 20
    """The most preemptions in a row that hit a worker alone, without a new committed checkpoint.
    Announced preemptions of the machine do not count."""
    max_total_restarts: Annotated[int, Field(ge=0)] | None = None
    """The most charged restarts of the phase in all, charged preemptions included, whatever its
    progress. It is at least `max_num_restarts`. Default: any number."""
    min_num_devices: Annotated[int, Field(ge=1)] = 1
    """The smallest number of accelerators (chips on TPU) to train on."""
    wait_for_capacity: Seconds = 600.0
    """How long to wait while there are fewer devices than the smallest rung needs. Then the job
    ends with exit code 69."""
    wait_for_replacement: Seconds = 0.0
    """How long to wait for lost devices to come back. Then the job goes on with fewer."""
    regrow: Literal["at_restart", "at_checkpoint"] = "at_restart"
    """When a job on a smaller rung uses a larger one again. `at_restart`: at its next restart.
    `at_checkpoint`: it also restarts for that purpose, right after a checkpoint, once the larger
    rung has been usable for `regrow_after`."""
    regrow_after: Seconds = 60.0
    """With `regrow: at_checkpoint`: how long a larger rung must have been usable before the job
    restarts on it. The time doubles whenever the job has to shrink again soon after."""
    min_num_slices: Annotated[int, Field(ge=1)] | None = None
    """The smallest number of TPU slices to train on."""
    ladder: (
        Annotated[
            list[Annotated[int, Field(ge=1)]], Field(min_length=1), Keywords({"uniqueItems": True})
        ]
        | None
    ) = None
    """Numbers of devices to train on, in descending order. Default: all that are possible."""
    grace_period: Seconds = 25.0
    """Time between SIGTERM and SIGKILL."""
    backoff: BackoffConfig = BackoffConfig()
    """Waits between restarts. The first restart does not wait, except after failures that need
    time."""
    deadlines: dict[StageName, Deadline] = Field(default_factory=dict)
    """How long a stage may last (TRAINING: without a new step) before the workers count as hung.
    Default: built-in limits, which the job's own durations replace for TRAINING, EVALUATING and
    SAVING."""
    standby: Annotated[
        Literal["off", "imports", "ready"] | None,
        BeforeValidator(_false_is_off),
        AlternativeForm({"const": False}),
    ] = None
    """Process that waits to become the next worker: `imports` has loaded its modules; `ready` (our
    trainer only) has also initialised the devices and compiled its steps; `off` is no process.
    Default: the supervisor chooses."""
    prefetch: bool = True
    """Whether the supervisor compiles programs for other rungs while the job trains. With
    `standby: off` too, no process waits to probe the devices either."""
    repeated_failure_limit: Annotated[int | None, Field(ge=0)] = None
    """The job ends when the same failure occurs this often without a new checkpoint; 0: repetitions
    do not end it. It is not for FATAL failures: a certain one ends the job at once, a guess when it
    comes again. Default: 2 before the first checkpoint of the phase, 3 after it."""
    rules: list[RuleConfig] = Field(default_factory=list)
    """Your own rules, which come before the built-in ones."""
    preemption: Preemption = Preemption()
    """How the supervisor learns early that the machine will be taken away."""

    @field_validator("max_total_restarts")
    @classmethod
    def _check_total_restarts(cls, total: int | None, info: ValidationInfo) -> int | None:
        in_a_row = info.data.get("max_num_restarts")
        if total is not None and in_a_row is not None and total < in_a_row:
            raise ValueError(
                f"is less than max_num_restarts ({in_a_row}), which could never be reached: raise "
                "it, or leave it out for any number"
            )
        return total


class CompileCacheConfig(Section):
    """Which compiled programs from the bucket the job may use: give at most one key. Compiled
    programs are native code."""

    model_config = with_clauses(at_most_one("key_file", "from_bucket"))

    key_file: (
        Annotated[str, Field(min_length=1), AfterValidator(checked_local_place), LOCAL_PLACE_FORM]
        | None
    ) = None
    """File with a key that is not in the bucket. The job signs its programs with it, and uses only
    programs that are signed with it."""
    from_bucket: bool = False
    """Whether the job uses unsigned programs from the bucket. Everybody who can write to the bucket
    can then run code in the job."""

    @model_validator(mode="after")
    def _check_kind_of_trust(self) -> Self:
        if self.key_file is not None and self.from_bucket:
            raise ValueError("give either key_file or from_bucket: true, which needs no key")
        return self


class Limits(Section):
    """The most bytes that each kind of files below model_dir may take. The supervisor deletes the
    oldest files first, and compiled programs that were not used for longest."""

    outputs: Bytes = 10 << 30
    """The outputs of all attempts together."""
    records: Bytes = 1 << 30
    """The failure records and stacks of all attempts together."""
    compile_cache: Bytes = 4 << 30
    """JAX's cache of compiled programs."""
    executables: Bytes = 4 << 30
    """Our trainer's compiled steps."""


class Provision(Section):
    """How `supervise provision` asks Google Cloud for the slice that `devices` names."""

    project: Annotated[str, Field(pattern=r"^[a-z][a-z0-9.:-]*[a-z0-9]$")]
    """Google Cloud project."""
    zone: Annotated[str, Field(pattern=r"^[a-z]+-[a-z]+[0-9]+-[a-z]$")]
    """Zone, such as us-west4-a."""
    runtime_version: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")]
    """Image of the machine (the TPU software version), such as v2-alpha-tpuv5-lite."""
    spot: bool = True
    """Whether to ask for spot capacity, which is cheaper, and which Google may take away."""
    network: Annotated[str, Field(min_length=1)] | None = None
    """Network of the machine. Default: that of the project."""
    service_account: Annotated[str, Field(pattern=r"^[^@\s]+@[^@\s]+$")] | None = None
    """Service account of the machine. Default: that of the project."""
    smaller_after: Seconds = 1800.0
    """How long to wait for a slice before asking for the next smaller rung."""
    lock: Annotated[str, Field(min_length=1)] | None = None
    """Requirements file with hashes, which pip installs on the machine. Default: the lock file of
    supervise for TPUs."""
    user: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_-]{0,31}$")] = "supervise"
    """User that runs the job on the machine. The user is created if it does not exist."""


class Hosts(Section):
    """The hosts of a job that runs on several, and the cluster that they are in."""

    engine: Literal["ray"]
    """What reaches the hosts: `ray` is Ray core, of the extra [ray]."""
    count: Annotated[int, Field(ge=1)]
    """Number of hosts to train on."""
    spares: Annotated[int, Field(ge=0)] = 0
    """Number of hosts to keep ready beyond `count`. The job starts without them."""
    address: Annotated[str, Field(min_length=1)] = "auto"
    """Address of the cluster's head, such as 10.0.0.2:6379. `auto`: the cluster that this machine
    is in."""
    lost_after: LostAfter = 10.0
    """A host whose questions get no answer for so long kills its workers, and another one may take
    its place. At least 1 s, and less than the lease of model_dir allows (50 s)."""


class Init(Section):
    """The settings of the job. The sections of our trainer are only for `fit`."""

    model_dir: Annotated[str, Field(min_length=1), AfterValidator(checked_place), PLACE_FORM]
    """Directory, or a URI such as gs://BUCKET/PATH, for all files of the job."""
    devices: Devices | None = None
    """Accelerators to train on. Default: all that the program finds."""
    workers: Annotated[int, Field(ge=1)] = 1
    """Number of processes that share the devices equally. Each one acts as a host."""
    hosts: Hosts | None = None
    """Several hosts to train on, with one worker on each. Default: this machine alone."""
    seed: Seed = 0
    """Seed of the initial parameters and of dropout (fit)."""
    data_shuffle_seed: Seed = 1
    """Seed of the order of the data (fit)."""
    model: ModelConfig | None = None
    """Shape of the model (fit, required)."""
    tokenizer: Folder | None = None
    """Folder with a `tokenizer.json`, which makes token ids of text (fit). Default:
    model.pretrained, or else each byte is a token."""
    lora: LoraConfig | None = None
    """Train low-rank adapters in place of the model's weights (fit). Default: all weights are
    trained."""
    dpo: DpoConfig | None = None
    """How preferences are learned (fit, with `chosen_field`). Default: its defaults."""
    grpo: GrpoConfig | None = None
    """Learn from rewards (fit, with `prompt_field` alone). Default: the data says what is right."""
    optimizer: OptimizerConfig | None = None
    """Optimizer and learning rate (fit, required)."""
    loop: LoopConfig | None = None
    """Number of steps, batch sizes and sharding (fit, required)."""
    determinism: DeterminismConfig = DeterminismConfig()
    """How exactly a run on another number of devices repeats the same numbers (fit)."""
    sdc: SdcConfig | None = None
    """Search for devices that compute wrongly in silence (fit, with `determinism: {elastic:
    bitwise}`). Default: none."""
    metrics: MetricsConfig = MetricsConfig()
    """What our trainer writes of each step, beside metrics.jsonl (fit)."""
    checkpoint: Checkpoint = Checkpoint()
    """Where checkpoints are, and how often our trainer saves one."""
    autorestart: Autorestart
    """When to restart, and when to give up."""
    provision: Provision | None = None
    """How `supervise provision` asks Google Cloud for the slice that `devices` names."""
    compile_cache: CompileCacheConfig = CompileCacheConfig()
    """Which compiled programs from the bucket the job may use. Default: none."""
    limits: Limits = Limits()
    """The most bytes that each kind of files below model_dir may take."""
    notify: list[Notify] = Field(default_factory=list)
    """Who is told of failures, of the end of the job, and that it needs a person."""

    @property
    def num_workers(self) -> int:
        """The number of worker processes: one on each host, or `workers` on this machine."""
        return self.hosts.count if self.hosts is not None else self.workers


class StartFrom(Section):
    """The phase, or the directory, whose result this phase starts from, and what it loads."""

    phase: str | None = None
    """Name of an earlier phase. Default: the previous one."""
    directory: (
        Annotated[str, Field(min_length=1), AfterValidator(checked_place), PLACE_FORM] | None
    ) = None
    """Directory with checkpoints of our trainer, of another job, in place of a phase. The newest
    one is loaded."""
    load: Annotated[Load, Field(strict=False)] = Load.PARAMS
    """How much to load: `params`, or `all` (with the optimizer's state)."""


Unit = Annotated[str, Field(pattern=r"^(host)?\d{1,6}$")]
Host = Annotated[str, Field(pattern=r"^host\d{1,6}$")]


_KINDS_OF_FAULTS = ("signal", "exception", "exit_code", "hang", "slow_input", *SIMULATED)
_SIGNAL_FORM = Keywords(
    {
        "enum": [*signal.Signals.__members__],
        "errorMessage": "Give the name of a signal, such as SIGKILL.",
    }
)
_EXCEPTION_FORM = Keywords(
    {
        "pattern": r"^(?:[A-Z][A-Za-z]+|[^\s.]+(?:[.][^\s.]+)+)$",
        "errorMessage": "Give a built-in exception, or module.Name.",
    }
)


class Fault(Section):
    """A drill (fault injection): a real fault, right after a step or at the beginning of a stage.
    Give exactly one kind of fault."""

    model_config = with_clauses(exactly_one("step", "stage"), exactly_one(*_KINDS_OF_FAULTS))

    step: Annotated[int, Field(ge=1)] | None = None
    """Step after which the fault happens."""
    stage: StageName | None = None
    """Stage at whose beginning the fault happens."""
    rank: Annotated[int, Field(ge=0)] = 0
    """Rank of the worker that has the fault."""
    signal: Annotated[str, _SIGNAL_FORM] | None = None
    """Signal that the worker sends itself, such as SIGKILL."""
    exception: Annotated[str, _EXCEPTION_FORM] | None = None
    """Exception that the worker raises: a built-in one, or module.Name."""
    message: str = "injected by a drill"
    """Text of the exception."""
    exit_code: Annotated[int, Field(ge=0, le=255)] | None = None
    """Exit code with which the worker exits."""
    hang: bool = False
    """Whether the worker hangs."""
    slow_input: Annotated[float, Field(gt=0, le=3600)] | None = None
    """Seconds by which each batch of this worker comes late, until its attempt ends."""
    device_lost: Unit | None = None
    """Simulated device that is lost."""
    device_wrong_result: Unit | None = None
    """Simulated device that computes wrong results."""
    device_flips_bits: Annotated[str, Field(pattern=r"^\d{1,6}$")] | None = None
    """Simulated device that flips a bit in each number that it computes for a gradient, and nothing
    notices but `init.sdc`. It needs `determinism.elastic: bitwise`."""
    device_returns: Unit | None = None
    """Simulated device that comes back."""
    host_lost: Host | None = None
    """Simulated host that is lost."""

    @model_validator(mode="after")
    def _check_moment(self) -> Self:
        if (self.step is None) == (self.stage is None):
            raise ValueError("give either step or stage: when it strikes")
        return self

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        values = [getattr(self, kind) for kind in _KINDS_OF_FAULTS]
        if sum(value is not None and value is not False for value in values) != 1:
            raise ValueError(f"give exactly one of {', '.join(_KINDS_OF_FAULTS)}")
        if self.signal is not None and self.signal not in signal.Signals.__members__:
            raise ValueError(f"{self.signal!r} is not a signal such as SIGKILL")
        if self.exception is not None and not _names_an_exception(self.exception):
            raise ValueError(f"{self.exception!r} is not a built-in exception; give module.Name")
        return self

    @property
    def simulated(self) -> tuple[str, str] | None:
        """The kind and the unit of a fault of simulated devices; None: another fault."""
        return next(((kind, unit) for kind in SIMULATED if (unit := getattr(self, kind))), None)


def _names_an_exception(name: str) -> bool:
    """True if `name` is a built-in exception, or has the form module.Name."""
    if "." in name:
        return all(part.isidentifier() for part in name.split("."))
    kind = getattr(builtins, name, None)
    return isinstance(kind, type) and issubclass(kind, BaseException)


class Phase(Section):
    """A phase of the job: one `trainer:` mapping."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")] | None = None
    """Name of the phase. Default: phase1, phase2, ..."""
    start_from: StartFrom | None = None
    """The phase whose result this phase starts from (fit). Default: the parameters of the last
    phase before it that trains."""
    init: Init
    """The settings of the job."""
    fit: FitConfig | None = None
    """The data that our trainer trains on. Without `fit` give `command`."""
    command: Annotated[
        Command | None, AlternativeForm({"type": "array", "items": TEMPLATE_FORM, "minItems": 1})
    ] = None
    """Any program, in place of our trainer. A list is short for `{argv: ...}`."""
    faults: list[Fault] = Field(default_factory=list)
    """Drills (fault injection): real faults, each once per job."""

    @field_validator("command", mode="before")
    @classmethod
    def _expand_list(cls, value: Any) -> Any:
        if isinstance(value, str):
            raise ValueError(explain_text_command(value))
        return {"argv": value} if isinstance(value, list) else value
