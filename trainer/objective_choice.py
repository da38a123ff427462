"""Which objective a config asks for: its data decide the losses, its `init` what is trained."""

from __future__ import annotations

import jax
from flax import nnx

from supervisor.config.training.resolved import InitConfig
from supervisor.config.training.sections import DataloaderConfig, DpoConfig
from trainer.batch_sharder import BatchSharder
from trainer.dpo import DirectPreference
from trainer.objective import Completion, NextToken, Objective


def objective_of(init: InitConfig, loader: DataloaderConfig) -> Objective:
    """Return the objective of training on the data of `loader`."""
    trainable = nnx.Param if init.lora is None else nnx.LoRAParam
    if loader.chosen_field is not None:
        return DirectPreference((init.dpo or DpoConfig()).beta, trainable)
    return NextToken(trainable) if loader.completion_field is None else Completion(trainable)


def abstract_batch(
    objective: Objective, loader: DataloaderConfig, sharder: BatchSharder
) -> jax.ShapeDtypeStruct:
    """Return the shape, type and sharding of a batch of `loader` on the devices."""
    return sharder.abstract(objective.rows * (loader.sequence_length + 1))
