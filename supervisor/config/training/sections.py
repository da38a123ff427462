"""The sections of trainer.yaml that our trainer reads, with their defaults."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    WithJsonSchema,
    model_validator,
)

from supervisor.config.problems import shown
from supervisor.config.quantities import POSITIVE_DURATION_SCHEMA, parse_duration
from supervisor.config.schema_clauses import absent, given, when, with_clauses
from supervisor.config.training.pretrained import PretrainedError, read_shape

END_OF_DOCUMENT = 256
"""The only token of our tokenizer that is no byte."""
TOKENIZER = "tokenizer.json"
"""The file of another tokenizer, which the library `tokenizers` reads."""
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
Folder = Annotated[str, AfterValidator(lambda path: str(Path(path).expanduser().absolute()))]
"""A folder, as an absolute path: the job goes on from any working directory."""
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


class RopeScaling(TrainingSection):
    """How the rotary embeddings of Llama 3 are stretched for long texts: slow rotations are divided
    by `factor`, fast ones are not, and those between are interpolated."""

    factor: Positive
    """Divisor of the frequencies of slow rotations."""
    low_freq_factor: Positive
    """Rotations with fewer turns than this in the original length are slow."""
    high_freq_factor: Positive
    """Rotations with more turns than this in the original length are fast."""
    original_max_position_embeddings: Positive
    """The original length, in tokens."""


NOT_IN_PARAMETERS = ("dropout", "dtype", "norm_epsilon", "rope_theta", "rope_scaling")
"""Keys of `model` that say how parameters are used: the next phase may use them in another way."""


class ModelConfig(TrainingSection):
    """The shape of the decoder, or a folder that has it together with the weights."""

    model_config = with_clauses(
        *(
            when(absent("pretrained", ""), given(key, f"Give {key}, or `pretrained`."))
            for key in ("hidden_size", "num_layers", "num_heads")
        ),
        required=(),
    )

    pretrained: Folder | None = None
    """Folder with a model of Hugging Face: `config.json` (of type llama or qwen3), and weights in
    `.safetensors` files. It gives the shape, and the weights of step 0. Default: the keys below
    give the shape, and init.seed the weights."""
    hidden_size: Count
    """Width of the residual stream. Default: that of `pretrained`; required without it."""
    num_layers: Count
    """Number of decoder blocks. Default: that of `pretrained`; required without it."""
    num_heads: Count
    """Query heads of each attention layer. Default: that of `pretrained`; required without it."""
    num_kv_heads: Count = Field(default_factory=lambda data: data.get("num_heads", 1))
    """Key/value heads. Groups of query heads share them. Default: num_heads."""
    head_size: Count = Field(default_factory=lambda data: _head_size(data))
    """Dimensions of an attention head. Default: hidden_size / num_heads."""
    mlp_size: Count = Field(default_factory=lambda data: _mlp_size(data.get("hidden_size", 1)))
    """Width of the MLP. Default: 8/3 x hidden_size, rounded up to a multiple of 32."""
    vocab_size: Count = 264  # the tokenizer's 257, rounded up to a multiple of 8
    """Rows of the embedding: more than the largest token id in the data."""
    dropout: Fraction = 0.0
    """Share of the activations that dropout sets to zero in training."""
    tie_embeddings: bool = True
    """Whether the output layer uses the weights of the embedding."""
    qk_norm: bool = False
    """Whether the queries and keys of each head are normalised, as in Qwen3."""
    norm_epsilon: Positive = 1e-6
    """What RMSNorm adds to the mean of squares."""
    rope_theta: Positive = 10_000.0
    """Base of the rotary position embeddings."""
    rope_scaling: RopeScaling | None = None
    """How they are stretched for long texts, as in Llama 3. Default: they are not."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the activations; parameters are float32."""

    @model_validator(mode="before")
    @classmethod
    def _read_pretrained(cls, data: Any) -> Any:
        """Fill in what the folder says. A key that is given besides must say the same."""
        folder = data.get("pretrained") if isinstance(data, dict) else None
        if not isinstance(folder, str):
            return data
        shape = read_shape(Path(folder).expanduser())
        for key, value in shape.items():
            if data.get(key) is not None and data[key] != value:
                raise PretrainedError(
                    f"{key} is {shown(data[key])} beside pretrained, but {folder}/config.json says "
                    f"{shown(value)}: leave {key} out"
                )
        return {**data, **shape}

    @property
    def folder(self) -> Path | None:
        """The folder with the pretrained model; None: there is none."""
        return None if self.pretrained is None else Path(self.pretrained)

    @property
    def shape(self) -> dict[str, Any]:
        """What decides the parameters and how they are used: all keys but the folder, which can be
        moved."""
        return self.model_dump(mode="json", exclude={"pretrained"})

    @property
    def parameters(self) -> dict[str, Any]:
        """What decides the parameters: a phase that starts from another one has the same."""
        return {key: value for key, value in self.shape.items() if key not in NOT_IN_PARAMETERS}


def _head_size(data: dict[str, Any]) -> int:
    """Returns the share of a head in the residual stream, at least 1."""
    return max(1, int(data.get("hidden_size", 1)) // int(data.get("num_heads", 1)))


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
    base: Literal["float32", "int8"] = "float32"
    """Type of the frozen weights of all linear layers. `int8` needs a quarter of the memory: each
    output channel has a scale of its own."""

    @property
    def scale(self) -> float:
        """The factor of what an adapter adds."""
        return self.alpha / self.rank


class DpoConfig(TrainingSection):
    """Learning from preferences (DPO; Rafailov et al., 2023), for data with `chosen_field`."""

    beta: Positive = 0.1
    """How strongly the model is held to its reference, the model as it was at step 0."""


_FUNCTION_PATH = r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*"


def _function_path(value: str) -> str:
    if not re.fullmatch(_FUNCTION_PATH, value):
        raise ValueError("is not of the form module:function, such as rewards:exact")
    return value


FunctionPath = Annotated[
    str,
    AfterValidator(_function_path),
    WithJsonSchema({"type": "string", "pattern": f"^{_FUNCTION_PATH}$"}),
]
"""Where a function of the user is imported from."""


class Importance(StrEnum):
    """Of what the probability ratio of a GRPO loss is: new policy over the one that sampled."""

    TOKEN = "token"
    """Of each token by itself (GRPO)."""
    SEQUENCE = "sequence"
    """Of the whole completion: the geometric mean over its tokens (GSPO)."""
    SEQUENCE_TOKEN = "sequence_token"
    """The value of `sequence`, with the gradient of each token by itself (GSPO-token)."""


class RolloutConfig(TrainingSection):
    """Devices that make completions (GRPO), and do not train: a mesh of their own."""

    devices: Count
    """How many of the devices of init.devices: the last ones. The others train. Both numbers must
    divide loop.global_batch_size."""


class GrpoConfig(TrainingSection):
    """Learning from rewards (GRPO; Shao et al., 2024; GSPO; Zheng et al., 2025): the model answers
    each prompt several times, and what is rewarded more than the rest of its group becomes more
    likely."""

    reward: FunctionPath
    """`module:function` of the function that rewards completions. The module is looked for among
    the installed packages, then in the folder where the job is started."""
    completion_length: Count
    """The most tokens of a completion, with its end. A prompt has what is left of
    sequence_length."""
    group_size: Annotated[int, Strict(), Field(ge=2)] = 8
    """Completions of each prompt. It divides loop.global_batch_size, which counts completions."""
    num_iterations: Count = 1
    """Optimizer steps on each batch of completions."""
    importance: Importance = Importance.TOKEN
    """Of what the probability ratio is: of each `token` (GRPO), of the whole `sequence` (GSPO), or
    `sequence_token` (GSPO-token)."""
    clip: Positive = 0.2
    """How far below 1 the probability ratio still counts. GSPO needs far less, such as 3e-4."""
    clip_high: Positive = Field(default_factory=lambda data: data.get("clip", 0.2))
    """How far above 1 the probability ratio still counts. Default: clip."""
    beta: Annotated[float, Field(ge=0)] = 0.04
    """How strongly the model is held to its reference, the model as it was at step 0; 0: not at
    all, and no reference is kept."""
    temperature: Positive = 1.0
    """The logits are divided by it, where completions are sampled and where they are learned."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample only among the likeliest tokens whose probabilities add up to this."""
    rollout: RolloutConfig | None = None
    """Devices of their own for completions. Default: all devices make them, and train."""


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


class Remat(StrEnum):
    """Which activations a backward pass computes again, to save memory."""

    NONE = "none"
    """None: all are kept."""
    DOTS = "dots"
    """All but the products with weights."""
    BLOCKS = "blocks"
    """All inside a block: its input alone is kept."""


class LoopConfig(TrainingSection):
    """Number of steps, batch sizes and sharding. The global batch is the same on every rung."""

    max_steps: Count | None = None
    """Optimizer steps after which the phase is complete (required to train). A phase that only
    evaluates has the batches of its validation as steps."""
    global_batch_size: Count
    """Sequences in an optimizer step, over all devices."""
    micro_batch_size: Count | None = None
    """The most sequences that one device computes on at a time. If its share of the global batch is
    larger, the device accumulates gradients. Default: the share of a device on the full rung."""
    fsdp: Count = 1
    """Number of devices over which parameters are sharded."""
    remat: Remat = Remat.NONE
    """Which activations the backward pass computes again instead of keeping them: `dots` all but
    products with weights, `blocks` all but the inputs of blocks. It takes less memory and more
    time; on CPU XLA undoes it."""
    scan_layers: bool = False
    """Whether the blocks of the decoder are one loop in the program, and not a part each: it is
    smaller, and traced sooner. On CPU it compiles no sooner. It needs a second copy of the blocks'
    parameters on the devices, and results differ by rounding. Checkpoints are the same. Sampling
    (GRPO) does not change."""
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
    and the reference of DPO and GRPO. If not, a restart makes them again, from `start_from` or the
    seed, and refuses them if they are not the same. Not for a command."""
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
    """Field of a JSONL record that holds a prompt, where `completion_field`, `chosen_field` or
    `init.grpo` is given: it is read, but not learned. Default: the records have none."""
    completion_field: str | None = None
    """Field of a JSONL record that holds a completion: only its text, and the end of the document
    after it, are learned. It takes the place of text_field. Default: all text is learned."""
    messages_field: str | None = None
    """Field of a JSONL record that holds a chat: a list of messages, each with a `role` and a
    `content`. The chat template of the tokenizer's folder makes text of it, and the messages of the
    role `assistant` are learned. With `init.grpo` the chat is a prompt: the model answers its last
    question itself, and messages of `assistant` after that are left out. Default: the records have
    none."""
    packing: Literal["stream", "examples"] | None = None
    """How sequences are made of examples. `stream`: one follows the other, and a sequence ends in
    the middle of one. `examples`: a sequence holds whole examples, and none attends to another.
    Default: examples for messages_field, else stream."""
    chosen_field: str | None = None
    """Field of a JSONL record that holds the better of two completions, to learn preferences (DPO):
    each record is a pair. Default: the records are no pairs."""
    rejected_field: str | None = None
    """Field of a JSONL record that holds the worse of two completions, beside `chosen_field`.
    Default: the records are no pairs."""

    @property
    def reads_records(self) -> bool:
        """Whether each file is JSONL, whatever its suffix."""
        fields = (
            self.tokens_field,
            self.completion_field,
            self.messages_field,
            self.chosen_field,
            self.prompt_field,
        )
        return any(field is not None for field in fields)

    @property
    def has_prompts_alone(self) -> bool:
        """Whether a record is a prompt, whose completions the model makes (GRPO)."""
        learned = self.completion_field or self.chosen_field
        return self.prompt_field is not None and learned is None

    def asks(self, grpo: GrpoConfig | None) -> bool:
        """Whether the model itself answers the records (GRPO): prompts alone, or chats."""
        return grpo is not None and (self.has_prompts_alone or self.messages_field is not None)

    @property
    def is_stream(self) -> bool:
        """Whether a sequence is a window of all tokens, one record after the other."""
        has_rows = self.packs_examples or self.chosen_field is not None
        return not has_rows and not self.has_prompts_alone

    @property
    def packs_examples(self) -> bool:
        """Whether a sequence holds whole examples of which none attends to another."""
        default = "stream" if self.messages_field is None else "examples"
        return (self.packing or default) == "examples"


class ValidationConfig(TrainingSection):
    """Measures the mean loss of the first batches of a dataloader at regular intervals."""

    every: Count | None = None
    """Steps between two validations (required beside train_dataloader)."""
    steps: Count
    """Batches in a validation."""
    dataloader: DataloaderConfig
    """Data to validate on."""


class FitConfig(TrainingSection):
    """The data that our trainer trains on and validates on."""

    train_dataloader: DataloaderConfig | None = None
    """Data to train on. Without it the phase only evaluates: it needs `validation`, and no
    optimizer."""
    validation: ValidationConfig | None = None
    """Validation during training, or all that the phase does. Default: none."""

    @model_validator(mode="after")
    def _check_that_there_is_work(self) -> Self:
        if self.train_dataloader is None and self.validation is None:
            raise ValueError("needs train_dataloader, to train, or validation, to evaluate alone")
        return self

    @property
    def decisive(self) -> DataloaderConfig:
        """The data whose form decides what is computed: those to train on, else to evaluate."""
        if self.train_dataloader is not None:
            return self.train_dataloader
        assert self.validation is not None
        return self.validation.dataloader


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


class SdcConfig(TrainingSection):
    """Search for silent data corruption: devices that compute wrongly without an error."""

    every: Count
    """Steps between two checks. A check computes its step once more with the devices in another
    order, and compares every bit."""


class Load(StrEnum):
    """What a phase loads from the checkpoint of another phase."""

    PARAMS = "params"
    """The parameters alone."""
    ALL = "all"
    """The parameters and the state of the optimizer."""
