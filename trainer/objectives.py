"""Which objective a config asks for: its data decide the losses, its `init` what is trained."""

from __future__ import annotations

from supervisor.config.training.resolved import InitConfig
from supervisor.config.training.sections import DataloaderConfig
from trainer.objective import Completion, NextToken, Objective


def objective_of(init: InitConfig, loader: DataloaderConfig) -> Objective:
    """Return the objective of training on the data of `loader`."""
    return NextToken() if loader.completion_field is None else Completion()
