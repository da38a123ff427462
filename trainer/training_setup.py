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
from trainer.data import TrainingData, training_data
from trainer.executables import Executables
from trainer.held_state import CompiledStep
from trainer.log import WorkerLog
from trainer.mesh import make_mesh, require_devices
from trainer.objective import facts_of
from trainer.objective_choice import abstract_batch, objective_of
from trainer.rollout_mesh import RolloutMesh
from trainer.rollouts import Rollouts, compiled_sample
from trainer.step import jit_step_of_leaves
from trainer.train_state import TrainStateSpec

_TRAIN_STEP = "train step"
_SAMPLE = "rollout"


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """Everything that training needs, except the state. `tokens` is the abstract batch. `data`
    returns the data with the one iterator over them; the first call reads them. `train_step` is of
    leaves (`compiled_step`). `sample` is there if the objective learns from what the model
    makes."""

    log: WorkerLog
    sharder: BatchSharder
    spec: TrainStateSpec
    tokens: jax.ShapeDtypeStruct
    data: Callable[[], TrainingData]
    executables: Executables
    train_step: Future[Callable[..., Any]]
    rollout_mesh: RolloutMesh
    sample: Future[Callable[..., Any]] | None = None

    def compiled_step(self) -> CompiledStep:
        """Wait until all that a step needs is compiled; returns the train step."""
        if self.sample is not None:
            self.sample.result()
        return CompiledStep.of(self.spec, self.train_step.result())

    def rollouts(self) -> Rollouts | None:
        """Return what makes batches of prompts; None: batches come from the data alone. It imports
        the user's function: so it is the attempt that does this, and no standby.

        Raises:
            UnusableRewardError: there is no such function.
        """
        grpo = self.spec.config.grpo
        prompts = self.data().prompts
        if grpo is None or self.sample is None or prompts is None:
            return None
        return Rollouts(grpo, self.spec, self.rollout_mesh, self.sample, prompts)


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
    found = rung_here(config, num_devices, adjustments.accumulation)
    init, loader = config.init, config.fit.decisive
    executables = executables_of(config, found, log)
    mesh = make_mesh(found)
    executables.begin_loading(_TRAIN_STEP, mesh)
    sharder = BatchSharder(mesh, found)
    objective = objective_of(init, loader)
    spec = TrainStateSpec.of(init, sharder.mesh, objective)
    tokens = abstract_batch(objective, loader, sharder)
    rollout_mesh = RolloutMesh.of(spec, sharder, adjustments.accumulation)
    return TrainingSetup(
        log=log,
        sharder=sharder,
        spec=spec,
        tokens=tokens,
        rollout_mesh=rollout_mesh,
        executables=executables,
        train_step=executables.get(
            _TRAIN_STEP, jit_step_of_leaves(spec), jax.tree.leaves(spec.abstract), tokens
        ),
        sample=compiled_sample(loader, rollout_mesh, executables, _SAMPLE),
        data=cache(lambda: training_data(config, log.has_read)),
    )


def rung_here(config: TrainerConfig, num_devices: int | None, accumulation: int = 1) -> Rung:
    """Return how `config` runs on the devices of this process; errors as `set_up`."""
    require_devices(num_devices)
    found = rung(config.init, jax.device_count(), accumulation)
    if found is None:
        problem = full_rung_problem(config.init, jax.device_count())
        raise config_error([problem] if problem is not None else [])
    return found


def executables_of(config: TrainerConfig, found: Rung, log: WorkerLog) -> Executables:
    """Return the compiled steps of `config` on the rung `found`, identified by all that decides
    them."""
    directory = os.environ.get(environment.EXECUTABLES)
    return Executables(Path(directory) if directory else None, deciding_facts(config, found), log)


def deciding_facts(config: TrainerConfig, found: Rung) -> dict[str, Any]:
    """Return what decides the compiled steps of `config` on the rung `found`."""
    init, validation = config.init, config.fit.validation
    return {
        "model": init.model.shape,
        "lora": init.lora and init.lora.model_dump(mode="json"),
        "grpo": init.grpo and init.grpo.model_dump(mode="json", exclude={"reward"}),
        "optimizer": init.optimizer and init.optimizer.model_dump(mode="json"),
        "seed": init.seed,
        "remat": init.loop.remat,
        "scan layers": init.loop.scan_layers,
        "determinism": init.determinism.model_dump(mode="json"),
        "max_steps": config.max_steps,
        "rung": asdict(found),
        "train length": config.fit.decisive.sequence_length,
        "train objective": facts_of(objective_of(init, config.fit.decisive)),
        "evaluation length": validation and validation.dataloader.sequence_length,
        "evaluation objective": (
            validation and facts_of(objective_of(init, validation.dataloader))
        ),
    }
