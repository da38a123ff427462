"""The trainer's part of trainer.yaml: its schema, its defaults, and what is wrong with a config.

It must load quickly and without jax: the supervisor asks for a check (`trainer.check`) before it
starts anything. What the supervisor owns (`model_dir`, `devices`, `autorestart`, `faults`, ...) is
ignored here; inside the trainer's own sections an unknown key is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    Strict,
    ValidationError,
)
from pydantic_core import ErrorDetails

from supervisor.protocol.duration import parse_duration
from supervisor.protocol.location import Uri
from trainer.sources import matching_files
from trainer.tokenizer import VOCABULARY_SIZE

Location = tuple[str | int, ...]

_PATTERN = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a config. `known` holds the keys allowed in place of an unknown one."""

    loc: Location
    message: str
    value: Any = None
    known: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"{'.'.join(map(str, self.loc))} = {self.value!r:.200}: {self.message}"
        return f"{text} (known: {', '.join(self.known)})" if self.known else text


class ConfigError(ValueError):
    """A configuration that cannot be trained; `problems` tells all that is wrong with it."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("invalid configuration\n" + "\n".join(f"  {one}" for one in problems))
        self.problems = problems


class _Shared(BaseModel):
    """A level of the file at which the supervisor has keys too."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class _Owned(BaseModel):
    """A section of the trainer alone."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _every(value: object) -> int | str:
    if isinstance(value, str):
        if parse_duration(value) <= 0:
            raise ValueError("must be longer than nothing")
        return value
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise ValueError("must be a number of steps, or a duration such as 5m")
    return value


def _patterns(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _place(value: object) -> Path | Uri:
    if isinstance(value, Path | Uri):
        return value
    if not isinstance(value, str):
        raise ValueError("must be a directory, or a URI such as gs://BUCKET/PATH")
    uri = Uri.parse(value)
    if uri is not None and uri.scheme != "gs":
        raise ValueError(
            f"Orbax cannot save to {uri.scheme}:// (it knows gs:// and file systems): use a bucket "
            "of gs://, or a mount of this one"
        )
    if uri is not None and not _PATTERN.isdisjoint(uri.path):
        raise ValueError("must not hold *, ? or [: what removes old steps takes them for patterns")
    return Path(value) if uri is None else uri


Count = Annotated[int, Strict(), Field(gt=0)]
Seed = Annotated[int, Strict(), Field(ge=0, lt=2**32)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
Place = Annotated[Path | Uri, PlainValidator(_place), PlainSerializer(str, return_type=str)]


class ModelConfig(_Owned):
    """The decoder's shape. A head has hidden_size / num_heads dimensions."""

    hidden_size: Count
    num_layers: Count
    num_heads: Count
    num_kv_heads: Count = Field(default_factory=lambda data: data.get("num_heads", 1))
    mlp_size: Count = Field(default_factory=lambda data: _mlp_size(data.get("hidden_size", 1)))
    vocab_size: Count = 264  # the tokenizer's 257, up to a multiple of 8
    dropout: Fraction = 0.0
    tie_embeddings: bool = True
    rope_theta: Positive = 10_000.0
    dtype: Literal["float32", "bfloat16"] = "float32"

    @property
    def head_size(self) -> int:
        """Dimensions of one attention head."""
        return self.hidden_size // self.num_heads


def _mlp_size(hidden_size: int) -> int:
    """Three matrices with as many weights as the usual two of 4 x hidden, in multiples of 32."""
    return -(-8 * hidden_size // 3 // 32) * 32


class _Optimizer(_Owned):
    """What every optimizer has: the learning rate warms up linearly, then follows a cosine."""

    learning_rate: Positive
    warmup_steps: Annotated[int, Strict(), Field(ge=0)] = 0
    final_learning_rate_fraction: Annotated[float, Field(ge=0, le=1)] = 0.1
    clip_norm: Positive = 1.0


class AdamW(_Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""

    name: Literal["adamw"]
    b1: Fraction = 0.9
    b2: Fraction = 0.95
    weight_decay: Annotated[float, Field(ge=0)] = 0.1


class Lion(_Optimizer):
    """The sign of an interpolated momentum (Chen et al., 2023): half of Adam's memory."""

    name: Literal["lion"]
    b1: Fraction = 0.9
    b2: Fraction = 0.99
    weight_decay: Annotated[float, Field(ge=0)] = 0.1


class Adafactor(_Optimizer):
    """Second moments kept by row and column only (Shazeer and Stern, 2018)."""

    name: Literal["adafactor"]


class Sgd(_Optimizer):
    """Stochastic gradient descent with momentum."""

    name: Literal["sgd"]
    momentum: Fraction = 0.9


OptimizerConfig = Annotated[AdamW | Lion | Adafactor | Sgd, Field(discriminator="name")]


class LoopConfig(_Owned):
    """How long, and how much at once.

    The global batch holds whatever the number of devices is; `micro_batch_size` is the most
    sequences that one device holds at a time, and gradients are accumulated over the rest. `fsdp`
    is the number of devices over which parameters are sharded. `skip_bad_batches` is how many
    batches may be passed over because they gave NaN or Inf twice.
    """

    max_steps: Count
    global_batch_size: Count
    micro_batch_size: Count | None = None
    fsdp: Count = 1
    max_inflight_computations: Count = 2
    log_every: Count = 10
    skip_bad_batches: Annotated[int, Strict(), Field(ge=0)] = 0


class SnapshotConfig(_Owned):
    """How many steps lie between two snapshots in memory."""

    every: Count


class CheckpointConfig(_Owned):
    """When a checkpoint is saved, where, and how many are kept."""

    directory: Place
    every: Annotated[int | str, BeforeValidator(_every)] = "5m"
    keep: Count = 3
    snapshot: SnapshotConfig | None = None

    @property
    def every_seconds(self) -> float | None:
        """The seconds between checkpoints; None where `every` counts steps."""
        return parse_duration(self.every) if isinstance(self.every, str) else None


class DataloaderConfig(_Owned):
    """Text files, or JSONL files (by their suffix) with the text in the field `text_field`; with
    `tokens_field`, JSONL files with lists of token ids in that field, used as they stand."""

    paths: Annotated[tuple[str, ...], BeforeValidator(_patterns), Field(min_length=1)]
    sequence_length: Count = 128
    text_field: str = "text"
    tokens_field: str | None = None


class ValidationConfig(_Owned):
    """Every so many steps, the mean loss of the first `steps` batches of `dataloader`."""

    every: Count
    steps: Count
    dataloader: DataloaderConfig


class FitConfig(_Owned):
    """What the model is trained on, and what it is measured on."""

    train_dataloader: DataloaderConfig
    validation: ValidationConfig | None = None


class StartFrom(_Owned):
    """The phase whose newest checkpoint this one starts from, as the supervisor resolved it."""

    directory: Place
    load: Literal["params", "all"] = "params"


class DeterminismConfig(_Owned):
    """How far a run on fewer devices computes the same: up to rounding, or to the bit. For the
    latter, micro-batches are of exactly `loop.micro_batch_size` sequences on every rung."""

    elastic: Literal["rounding", "bitwise"] = "rounding"


class InitConfig(_Shared):
    """`trainer.init`: everything but the data."""

    seed: Seed = 0
    data_shuffle_seed: Seed = 1
    model: ModelConfig
    optimizer: OptimizerConfig
    loop: LoopConfig
    checkpoint: CheckpointConfig
    determinism: DeterminismConfig = DeterminismConfig()

    @property
    def is_bitwise(self) -> bool:
        """Whether the number of devices must not change a bit."""
        return self.determinism.elastic == "bitwise"


class TrainerConfig(_Shared):
    """`trainer`: one phase."""

    init: InitConfig
    fit: FitConfig
    start_from: StartFrom | None = None


class PhaseConfig(_Shared):
    """The whole mapping."""

    trainer: TrainerConfig


def parse(mapping: Mapping[str, Any]) -> TrainerConfig:
    """The configuration of one phase in `mapping`, `{"trainer": {...}}`.

    Raises:
        ConfigError: with every problem found.
    """
    try:
        config = PhaseConfig.model_validate(mapping).trainer
    except ValidationError as error:
        raise ConfigError([_problem(one, mapping) for one in error.errors()]) from None
    problems = _contradictions(config)
    if problems:
        raise ConfigError(problems)
    return config


def _contradictions(config: TrainerConfig) -> list[Problem]:
    """What no single field can see."""
    init, model, optimizer = config.init, config.init.model, config.init.optimizer
    directory = init.checkpoint.directory
    problems = []

    def require(holds: bool, loc: str, value: object, message: str) -> None:
        if not holds:
            problems.append(Problem(("trainer", *loc.split(".")), message, value))

    require(
        model.hidden_size % (2 * model.num_heads) == 0,
        "init.model.num_heads",
        model.num_heads,
        f"hidden_size {model.hidden_size} must be a multiple of 2 x num_heads: rotary embeddings "
        "need heads of an even size",
    )
    require(
        model.num_heads % model.num_kv_heads == 0,
        "init.model.num_kv_heads",
        model.num_kv_heads,
        f"must divide num_heads, {model.num_heads}: query heads share key/value heads in groups",
    )
    require(
        model.vocab_size >= VOCABULARY_SIZE or not _reads_text(config.fit),
        "init.model.vocab_size",
        model.vocab_size,
        f"must be at least {VOCABULARY_SIZE}, the tokenizer's",
    )
    require(
        optimizer.warmup_steps <= init.loop.max_steps,
        "init.optimizer.warmup_steps",
        optimizer.warmup_steps,
        f"must not exceed loop.max_steps, {init.loop.max_steps}",
    )
    require(
        init.loop.fsdp == 1 or not init.is_bitwise,
        "init.loop.fsdp",
        init.loop.fsdp,
        "must be 1 for determinism.elastic: bitwise, which computes on the whole state on every "
        "device",
    )
    require(
        isinstance(directory, Uri) or directory.is_absolute(),
        "init.checkpoint.directory",
        str(directory),
        "must be an absolute path",
    )
    require(
        not isinstance(directory, Uri) or find_spec("gcsfs") is not None,
        "init.checkpoint.directory",
        str(directory),
        "needs gcsfs here: pip install '.[gcs]' in a checkout",
    )
    problems += _unmatched(config.fit.train_dataloader, "train_dataloader")
    if config.fit.validation is not None:
        problems += _unmatched(config.fit.validation.dataloader, "validation", "dataloader")
    return problems


def _reads_text(fit: FitConfig) -> bool:
    """Whether the tokenizer is ours."""
    loaders = [fit.train_dataloader, *([fit.validation.dataloader] if fit.validation else [])]
    return any(loader.tokens_field is None for loader in loaders)


def _unmatched(loader: DataloaderConfig, *where: str) -> list[Problem]:
    loc = ("trainer", "fit", *where, "paths")
    message = "matches no file here: give an existing path, a glob that matches, or stdlib"
    return [Problem(loc, message, one) for one in loader.paths if not matching_files(one)]


def _problem(error: ErrorDetails, mapping: Mapping[str, Any]) -> Problem:
    """pydantic's `error` in terms of the file's keys (pydantic puts union tags among them)."""
    loc, section = _section(error["loc"], mapping)
    kind, value, message = error["type"], error["input"], error["msg"]
    if kind == "extra_forbidden":
        return Problem(loc, "unknown key", value, tuple(section.model_fields))
    if kind == "missing":
        return Problem(loc, "required", None)
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        tag = error.get("ctx", {}).get("tag")
        return Problem((*loc, "name"), f"must be one of {', '.join(_BY_NAME)}", tag)
    return Problem(loc, message.removeprefix("Value error, "), value)


def _section(loc: Location, mapping: Any) -> tuple[Location, type[BaseModel]]:
    """`loc` without union tags, and the class of the section that its last key is in."""
    section: type[BaseModel] = PhaseConfig
    path: list[str | int] = []
    last = len(loc) - 1
    for position, part in enumerate(loc):
        inside = isinstance(mapping, Mapping) and part in mapping
        if not inside and position < last and isinstance(part, str):
            section = _BY_NAME[part]
            continue
        path.append(part)
        if position < last and inside:
            mapping = mapping[part]
            section = _section_class(section.model_fields[str(part)].annotation) or section
    return tuple(path), section


_BY_NAME: dict[str, type[BaseModel]] = {
    "adamw": AdamW,
    "lion": Lion,
    "adafactor": Adafactor,
    "sgd": Sgd,
}


def _section_class(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_section_class(one) for one in get_args(annotation))
    return next((one for one in found if one is not None), None)
