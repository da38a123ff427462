"""Reads a resolved phase of our trainer, as params.yaml has it.

Keys that only the supervisor uses (`model_dir`, `devices`, `autorestart`, `faults`, ...) are
ignored here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, PlainSerializer, PlainValidator, ValidationError

from supervisor.config.problems import ConfigError, Location, Problem, key_path, shown
from supervisor.config.training.data_files import matching_files
from supervisor.config.training.linear_layers import adapted_layers, linear_layers
from supervisor.config.training.sections import (
    TOKENIZER,
    VOCABULARY_SIZE,
    CheckpointSchedule,
    DataloaderConfig,
    DeterminismConfig,
    DpoConfig,
    Elasticity,
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
    TrainingSection,
)
from supervisor.config.violations import violations
from supervisor.protocol.location import Uri

_PATTERN = frozenset("*?[")


def _place(value: object) -> Path | Uri:
    if isinstance(value, Path | Uri):
        return value
    if not isinstance(value, str):
        raise ValueError("must be a directory, or a URI such as gs://BUCKET/PATH")
    uri = Uri.parse(value)
    if uri is not None and uri.scheme != "gs":
        raise ValueError(
            f"must be on gs:// or a file system, as Orbax cannot save to {uri.scheme}://: use a "
            "bucket of gs://, or a mount of this one"
        )
    if uri is not None and not _PATTERN.isdisjoint(uri.path):
        raise ValueError("must not hold *, ? or [: what removes old steps takes them for patterns")
    return Path(value) if uri is None else uri


Place = Annotated[Path | Uri, PlainValidator(_place), PlainSerializer(str, return_type=str)]


class _Shared(BaseModel):
    """A mapping of the file in which the supervisor has keys too, which are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)


class CheckpointConfig(CheckpointSchedule):
    """When a checkpoint is saved, where, and how many are kept."""

    directory: Place


class StartPoint(TrainingSection):
    """The newest checkpoint of another phase, from which this phase starts. The supervisor has
    resolved its directory."""

    directory: Place
    load: Load = Load.PARAMS


class InitConfig(_Shared):
    """`trainer.init`: everything except the data."""

    seed: Seed = 0
    data_shuffle_seed: Seed = 1
    model: ModelConfig
    tokenizer: Folder | None = None
    lora: LoraConfig | None = None
    dpo: DpoConfig | None = None
    grpo: GrpoConfig | None = None
    optimizer: OptimizerConfig | None = None
    """None: the phase only evaluates."""
    loop: LoopConfig
    checkpoint: CheckpointConfig
    determinism: DeterminismConfig = DeterminismConfig()
    sdc: SdcConfig | None = None
    metrics: MetricsConfig = MetricsConfig()

    @property
    def tokenizer_folder(self) -> Path | None:
        """The folder with the tokenizer; None: it is ours, of bytes."""
        return self.model.folder if self.tokenizer is None else Path(self.tokenizer)

    @property
    def num_rollout_devices(self) -> int:
        """The number of devices that make completions and do not train; 0: those that train make
        them."""
        rollout = self.grpo.rollout if self.grpo is not None else None
        return rollout.devices if rollout is not None else 0

    @property
    def is_bitwise(self) -> bool:
        """True if a run must compute the same bits on any number of devices."""
        return self.determinism.elastic is Elasticity.BITWISE


class TrainerConfig(_Shared):
    """`trainer`: one phase."""

    name: str = "phase1"
    init: InitConfig
    fit: FitConfig
    start_from: StartPoint | None = None

    @property
    def max_steps(self) -> int:
        """The last step of the phase; if it only evaluates, a step is a batch."""
        if self.init.loop.max_steps is not None:
            return self.init.loop.max_steps
        assert self.fit.validation is not None
        return self.fit.validation.steps


def parse(mapping: Mapping[str, Any]) -> TrainerConfig:
    """Returns the phase in `mapping`, `{"trainer": {...}}`.

    Raises:
        ConfigError: the phase has problems; the error holds all of them.
    """
    config, found = parse_with_problems(mapping.get("trainer"))
    if config is None or found:
        raise config_error(found)
    return config


def config_error(problems: Iterable[tuple[Location, str]]) -> ConfigError:
    """Returns the error for these problems of a phase: pairs of key and message."""
    return ConfigError(
        [Problem("", key_path(("trainer", *where)), message) for where, message in problems]
    )


def parse_with_problems(trainer: Any) -> tuple[TrainerConfig | None, list[tuple[Location, str]]]:
    """Returns the phase in `trainer` and its problems: pairs of key and message.

    The phase is None if `trainer` does not fit the schema.
    """
    try:
        config = TrainerConfig.model_validate(trainer)
    except ValidationError as error:
        return None, list(violations(error, TrainerConfig, trainer))
    return config, list(_contradictions(config))


def _contradictions(config: TrainerConfig) -> Iterator[tuple[Location, str]]:
    """Yields the problems that concern several keys, or files: the key to change, and the
    message."""
    init = config.init
    yield from _evaluation_problems(config)
    yield from _model_problems(config)
    yield from _training_problems(config)
    if init.loop.fsdp != 1 and init.is_bitwise:
        yield (
            ("init", "loop", "fsdp"),
            f"is {init.loop.fsdp}, but must be 1 for determinism.elastic: bitwise, which computes "
            "on the whole state on every device",
        )
    if init.sdc is not None and not init.is_bitwise:
        yield (
            ("init", "sdc"),
            "needs init.determinism: {elastic: bitwise}: only then devices in another order "
            f"compute the same bits (determinism.elastic is {init.determinism.elastic})",
        )
    if init.metrics.tensorboard and find_spec("tensorboardX") is None:
        yield (
            ("init", "metrics", "tensorboard"),
            "needs tensorboardX here: pip install '.[tensorboard]' in a checkout (value true)",
        )
    if init.checkpoint.keep_best and config.fit.validation is None:
        yield (
            ("init", "checkpoint", "keep_best"),
            "needs fit.validation, which measures what is best (value true)",
        )
    yield from _lora_problems(config)
    yield from _unusable_directory(init.checkpoint.directory)
    yield from _preference_problems(config)
    yield from _reward_problems(config)
    yield from _tokenizer_problems(config)
    for where, loader in loaders(config.fit):
        yield from _loader_problems(loader, *where)
        yield from _prompt_problems(loader, init.grpo, *where)


def _model_problems(config: TrainerConfig) -> Iterator[tuple[Location, str]]:
    model = config.init.model
    if model.head_size % 2 and model.head_size != model.hidden_size // model.num_heads:
        yield (
            ("init", "model", "head_size"),
            f"is {model.head_size}, but must be even for rotary embeddings",
        )
    elif model.head_size == model.hidden_size // model.num_heads and (
        model.hidden_size % (2 * model.num_heads)
    ):
        yield (
            ("init", "model", "num_heads"),
            f"is {model.num_heads}, but hidden_size {model.hidden_size} must be a multiple of 2 x "
            "num_heads: rotary embeddings need heads of an even size",
        )
    if model.num_heads % model.num_kv_heads:
        yield (
            ("init", "model", "num_kv_heads"),
            f"is {model.num_kv_heads}, but must divide num_heads, {model.num_heads}: query heads "
            "share key/value heads in groups",
        )
    reads_bytes = config.init.tokenizer_folder is None and _reads_text(config.fit)
    if model.vocab_size < VOCABULARY_SIZE and reads_bytes:
        yield (
            ("init", "model", "vocab_size"),
            f"is {model.vocab_size}, but must be at least {VOCABULARY_SIZE}, the tokenizer's",
        )


def _training_problems(config: TrainerConfig) -> Iterator[tuple[Location, str]]:
    """Yields what a phase that trains lacks, or has too large."""
    loop, optimizer, validation = config.init.loop, config.init.optimizer, config.fit.validation
    if config.fit.train_dataloader is None:
        return
    required = "is required beside fit.train_dataloader"
    if optimizer is None:
        yield ("init", "optimizer"), required
    if loop.max_steps is None:
        yield ("init", "loop", "max_steps"), required
    if validation is not None and validation.every is None:
        yield ("fit", "validation", "every"), required
    if optimizer is None or loop.max_steps is None:
        return
    if optimizer.warmup_steps > loop.max_steps:
        yield (
            ("init", "optimizer", "warmup_steps"),
            f"is {optimizer.warmup_steps}, but must not exceed loop.max_steps, {loop.max_steps}",
        )


def _evaluation_problems(config: TrainerConfig) -> Iterator[tuple[Location, str]]:
    """Yields what contradicts a phase that only evaluates."""
    init, validation = config.init, config.fit.validation
    if config.fit.train_dataloader is not None or validation is None:
        return
    alone = "without fit.train_dataloader the phase only evaluates"
    given = {
        ("init", "optimizer"): init.optimizer,
        ("init", "lora"): init.lora,
        ("init", "dpo"): init.dpo,
        ("init", "grpo"): None if validation.dataloader.asks(init.grpo) else init.grpo,
        ("init", "grpo", "rollout"): init.grpo and init.grpo.rollout,
        ("init", "sdc"): init.sdc,
        ("init", "loop", "max_steps"): init.loop.max_steps,
        ("init", "checkpoint", "snapshot"): init.checkpoint.snapshot,
        ("init", "checkpoint", "keep_best"): init.checkpoint.keep_best or None,
        ("fit", "validation", "every"): validation.every,
        ("fit", "validation", "dataloader", "chosen_field"): validation.dataloader.chosen_field,
    }
    for key, value in given.items():
        if value is not None:
            yield key, f"is for training, and {alone}: leave it out, or give train_dataloader"
    if config.start_from is not None and config.start_from.load is Load.ALL:
        yield ("start_from", "load"), f"is all, but {alone}, and has no optimizer: use params"


def _lora_problems(config: TrainerConfig) -> Iterator[tuple[Location, str]]:
    lora, model = config.init.lora, config.init.model
    if lora is None:
        return
    if not adapted_layers(model, lora):
        yield (
            ("init", "lora", "pattern"),
            f"is found in no linear layer's path (value {shown(lora.pattern)}); there are "
            f"{', '.join(linear_layers(model.model_copy(update={'num_layers': 1})))}",
        )
    if lora.rank > model.hidden_size:
        yield (
            ("init", "lora", "rank"),
            f"is {lora.rank}, but must not exceed init.model.hidden_size, {model.hidden_size}: no "
            "layer has a larger rank, so more trains nothing more",
        )
    if config.start_from is not None and config.start_from.load is Load.ALL:
        yield (
            ("start_from", "load"),
            "is all, but the optimizer of another phase does not fit the adapters of init.lora, "
            "which are new: use params",
        )


def _preference_problems(config: TrainerConfig) -> Iterator[tuple[Location, str]]:
    validation = config.fit.validation
    training = config.fit.train_dataloader
    if training is None or training.chosen_field is not None:
        return
    if config.init.dpo is not None:
        yield (
            ("init", "dpo"),
            "is for learning preferences: it needs fit.train_dataloader.chosen_field",
        )
    if validation is not None and validation.dataloader.chosen_field is not None:
        yield (
            ("fit", "validation", "dataloader", "chosen_field"),
            "needs fit.train_dataloader.chosen_field, too: only then there is a reference",
        )


def _reward_problems(config: TrainerConfig) -> Iterator[tuple[Location, str]]:
    grpo, loader = config.init.grpo, config.fit.train_dataloader
    if grpo is None or loader is None:
        return
    batch = config.init.loop.global_batch_size
    if batch % grpo.group_size:
        yield (
            ("init", "grpo", "group_size"),
            f"is {grpo.group_size}, but must divide loop.global_batch_size, {batch}: a batch is "
            "whole groups of completions",
        )
    yield from rollout_problems(config.init)
    if not loader.asks(grpo):
        given = loader.completion_field or loader.chosen_field
        key = "completion_field" if loader.completion_field is not None else "chosen_field"
        yield (
            ("fit", "train_dataloader", "prompt_field" if given is None else key),
            "must be given for init.grpo: it names the field with the prompt (or messages_field, "
            "with a chat)"
            if given is None
            else "is given beside init.grpo, where the model makes the completions itself: remove "
            "one of them",
        )


def rollout_problems(init: InitConfig) -> Iterator[tuple[Location, str]]:
    """Yields the problem of a number of rollout devices among which no batch can be divided."""
    apart, batch = init.num_rollout_devices, init.loop.global_batch_size
    micro = (init.is_bitwise and init.loop.micro_batch_size) or 1
    if apart and (batch % apart or batch // apart % micro):
        of_what = f" / micro_batch_size, {batch // micro}" if micro > 1 else f", {batch}"
        yield (
            ("init", "grpo", "rollout", "devices"),
            f"is {apart}, but must divide loop.global_batch_size{of_what}: these devices share the "
            "completions of a batch equally",
        )


def _prompt_problems(
    loader: DataloaderConfig, grpo: GrpoConfig | None, *section: str
) -> Iterator[tuple[Location, str]]:
    where = ("fit", *section)
    if not loader.has_prompts_alone and not loader.asks(grpo):
        return
    if grpo is None:
        yield (
            (*where, "prompt_field"),
            "needs completion_field or chosen_field, which names what is learned after the prompt; "
            "or init.grpo, which makes completions",
        )
    elif loader.sequence_length <= grpo.completion_length:
        yield (
            (*where, "sequence_length"),
            f"is {loader.sequence_length}, but must be more than init.grpo.completion_length, "
            f"{grpo.completion_length}: the prompt has the rest",
        )


def loaders(fit: FitConfig) -> Iterator[tuple[tuple[str, ...], DataloaderConfig]]:
    """Yields each dataloader and where it is."""
    if fit.train_dataloader is not None:
        yield ("train_dataloader",), fit.train_dataloader
    if fit.validation is not None:
        yield ("validation", "dataloader"), fit.validation.dataloader


def _tokenizer_problems(config: TrainerConfig) -> Iterator[tuple[Location, str]]:
    init, fit = config.init, config.fit
    given = ("init", "tokenizer") if init.tokenizer is not None else ("init", "model", "pretrained")
    folder = init.tokenizer_folder
    chats = [loader for _, loader in loaders(fit) if loader.messages_field is not None]
    if folder is None and chats:
        yield (
            ("init", "tokenizer"),
            "is required for messages_field: name a folder with a tokenizer and a chat template "
            "(model.pretrained is the default)",
        )
    if folder is None or not _reads_text(fit):
        return
    if not (folder / TOKENIZER).is_file():
        yield (
            given,
            f"has no {TOKENIZER}: name the folder of a tokenizer in init.tokenizer "
            f"(value {shown(str(folder))})",
        )
    for module in ("tokenizers", *(("jinja2",) if chats else ())):
        if find_spec(module) is None:
            yield given, f"needs {module} here: pip install '.[models]' in a checkout"


def _reads_text(fit: FitConfig) -> bool:
    """True if a dataloader reads text, which a tokenizer encodes."""
    return any(loader.tokens_field is None for _, loader in loaders(fit))


def _unusable_directory(directory: Path | Uri) -> Iterator[tuple[Location, str]]:
    where = ("init", "checkpoint", "directory")
    if isinstance(directory, Path) and not directory.is_absolute():
        yield where, f"must be an absolute path (value {shown(str(directory))})"
    if isinstance(directory, Uri) and find_spec("gcsfs") is None:
        value = shown(str(directory))
        yield where, f"needs gcsfs here: pip install '.[gcs]' in a checkout (value {value})"


def _loader_problems(loader: DataloaderConfig, *section: str) -> Iterator[tuple[Location, str]]:
    where = ("fit", *section)
    texts = ("completion_field", "chosen_field", "prompt_field")
    given = next((key for key in texts if getattr(loader, key) is not None), None)
    if given is not None and loader.tokens_field is not None:
        yield (
            (*where, "tokens_field"),
            f"is given beside {given}: the records hold either token ids or texts",
        )
    if (loader.chosen_field is None) != (loader.rejected_field is None):
        lacking = "chosen_field" if loader.chosen_field is None else "rejected_field"
        given = "rejected_field" if loader.chosen_field is None else "chosen_field"
        yield (*where, given), f"needs {lacking}: a pair has both completions"
    others = ("prompt_field", "completion_field", "chosen_field", "tokens_field")
    for other in others if loader.messages_field is not None else ():
        if getattr(loader, other) is not None:
            yield (
                (*where, other),
                "is given beside messages_field: the records hold either chats or something else",
            )
    has_examples = loader.messages_field is not None or loader.completion_field is not None
    if loader.packing == "examples" and not has_examples:
        yield (
            (*where, "packing"),
            "is examples, which needs completion_field or messages_field: pairs are never packed, "
            "and other text has no examples",
        )
    if loader.packing == "stream" and loader.messages_field is not None:
        yield (*where, "packing"), "is stream, but chats are packed whole: leave it out"
    if loader.chosen_field is not None and loader.completion_field is not None:
        yield (
            (*where, "completion_field"),
            "is given beside chosen_field: the records hold either one completion or a pair",
        )
    yield from _unmatched(loader, *section)


def _unmatched(loader: DataloaderConfig, *section: str) -> Iterator[tuple[Location, str]]:
    for path in loader.paths:
        if matching_files(path):
            continue
        told = "matches no file here: give an existing path, a glob that matches, or stdlib"
        if Path(path).is_dir():
            files = shown(str(Path(path) / "*.jsonl"))
            told = f"is a folder: name its files, for example by the glob {files}"
        yield ("fit", *section, "paths"), f"{told} (value {shown(path)})"
