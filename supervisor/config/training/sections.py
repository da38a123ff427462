"""The sections of trainer.yaml that our trainer obeys, with their defaults."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict, WithJsonSchema

from supervisor.config.quantities import DURATION_SCHEMA, parse_duration

END_OF_DOCUMENT = 256
"""The tokenizer's one token that is no byte."""
VOCABULARY_SIZE = 257
"""The tokenizer's tokens: every byte, and the end of a document."""


class TrainingSection(BaseModel):
    """A mapping of the trainer's own: unknown keys are errors. Unlike `fields.Section` it takes
    numbers written as text: params.yaml is read by PyYAML, for which 3e-4 is text."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True, strict=False
    )


def _steps_or_duration(value: object) -> int | str:
    if isinstance(value, str) and parse_duration(value) > 0:
        return value
    if type(value) is int and value > 0:
        return value
    raise ValueError("is neither a number of steps nor a duration such as 5m")


def _patterns(value: object) -> object:
    return (value,) if isinstance(value, str) else value


Count = Annotated[int, Strict(), Field(gt=0)]
CountOrNone = Annotated[int, Strict(), Field(ge=0)]
Seed = Annotated[int, Strict(), Field(ge=0, lt=2**32)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
Interval = Annotated[
    int | str,
    BeforeValidator(_steps_or_duration),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, DURATION_SCHEMA]}),
]
"""A number of steps, or a duration."""
Paths = Annotated[
    tuple[str, ...],
    BeforeValidator(_patterns),
    Field(min_length=1),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}, "minItems": 1},
            ]
        }
    ),
]


class ModelConfig(TrainingSection):
    """The shape of the decoder. A head has hidden_size / num_heads dimensions."""

    hidden_size: Count
    """Width of the residual stream."""
    num_layers: Count
    """Number of decoder blocks."""
    num_heads: Count
    """Query heads of each attention layer."""
    num_kv_heads: Count = Field(default_factory=lambda data: data.get("num_heads", 1))
    """Key/value heads, which query heads share in groups. Default: num_heads."""
    mlp_size: Count = Field(default_factory=lambda data: _mlp_size(data.get("hidden_size", 1)))
    """Width of the MLP. Default: 8/3 x hidden_size, rounded up to a multiple of 32."""
    vocab_size: Count = 264  # the tokenizer's 257, up to a multiple of 8
    """Rows of the embedding: at least the number of tokens of the data."""
    dropout: Fraction = 0.0
    """Share of activations that training drops."""
    tie_embeddings: bool = True
    """Whether the output layer uses the weights of the embedding."""
    rope_theta: Positive = 10_000.0
    """Base of the rotary position embeddings."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the activations; parameters are float32."""

    @property
    def head_size(self) -> int:
        """Dimensions of one attention head."""
        return self.hidden_size // self.num_heads


def _mlp_size(hidden_size: int) -> int:
    """Three matrices with as many weights as the usual two of 4 x hidden, in multiples of 32."""
    return -(-8 * hidden_size // 3 // 32) * 32


class _Optimizer(TrainingSection):
    """What every optimizer has: the learning rate warms up linearly, then follows a cosine."""

    learning_rate: Positive
    """The highest learning rate, reached at the end of the warm-up."""
    warmup_steps: CountOrNone = 0
    """Steps over which the learning rate rises from zero."""
    final_learning_rate_fraction: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Learning rate at the last step, as a share of learning_rate."""
    clip_norm: Positive = 1.0
    """Gradients with a larger global norm are scaled down to it."""


class AdamW(_Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""

    name: Literal["adamw"]
    """Which optimizer this is."""
    b1: Fraction = 0.9
    """Decay of the mean of gradients."""
    b2: Fraction = 0.95
    """Decay of the mean of squared gradients."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    """Weight decay, multiplied by the learning rate."""


class Lion(_Optimizer):
    """The sign of an interpolated momentum (Chen et al., 2023): half of Adam's memory."""

    name: Literal["lion"]
    """Which optimizer this is."""
    b1: Fraction = 0.9
    """Share of the momentum in the update."""
    b2: Fraction = 0.99
    """Decay of the momentum."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    """Weight decay, multiplied by the learning rate."""


class Adafactor(_Optimizer):
    """Second moments kept by row and column only (Shazeer and Stern, 2018)."""

    name: Literal["adafactor"]
    """Which optimizer this is."""


class Sgd(_Optimizer):
    """Stochastic gradient descent with momentum."""

    name: Literal["sgd"]
    """Which optimizer this is."""
    momentum: Fraction = 0.9
    """Decay of the sum of gradients."""


OptimizerConfig = Annotated[AdamW | Lion | Adafactor | Sgd, Field(discriminator="name")]


class LoopConfig(TrainingSection):
    """How long to train, and how much at once. The global batch is the same on every rung."""

    max_steps: Count
    """Optimizer steps after which the phase is complete."""
    global_batch_size: Count
    """Sequences in an optimizer step, over all devices."""
    micro_batch_size: Count | None = None
    """The most sequences that one device holds at a time; gradients are accumulated over the rest.
    Default: a device's share of the global batch on the full rung."""
    fsdp: Count = 1
    """Number of devices over which parameters are sharded."""
    max_inflight_computations: Count = 2
    """Steps that may be queued on the devices."""
    log_every: Count = 10
    """Steps between two lines with the loss."""
    skip_bad_batches: CountOrNone = 0
    """How many batches may be passed over because they gave NaN or Inf twice."""


class SnapshotConfig(TrainingSection):
    """Snapshots of the whole state in memory, for a restart without the checkpoint."""

    every: Count
    """Steps between two snapshots."""


class CheckpointSchedule(TrainingSection):
    """When our trainer saves a checkpoint, and how many it keeps."""

    every: Interval = 100
    """Steps between two checkpoints, or a duration such as 5m."""
    keep: Count = 3
    """How many of this job's own checkpoints stay."""
    snapshot: SnapshotConfig | None = None
    """Snapshots in memory. Default: none."""

    @property
    def every_seconds(self) -> float | None:
        """The seconds between checkpoints; None where `every` counts steps."""
        return parse_duration(self.every) if isinstance(self.every, str) else None


class DataloaderConfig(TrainingSection):
    """Text files, or JSONL files (by their suffix)."""

    paths: Paths
    """Files and globs; `stdlib` stands for the sources of Python's own library."""
    sequence_length: Count = 128
    """Tokens in a sequence."""
    text_field: str = "text"
    """Field of a JSONL record that holds the text."""
    tokens_field: str | None = None
    """Field of a JSONL record that holds token ids, which are used as they stand."""


class ValidationConfig(TrainingSection):
    """The mean loss of the first batches of a dataloader, every so often."""

    every: Count
    """Steps between two validations."""
    steps: Count
    """Batches in a validation."""
    dataloader: DataloaderConfig
    """What is validated on."""


class FitConfig(TrainingSection):
    """What the model is trained on, and what it is measured on."""

    train_dataloader: DataloaderConfig
    """What is trained on."""
    validation: ValidationConfig | None = None
    """Default: no validation."""


class Elasticity(StrEnum):
    """How far a run on fewer devices computes the same."""

    ROUNDING = "rounding"
    """Up to rounding."""
    BITWISE = "bitwise"
    """To the bit: micro-batches are of exactly `loop.micro_batch_size` on every rung."""


class DeterminismConfig(TrainingSection):
    """How far a run computes the same on another number of devices."""

    elastic: Elasticity = Elasticity.ROUNDING
    """`rounding`: up to rounding; `bitwise`: to the bit, with micro-batches of exactly
    loop.micro_batch_size sequences on every rung."""


class Load(StrEnum):
    """How much of another phase's checkpoint a phase starts from."""

    PARAMS = "params"
    """The parameters alone."""
    ALL = "all"
    """The optimizer's state, too."""
