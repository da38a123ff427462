"""The schema of the trainer's part of trainer.yaml, and its defaults.

What the supervisor owns (`model_dir`, `devices`, `autorestart`, `faults`, ...) is ignored here;
inside the trainer's own sections an unknown key is an error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    Strict,
)

from supervisor.protocol.duration import parse_duration
from supervisor.protocol.location import Uri

_PATTERN = frozenset("*?[")


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
