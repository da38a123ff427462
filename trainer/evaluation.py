"""Evaluation: the mean loss over the same batches every time. Where records are prompts, it is
minus the mean reward of completions that are drawn by the same keys every time.

It can be broken off after any batch, and go on in another process with the same bits: the losses
are added in the order of the batches, whoever adds them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from supervisor.config.training.sections import ValidationConfig
from trainer.batch_sharder import BatchSharder
from trainer.data import Batch, first_batches, read_examples, tokenizer_of
from trainer.evaluation_progress import EvaluationProgress
from trainer.executables import Executables
from trainer.objective import facts_of
from trainer.objective_choice import abstract_batch, objective_of
from trainer.rollout_mesh import RolloutMesh
from trainer.rollouts import Rollouts, compiled_sample
from trainer.step import jit_evaluation_loss
from trainer.termination import Interrupts, StopRequested
from trainer.token_files import read_prompts
from trainer.token_store import HasRead
from trainer.train_state import TrainState, TrainStateSpec

_LossOf = Callable[[TrainState, int, Batch, Interrupts], float]


def compiled_program(
    config: ValidationConfig,
    spec: TrainStateSpec,
    sharder: BatchSharder,
    mesh: RolloutMesh,
    executables: Executables,
) -> Future[Callable[..., Any]]:
    """Load or compile the evaluation step, or for prompts what makes their completions on `mesh`;
    returns its future."""
    sample = compiled_sample(config.dataloader, mesh, executables, "evaluation rollout")
    if sample is not None:
        return sample
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
        has_read: HasRead,
        mesh: RolloutMesh | None = None,
    ) -> None:
        """Completions are made on `mesh`; None: on that of `spec`. For `has_read` see
        `token_store.stored`."""
        self._config = config
        self._spec = spec
        self._sharder = sharder
        self._mesh = mesh or RolloutMesh(spec, sharder)
        self._executables = executables
        self._has_read = has_read
        self._loss: _LossOf | None = None
        self._batches: list[Batch] = []
        self._first = EvaluationProgress(_identity(config, spec))
        self.num_batches = config.steps

    def due(self, step: int) -> bool:
        """Whether an evaluation is due after `step`."""
        return self._config.every is not None and step % self._config.every == 0

    def begin(self, progress: EvaluationProgress | None = None) -> EvaluationProgress:
        """Return where to begin: at `progress`, if that is of the same evaluation, else at the
        first batch."""
        return progress if progress is not None and progress.of == self._first.of else self._first

    def run(
        self,
        state: TrainState,
        begin: EvaluationProgress,
        stop: Callable[[], bool],
        after_batch: Callable[[EvaluationProgress, float], None] = lambda progress, loss: None,
        interrupts: Interrupts = nullcontext,
    ) -> float | EvaluationProgress:
        """Evaluate `state` from `begin` on. Returns the mean loss in nats per token; or how far it
        has come, if `stop` returned True meanwhile, or a user's function was interrupted.
        `after_batch` gets how far it has come, and the loss of the batch."""
        if self._loss is None:
            self._loss = self._prepare()
        progress = begin
        while progress.next_batch < len(self._batches):
            if stop():
                return progress
            number = progress.next_batch
            try:
                loss = self._loss(state, number, self._batches[number], interrupts)
            except StopRequested:
                return progress
            progress = replace(progress, next_batch=number + 1, total=progress.total + loss)
            after_batch(progress, loss)
        return progress.total / len(self._batches)

    def _prepare(self) -> _LossOf:
        """Read the data; returns the loss of a state and a batch, which has a number."""
        config, spec, sharder = self._config, self._spec, self._sharder
        init, loader = spec.config, config.dataloader
        size, vocabulary = init.loop.global_batch_size, init.model.vocab_size
        tokenizer = tokenizer_of(init)
        program = compiled_program(config, spec, sharder, self._mesh, self._executables)
        if init.grpo is not None and loader.asks(init.grpo):
            prompts = read_prompts(loader, init.grpo.completion_length, tokenizer, self._has_read)
            self._batches = first_batches(prompts.rows, size, config.steps)
            return Rollouts(init.grpo, spec, self._mesh, program, prompts).loss
        examples = read_examples(loader, vocabulary, tokenizer, self._has_read)
        self._batches = first_batches(examples, size, config.steps)
        loss = program.result()
        return lambda state, _number, batch, _interrupts: float(loss(state, sharder.put(batch)))


def _identity(config: ValidationConfig, spec: TrainStateSpec) -> str:
    """Return a digest of what decides the loss of a given state. (That has its adapters.)"""
    decides = {
        "objective": facts_of(objective_of(spec.config, config.dataloader)),
        "grpo": spec.config.grpo and spec.config.grpo.model_dump(mode="json", exclude_none=True),
        "steps": config.steps,
        "dataloader": config.dataloader.model_dump(mode="json"),
        "batch": spec.config.loop.global_batch_size,
        "vocabulary": spec.config.model.vocab_size,
        "tokenizer": str(spec.config.tokenizer_folder),
    }
    return hashlib.sha256(json.dumps(decides).encode()).hexdigest()
