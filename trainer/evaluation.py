"""Evaluation: the mean loss over the same batches every time."""

from __future__ import annotations

from collections.abc import Callable

from trainer.config import ValidationConfig
from trainer.data import Batch, validation_batches
from trainer.feed import Feed
from trainer.state import Blueprint, TrainState
from trainer.step import jit_evaluation_loss


class Evaluation:
    """Measures a state. Its data is read, and its step compiled, when it is first needed: a restart
    must not wait for it."""

    def __init__(self, config: ValidationConfig, blueprint: Blueprint, feed: Feed) -> None:
        self._config = config
        self._batch_size = blueprint.config.loop.global_batch_size
        self._vocab_size = blueprint.config.model.vocab_size
        self._feed = feed
        self._loss = jit_evaluation_loss(blueprint)
        self._batches: list[Batch] = []

    def due(self, step: int) -> bool:
        """Whether the state after `step` is to be measured."""
        return step % self._config.every == 0

    def run(self, state: TrainState, stop: Callable[[], bool]) -> float | None:
        """The mean loss of `state`, in nats a token; None where `stop` said so in between."""
        if not self._batches:
            config = self._config
            self._batches = validation_batches(
                config.dataloader, self._batch_size, config.steps, self._vocab_size
            )
        total = 0.0
        for batch in self._batches:
            if stop():
                return None
            total += float(self._loss(state, self._feed.put(batch)))
        return total / len(self._batches)
