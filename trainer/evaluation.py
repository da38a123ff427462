"""Evaluation: the mean loss over the same batches every time.

It can be broken off after any batch, and go on in another process with the same bits: the losses
are added in the order of the batches, whoever adds them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from supervisor.config.training.sections import ValidationConfig
from trainer.batch_sharder import BatchSharder
from trainer.data import Batch, validation_batches
from trainer.evaluation_progress import EvaluationProgress
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
        self._first = EvaluationProgress(_identity(config, spec))
        self.num_batches = config.steps

    def due(self, step: int) -> bool:
        """Whether an evaluation is due after `step`."""
        return step % self._config.every == 0

    def begin(self, progress: EvaluationProgress | None = None) -> EvaluationProgress:
        """Return where to begin: at `progress`, if that is of the same evaluation, else at the
        first batch."""
        return progress if progress is not None and progress.of == self._first.of else self._first

    def run(
        self,
        state: TrainState,
        begin: EvaluationProgress,
        stop: Callable[[], bool],
        after_batch: Callable[[EvaluationProgress], None] = lambda progress: None,
    ) -> float | EvaluationProgress:
        """Evaluate `state` from `begin` on. Returns the mean loss in nats per token; or how far it
        has come, if `stop` returned True meanwhile."""
        if self._loss is None:
            self._prepare()
        progress = begin
        while progress.next_batch < len(self._batches):
            if stop():
                return progress
            batch = self._sharder.put(self._batches[progress.next_batch])
            total = progress.total + float(self._loss(state, batch))
            progress = replace(progress, next_batch=progress.next_batch + 1, total=total)
            after_batch(progress)
        return progress.total / len(self._batches)

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


def _identity(config: ValidationConfig, spec: TrainStateSpec) -> str:
    """Return a digest of what decides the loss of a given state. (That has its adapters.)"""
    decides = {
        "dpo": spec.config.dpo and spec.config.dpo.model_dump(mode="json"),
        "steps": config.steps,
        "dataloader": config.dataloader.model_dump(mode="json"),
        "batch": spec.config.loop.global_batch_size,
        "vocabulary": spec.config.model.vocab_size,
    }
    return hashlib.sha256(json.dumps(decides).encode()).hexdigest()
