"""What training needs and no attempt changes: the mesh, the shapes, the compiled step, the data.

A standby prepares it before there is an attempt. A cold start prepares it while the state is
restored: a thread of its own loads or compiles the step.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax

from supervisor.config.training.layout import Rung, full_rung_problem, rung
from supervisor.config.training.resolved import TrainerConfig, config_error
from supervisor.protocol import environment
from supervisor.protocol.adjustments import Adjustments
from trainer import deterministic_reduction
from trainer.batch_sharder import BatchSharder
from trainer.data import training_batches
from trainer.executables import Executables
from trainer.log import WorkerLog
from trainer.mesh import make_mesh, require_devices
from trainer.objective_choice import abstract_batch, objective_of
from trainer.step import jit_train_step
from trainer.train_state import TrainStateSpec

_TRAIN_STEP = "train step"


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """Everything that training needs, except the state. `tokens` is the abstract batch. `batches`
    returns the one iterator over the training data; the first call reads the data."""

    log: WorkerLog
    sharder: BatchSharder
    spec: TrainStateSpec
    tokens: jax.ShapeDtypeStruct
    batches: Callable[[], Any]
    executables: Executables
    train_step: Future[Callable[..., Any]]


def set_up(
    config: TrainerConfig,
    num_devices: int | None,
    adjustments: Adjustments,
    log: WorkerLog,
) -> TrainingSetup:
    """Prepare to train `config` on the devices of this process; returns while the step is still
    being compiled.

    Raises:
        DevicesDiffer: the backend does not have `num_devices` (None: any number will do).
        ConfigError: the config cannot be trained on the devices found.
    """
    deterministic_reduction.same_threads(config.init)
    require_devices(num_devices)
    found = rung(config.init, jax.device_count(), adjustments.accumulation)
    if found is None:
        problem = full_rung_problem(config.init, jax.device_count())
        raise config_error([problem] if problem is not None else [])
    init, loader = config.init, config.fit.train_dataloader
    executables = _executables(config, found, log)
    executables.begin_loading(_TRAIN_STEP)
    sharder = BatchSharder(make_mesh(found), found)
    objective = objective_of(init, loader)
    spec = TrainStateSpec.of(init, sharder.mesh, objective)
    tokens = abstract_batch(objective, loader, sharder)
    return TrainingSetup(
        log=log,
        sharder=sharder,
        spec=spec,
        tokens=tokens,
        executables=executables,
        train_step=executables.get(_TRAIN_STEP, jit_train_step(spec), spec.abstract, tokens),
        batches=cache(
            lambda: training_batches(
                loader, init.loop.global_batch_size, init.data_shuffle_seed, init.model.vocab_size
            )
        ),
    )


def _executables(config: TrainerConfig, found: Rung, log: WorkerLog) -> Executables:
    """Return the compiled steps of `config` on the rung `found`, identified by all that decides
    them."""
    init, validation = config.init, config.fit.validation
    decides = {
        "model": init.model.model_dump(mode="json"),
        "lora": init.lora and init.lora.model_dump(mode="json"),
        "dpo": init.dpo and init.dpo.model_dump(mode="json"),
        "optimizer": init.optimizer.model_dump(mode="json"),
        "seed": init.seed,
        "determinism": init.determinism.model_dump(mode="json"),
        "max_steps": init.loop.max_steps,
        "rung": asdict(found),
        "train length": config.fit.train_dataloader.sequence_length,
        "train objective": objective_of(init, config.fit.train_dataloader).name,
        "evaluation length": validation and validation.dataloader.sequence_length,
        "evaluation objective": (validation and objective_of(init, validation.dataloader).name),
    }
    directory = os.environ.get(environment.EXECUTABLES)
    return Executables(Path(directory) if directory else None, decides, log)
