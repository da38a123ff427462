"""Evaluation: the mean loss over the same batches every time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from supervisor.config.training.sections import ValidationConfig
from trainer.batch_sharder import BatchSharder
from trainer.data import Batch, validation_batches
from trainer.executables import Executables
from trainer.step import jit_evaluation_loss
from trainer.train_state import TrainState, TrainStateSpec


def compiled_loss(
    config: ValidationConfig, spec: TrainStateSpec, sharder: BatchSharder, executables: Executables
) -> Future[Callable[..., Any]]:
    """The evaluation step, loaded or compiled."""
    tokens = sharder.abstract(config.dataloader.sequence_length + 1)
    function = jit_evaluation_loss(spec)
    return executables.get("evaluation step", function, spec.abstract, tokens)


class Evaluation:
    """Measures a state. Its data is read, and its step obtained, when it is first needed: a restart
    must not wait for it."""

    def __init__(
        self,
        config: ValidationConfig,
        spec: TrainStateSpec,
        sharder: BatchSharder,
        executables: Executables,
    ) -> None:
        self._config = config
        self._blueprint = spec
        self._sharder = sharder
        self._executables = executables
        self._loss: Any = None
        self._batches: list[Batch] = []

    def due(self, step: int) -> bool:
        """Whether the state after `step` is to be measured."""
        return step % self._config.every == 0

    def run(self, state: TrainState, stop: Callable[[], bool]) -> float | None:
        """The mean loss of `state`, in nats a token; None where `stop` said so in between."""
        if self._loss is None:
            self._prepare()
        total = 0.0
        for batch in self._batches:
            if stop():
                return None
            total += float(self._loss(state, self._sharder.put(batch)))
        return total / len(self._batches)

    def _prepare(self) -> None:
        config, spec = self._config, self._blueprint
        loss = compiled_loss(config, spec, self._sharder, self._executables)
        self._batches = validation_batches(
            config.dataloader,
            spec.config.loop.global_batch_size,
            config.steps,
            spec.config.model.vocab_size,
        )
        self._loss = loss.result()
