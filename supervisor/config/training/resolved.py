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
    VOCABULARY_SIZE,
    CheckpointSchedule,
    DataloaderConfig,
    DeterminismConfig,
    DpoConfig,
    Elasticity,
    FitConfig,
    Load,
    LoopConfig,
    LoraConfig,
    MetricsConfig,
    ModelConfig,
    OptimizerConfig,
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
    lora: LoraConfig | None = None
    dpo: DpoConfig | None = None
    optimizer: OptimizerConfig
    loop: LoopConfig
    checkpoint: CheckpointConfig
    determinism: DeterminismConfig = DeterminismConfig()
    metrics: MetricsConfig = MetricsConfig()

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
    init, model, optimizer = config.init, config.init.model, config.init.optimizer
    if model.hidden_size % (2 * model.num_heads):
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
    if model.vocab_size < VOCABULARY_SIZE and _reads_text(config.fit):
        yield (
            ("init", "model", "vocab_size"),
            f"is {model.vocab_size}, but must be at least {VOCABULARY_SIZE}, the tokenizer's",
        )
    if optimizer.warmup_steps > init.loop.max_steps:
        yield (
            ("init", "optimizer", "warmup_steps"),
            f"is {optimizer.warmup_steps}, but must not exceed loop.max_steps, "
            f"{init.loop.max_steps}",
        )
    if init.loop.fsdp != 1 and init.is_bitwise:
        yield (
            ("init", "loop", "fsdp"),
            f"is {init.loop.fsdp}, but must be 1 for determinism.elastic: bitwise, which computes "
            "on the whole state on every device",
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
    yield from _loader_problems(config.fit.train_dataloader, "train_dataloader")
    if config.fit.validation is not None:
        yield from _loader_problems(config.fit.validation.dataloader, "validation", "dataloader")


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
    if config.fit.train_dataloader.chosen_field is not None:
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


def _reads_text(fit: FitConfig) -> bool:
    """True if a dataloader reads text, which our tokenizer encodes."""
    loaders = [fit.train_dataloader, *([fit.validation.dataloader] if fit.validation else [])]
    return any(loader.tokens_field is None for loader in loaders)


def _unusable_directory(directory: Path | Uri) -> Iterator[tuple[Location, str]]:
    where = ("init", "checkpoint", "directory")
    if isinstance(directory, Path) and not directory.is_absolute():
        yield where, f"must be an absolute path (value {shown(str(directory))})"
    if isinstance(directory, Uri) and find_spec("gcsfs") is None:
        value = shown(str(directory))
        yield where, f"needs gcsfs here: pip install '.[gcs]' in a checkout (value {value})"


def _loader_problems(loader: DataloaderConfig, *section: str) -> Iterator[tuple[Location, str]]:
    where = ("fit", *section)
    learned = loader.completion_field or loader.chosen_field
    if learned is None and loader.prompt_field is not None:
        yield (
            (*where, "prompt_field"),
            "needs completion_field or chosen_field, which names what is learned after the prompt",
        )
    if learned is not None and loader.tokens_field is not None:
        given = "completion_field" if loader.completion_field is not None else "chosen_field"
        yield (
            (*where, "tokens_field"),
            f"is given beside {given}: the records hold either token ids or texts",
        )
    if (loader.chosen_field is None) != (loader.rejected_field is None):
        lacking = "chosen_field" if loader.chosen_field is None else "rejected_field"
        given = "rejected_field" if loader.chosen_field is None else "chosen_field"
        yield (*where, given), f"needs {lacking}: a pair has both completions"
    if loader.chosen_field is not None and loader.completion_field is not None:
        yield (
            (*where, "completion_field"),
            "is given beside chosen_field: the records hold either one completion or a pair",
        )
    yield from _unmatched(loader, *section)


def _unmatched(loader: DataloaderConfig, *section: str) -> Iterator[tuple[Location, str]]:
    for path in loader.paths:
        if not matching_files(path):
            yield (
                ("fit", *section, "paths"),
                "matches no file here: give an existing path, a glob that matches, or stdlib "
                f"(value {shown(path)})",
            )
