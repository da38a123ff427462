"""Which objective a config asks for: its data decide the losses, its `init` what is trained."""

from __future__ import annotations

import jax
from flax import nnx

from supervisor.config.training.resolved import InitConfig
from supervisor.config.training.sections import DataloaderConfig, DpoConfig, GrpoConfig
from trainer.batch_sharder import BatchSharder
from trainer.dpo import DirectPreference
from trainer.grpo import GroupRelative
from trainer.objective import Completion, NextToken, Objective
from trainer.token_files import PROMPT_FACTS


def objective_of(init: InitConfig, loader: DataloaderConfig) -> Objective:
    """Return the objective of training on the data of `loader`."""
    trainable = nnx.Param if init.lora is None else nnx.LoRAParam
    if loader.chosen_field is not None:
        return DirectPreference((init.dpo or DpoConfig()).beta, trainable)
    if init.grpo is not None and loader.asks(init.grpo):
        batch, length = init.loop.global_batch_size, loader.sequence_length
        return GroupRelative(init.grpo, batch, length, trainable)
    if loader.completion_field is None and loader.messages_field is None:
        return NextToken(trainable)
    return Completion(trainable, is_packed=loader.packs_examples)


def abstract_batch(
    objective: Objective, loader: DataloaderConfig, sharder: BatchSharder
) -> jax.ShapeDtypeStruct:
    """Return the shape, type and sharding of a batch of `loader` on the devices."""
    return sharder.abstract(objective.width(loader.sequence_length))


def abstract_prompts(
    grpo: GrpoConfig, loader: DataloaderConfig, sharder: BatchSharder
) -> jax.ShapeDtypeStruct:
    """Return the same of a batch of prompts, one for each completion."""
    return sharder.abstract(PROMPT_FACTS + loader.sequence_length + 1 - grpo.completion_length)
