"""The sections of trainer.yaml that our trainer reads, with their defaults."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    WithJsonSchema,
)

from supervisor.config.quantities import POSITIVE_DURATION_SCHEMA, parse_duration

END_OF_DOCUMENT = 256
"""The only token of our tokenizer that is no byte."""
VOCABULARY_SIZE = 257
"""The number of tokens of our tokenizer: every byte, and the end of a document."""


class TrainingSection(BaseModel):
    """A mapping that only the trainer reads. Unknown keys are errors. Unlike `fields.Section` it
    accepts numbers written as text, because PyYAML reads params.yaml, and takes 3e-4 for text."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True, strict=False
    )


AUTO = "auto"
"""The value of `checkpoint.every` with which the trainer chooses the time between checkpoints."""


def _steps_or_duration(value: object) -> int | str:
    if value == AUTO:
        return AUTO
    if isinstance(value, str) and parse_duration(value) > 0:
        return value
    if type(value) is int and value > 0:
        return value
    raise ValueError("is neither auto nor a number of steps nor a duration such as 5m")


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
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                POSITIVE_DURATION_SCHEMA,
                {"const": AUTO},
            ]
        }
    ),
]
"""A number of steps, a duration such as 5m, or `auto`."""
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
    """The shape of the decoder. An attention head has hidden_size / num_heads dimensions."""

    hidden_size: Count
    """Width of the residual stream."""
    num_layers: Count
    """Number of decoder blocks."""
    num_heads: Count
    """Query heads of each attention layer."""
    num_kv_heads: Count = Field(default_factory=lambda data: data.get("num_heads", 1))
    """Key/value heads. Groups of query heads share them. Default: num_heads."""
    mlp_size: Count = Field(default_factory=lambda data: _mlp_size(data.get("hidden_size", 1)))
    """Width of the MLP. Default: 8/3 x hidden_size, rounded up to a multiple of 32."""
    vocab_size: Count = 264  # the tokenizer's 257, rounded up to a multiple of 8
    """Rows of the embedding: more than the largest token id in the data."""
    dropout: Fraction = 0.0
    """Share of the activations that dropout sets to zero in training."""
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
    """Returns 8/3 of `hidden_size`, rounded up to a multiple of 32: three matrices of this width
    have as many weights as the usual two of 4 x hidden_size."""
    return -(-8 * hidden_size // 3 // 32) * 32


def _regular_expression(value: str) -> str:
    try:
        re.compile(value)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"is not a regular expression of Python: {error}") from None
    return value


class LoraConfig(TrainingSection):
    """Low-rank adapters (Hu et al., 2021): the weights of the model are frozen, and small ones that
    are added to linear layers are trained."""

    rank: Count
    """Inner dimension of each adapter; at most model.hidden_size."""
    alpha: Positive = Field(default_factory=lambda data: float(data.get("rank", 1)))
    """What an adapter adds is multiplied by alpha / rank. Default: rank."""
    dropout: Fraction = 0.0
    """Share of an adapter's inputs that dropout sets to zero in training."""
    pattern: Annotated[str, AfterValidator(_regular_expression)] = r"^blocks\."
    """Regular expression of Python: each linear layer in whose path it is found gets an adapter.
    The paths are `blocks.N.attention.query`, `.key`, `.value`, `.output`, `blocks.N.mlp.gate`,
    `.up`, `.down`, and `head` unless embeddings are tied. The default is all but `head`."""

    @property
    def scale(self) -> float:
        """The factor of what an adapter adds."""
        return self.alpha / self.rank


class DpoConfig(TrainingSection):
    """Learning from preferences (DPO; Rafailov et al., 2023), for data with `chosen_field`."""

    beta: Positive = 0.1
    """How strongly the model is held to its reference, the model as it was at step 0."""


class _Optimizer(TrainingSection):
    """The keys of every optimizer. The learning rate rises linearly, then falls along a cosine."""

    learning_rate: Positive
    """The highest learning rate, reached at the end of the warm-up."""
    warmup_steps: CountOrNone = 0
    """Steps over which the learning rate rises from zero."""
    final_learning_rate_fraction: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Learning rate at the last step, as a share of learning_rate."""
    clip_norm: Positive = 1.0
    """Upper bound of the global norm of the gradients; larger gradients are scaled down to it."""


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
    """Updates by the sign of an interpolated momentum (Chen et al., 2023). It needs half of Adam's
    memory."""

    name: Literal["lion"]
    """Which optimizer this is."""
    b1: Fraction = 0.9
    """Share of the momentum in the update."""
    b2: Fraction = 0.99
    """Decay of the momentum."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    """Weight decay, multiplied by the learning rate."""


class Adafactor(_Optimizer):
    """Keeps second moments by row and column only (Shazeer and Stern, 2018)."""

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
    """Number of steps, batch sizes and sharding. The global batch is the same on every rung."""

    max_steps: Count
    """Optimizer steps after which the phase is complete."""
    global_batch_size: Count
    """Sequences in an optimizer step, over all devices."""
    micro_batch_size: Count | None = None
    """The most sequences that one device computes on at a time. If its share of the global batch is
    larger, the device accumulates gradients. Default: the share of a device on the full rung."""
    fsdp: Count = 1
    """Number of devices over which parameters are sharded."""
    max_inflight_computations: Count = 2
    """The most steps that are queued on the devices."""
    log_every: Count = 10
    """Steps between two lines of the log with the loss."""
    skip_bad_batches: CountOrNone = 0
    """The most batches that may be skipped because they gave NaN or Inf twice."""


class MetricsConfig(TrainingSection):
    """What our trainer writes of each step, beside metrics.jsonl."""

    tensorboard: bool = False
    """Whether to write the same numbers for TensorBoard, into {model_dir}/tensorboard/PHASE. Needs
    the extra `tensorboard`."""


class SnapshotConfig(TrainingSection):
    """Snapshots in memory of the whole training state, for restarts from a newer step than the last
    checkpoint."""

    every: Count
    """Steps between two snapshots."""


class CheckpointSchedule(TrainingSection):
    """When our trainer saves a checkpoint, and how many it keeps."""

    every: Interval = 100
    """Steps between two checkpoints; or a duration such as 5m, by the clock of rank 0; or `auto`: a
    duration that follows from what a save costs and how often the job fails."""
    keep: Count = 3
    """How many checkpoints of our trainer are kept; older ones are deleted. Not for a command. The
    one before the last NaN or exception is kept besides, so that it can be replayed."""
    keep_every: Count | None = None
    """Also keep each checkpoint whose step is a multiple of this, for good. Default: none. Not for
    a command."""
    keep_best: bool = False
    """Whether the checkpoint with the lowest validation loss is kept, too. Only a step that is both
    validated and saved can be it. Not for a command."""
    save_frozen: bool = True
    """Whether a checkpoint also holds the weights that training only reads: the base below `lora`,
    and the reference of DPO. If not, a restart makes them again, from `start_from` or the seed, and
    refuses them if they are not the same. Not for a command."""
    snapshot: SnapshotConfig | None = None
    """Snapshots in memory. Default: none."""

    @property
    def every_seconds(self) -> float | None:
        """The seconds between checkpoints; None: `every` is a number of steps, or `auto`."""
        is_duration = isinstance(self.every, str) and not self.is_automatic
        return parse_duration(str(self.every)) if is_duration else None

    @property
    def is_automatic(self) -> bool:
        """Whether the trainer chooses the time between checkpoints."""
        return self.every == AUTO


class DataloaderConfig(TrainingSection):
    """Data files: text files, or JSONL files (with the suffix .jsonl)."""

    paths: Paths
    """Files and globs; `stdlib` stands for the source files of Python's standard library."""
    sequence_length: Count = 128
    """Tokens in a sequence."""
    text_field: str = "text"
    """Field of a JSONL record that holds the text."""
    tokens_field: str | None = None
    """Field of a JSONL record that holds token ids, which are used without a tokenizer. The files
    are then JSONL whatever their suffix. An id outside model.vocab_size ends the job. Default: the
    data is text."""
    prompt_field: str | None = None
    """Field of a JSONL record that holds a prompt, where `completion_field` or `chosen_field` is
    given: it is read, but not learned. Default: the records have none."""
    completion_field: str | None = None
    """Field of a JSONL record that holds a completion: only its text, and the end of the document
    after it, are learned. It takes the place of text_field. Default: all text is learned."""

    chosen_field: str | None = None
    """Field of a JSONL record that holds the better of two completions, to learn preferences (DPO):
    each record is a pair. Default: the records are no pairs."""
    rejected_field: str | None = None
    """Field of a JSONL record that holds the worse of two completions, beside `chosen_field`.
    Default: the records are no pairs."""

    @property
    def reads_records(self) -> bool:
        """Whether each file is JSONL, whatever its suffix."""
        fields = (self.tokens_field, self.completion_field, self.chosen_field)
        return any(field is not None for field in fields)


class ValidationConfig(TrainingSection):
    """Measures the mean loss of the first batches of a dataloader at regular intervals."""

    every: Count
    """Steps between two validations."""
    steps: Count
    """Batches in a validation."""
    dataloader: DataloaderConfig
    """Data to validate on."""


class FitConfig(TrainingSection):
    """The data that our trainer trains on and validates on."""

    train_dataloader: DataloaderConfig
    """Data to train on."""
    validation: ValidationConfig | None = None
    """Validation during training. Default: none."""


class Elasticity(StrEnum):
    """How exactly a run on another number of devices repeats the same numbers."""

    ROUNDING = "rounding"
    """Up to rounding."""
    BITWISE = "bitwise"
    """To the bit: micro-batches have exactly `loop.micro_batch_size` sequences on every rung."""


class DeterminismConfig(TrainingSection):
    """How exactly a run on another number of devices repeats the same numbers."""

    elastic: Elasticity = Elasticity.ROUNDING
    """`rounding`: up to rounding; `bitwise`: to the bit, with micro-batches of exactly
    loop.micro_batch_size sequences on every rung."""


class Load(StrEnum):
    """What a phase loads from the checkpoint of another phase."""

    PARAMS = "params"
    """The parameters alone."""
    ALL = "all"
    """The parameters and the state of the optimizer."""
