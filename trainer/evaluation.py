"""Evaluation: the mean loss over the same batches every time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from supervisor.config.training.sections import ValidationConfig
from trainer.batch_sharder import BatchSharder
from trainer.data import Batch, validation_batches
from trainer.executables import Executables
from trainer.objective_choice import abstract_batch, objective_of
from trainer.step import jit_evaluation_loss
from trainer.train_state import TrainState, TrainStateSpec


def compiled_loss(
    config: ValidationConfig, spec: TrainStateSpec, sharder: BatchSharder, executables: Executables
) -> Future[Callable[..., Any]]:
    """Load or compile the evaluation step; returns its future."""
    objective = objective_of(spec.config, config.dataloader)
    tokens = abstract_batch(objective, config.dataloader, sharder)
    function = jit_evaluation_loss(replace(spec, objective=objective))
    return executables.get("evaluation step", function, spec.abstract, tokens)


class Evaluation:
    """Measures the loss of a state. Reads its data and gets its compiled step only at the first
    evaluation, so that a restart does not wait for them."""

    def __init__(
        self,
        config: ValidationConfig,
        spec: TrainStateSpec,
        sharder: BatchSharder,
        executables: Executables,
    ) -> None:
        self._config = config
        self._spec = spec
        self._sharder = sharder
        self._executables = executables
        self._loss: Any = None
        self._batches: list[Batch] = []

    def due(self, step: int) -> bool:
        """Whether an evaluation is due after `step`."""
        return step % self._config.every == 0

    def run(self, state: TrainState, stop: Callable[[], bool]) -> float | None:
        """Return the mean loss of `state` in nats per token; None: `stop` returned True
        meanwhile."""
        if self._loss is None:
            self._prepare()
        total = 0.0
        for batch in self._batches:
            if stop():
                return None
            total += float(self._loss(state, self._sharder.put(batch)))
        return total / len(self._batches)

    def _prepare(self) -> None:
        config, spec = self._config, self._spec
        loss = compiled_loss(config, spec, self._sharder, self._executables)
        self._batches = validation_batches(
            config.dataloader,
            spec.config.loop.global_batch_size,
            config.steps,
            spec.config.model.vocab_size,
        )
        self._loss = loss.result()
