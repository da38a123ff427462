"""Batches of completions: the model as it is now answers prompts, and a function rewards them.

A batch is kept in the train state (`TrainState.rollout`) for as many steps as are taken on it. So
one commit has the weights, the batch that they are trained on, and the step, which says how often
it was used. The weights that sample are those of the state: after a restore they are the restored
ones (`trainer.rollout_mesh`).
"""

# mypy: allow-untyped-calls
from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from itertools import takewhile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from supervisor.config.training.sections import DataloaderConfig, GrpoConfig
from trainer import deterministic_reduction, distributed
from trainer.data import Batch, tokenizer_of
from trainer.executables import Executables
from trainer.grpo import Floats, examples, log_probabilities
from trainer.mesh import batch_sharding, replicated
from trainer.objective import token_ids
from trainer.objective_choice import abstract_prompts
from trainer.rewards import Reward
from trainer.rollout_mesh import RolloutMesh, Weights, weights_of
from trainer.sampling import Prompts, complete
from trainer.termination import Interrupts
from trainer.token_files import PROMPT_FACTS, PromptFile
from trainer.tokenizer import Tokenizer
from trainer.train_state import ROWS, TrainState, TrainStateSpec

_SAMPLING = 0x526F6C6C
"""Tells the keys of sampling from those of dropout."""


class Rollouts:
    """Makes the batches of completions that training learns from."""

    def __init__(
        self,
        config: GrpoConfig,
        spec: TrainStateSpec,
        mesh: RolloutMesh,
        sample: Future[Callable[..., Any]],
        prompts: PromptFile,
    ) -> None:
        """`spec` is that of training, and `sample` the `jit_sample` compiled for `mesh`.

        Raises:
            UnusableRewardError, DataError: see `Reward.of` and `Reward.check`.
        """
        self._config = config
        self._sharding = replicated(spec.mesh)
        self._mesh = mesh
        self._sample = sample
        self._prompts = prompts
        self._reward = Reward.of(config.reward)
        self._reward.check(prompts.records, prompts.places)
        self._tokenizer = tokenizer_of(spec.config)
        self._batch: Batch | None = None

    def due(self, step: int) -> bool:
        """Whether the step after `step` needs a new batch."""
        return step % self._config.num_iterations == 0

    def made(
        self, state: TrainState, step: int, prompts: Batch, interrupts: Interrupts = nullcontext
    ) -> TrainState:
        """Return `state` with a new batch for the step after `step`: a group for each prompt. The
        user's function is called in a context of `interrupts`."""
        repeated = np.repeat(prompts, self._config.group_size, axis=0)
        sampled, rewards = self._sampled(state, step, repeated, interrupts)
        self._batch = examples(sampled, rewards, self._config.group_size)
        return replace(state, rollout={ROWS: self._placed(self._batch)})

    def rewind(self) -> None:
        """The next state is not the one that was made last."""
        self._batch = None

    def batch(self, state: TrainState) -> Batch:
        """Return the batch that `state` has."""
        if self._batch is None:
            self._batch = np.asarray(state.rollout[ROWS].addressable_data(0))
        return self._batch

    def loss(
        self, state: TrainState, number: int, prompts: Batch, interrupts: Interrupts = nullcontext
    ) -> float:
        """Return minus the mean reward of completions of `prompts`, one each. `number` is that of
        the batch: the same one draws by the same keys each time. For `interrupts` see `made`."""
        rewards = self._sampled(state, -1 - number, prompts, interrupts)[1]
        return 0.0 - float(rewards.mean(dtype=np.float64))  # and not -0.0

    def _sampled(
        self, state: TrainState, draw: int, prompts: Batch, interrupts: Interrupts
    ) -> tuple[Batch, Floats]:
        """Return sequences with the bits of their log-probabilities, and rewards. `draw` decides
        the keys."""
        number_of = prompts[:, 0]
        drawn = np.concatenate([np.full_like(prompts[:, :1], draw), prompts[:, 1:]], axis=1)
        found = self._sample.result()(self._mesh.weights(state), self._mesh.sharder.put(drawn))
        sampled = np.asarray(found.addressable_data(0))
        rewards = np.zeros(len(prompts), np.float32)
        if distributed.is_first():  # the function may be slow, or give another number each time
            records = [self._prompts.records[number] for number in number_of]
            places = [self._prompts.places[number] for number in number_of]
            asked = texts(sampled, prompts, self._tokenizer, self._prompts.num_before)
            with interrupts():
                rewards = self._reward(*asked, records, places)
        return sampled, distributed.array_from_first(rewards)

    def _placed(self, batch: Batch) -> jax.Array:
        placed: jax.Array = jax.make_array_from_callback(
            batch.shape, self._sharding, lambda index: batch[index]
        )
        return placed


def texts(
    sampled: Batch, prompts: Batch, tokenizer: Tokenizer, num_before: int
) -> tuple[list[str], list[str]]:
    """Return prompts and completions as texts, without the `num_before` tokens before a prompt, and
    without the end."""
    asked, answered = list[str](), list[str]()
    for sequence, length in zip(sampled, prompts[:, 1], strict=True):
        completion = token_ids(sequence[length : (sampled.shape[1] + 1) // 2]).tolist()
        asked.append(tokenizer.text(token_ids(sequence[num_before:length])))
        answered.append(tokenizer.text(takewhile(lambda one: one != tokenizer.end, completion)))
    return asked, answered


def compiled_sample(
    loader: DataloaderConfig, mesh: RolloutMesh, executables: Executables, name: str
) -> Future[Callable[..., Any]] | None:
    """Load or compile the sampling for the prompts of `loader` on `mesh`; returns its future. None:
    there are none to complete."""
    grpo = mesh.spec.config.grpo
    if grpo is None or not loader.asks(grpo):
        return None
    prompts = abstract_prompts(grpo, loader, mesh.sharder)
    return executables.get(name, jit_sample(mesh.spec, grpo), mesh.abstract, prompts)


def jit_sample(spec: TrainStateSpec, config: GrpoConfig) -> Any:
    """Return the jitted sampling: (weights, prompts [accumulation, sequences, 2 + places]) to the
    sequences of the global batch, and behind each the bits of the log-probabilities of its tokens.
    A prompt has the number of its draw and its length in front. Both are on the mesh of `spec`."""

    tokenizer = tokenizer_of(spec.config)

    def sample(weights: Weights, prompts: jax.Array) -> jax.Array:
        model = spec.model(*weights)

        def micro(rows: jax.Array, index: jax.Array) -> jax.Array:
            asked = Prompts(rows[:, PROMPT_FACTS:], rows[:, 1])
            keys = _keys(spec, rows[:, 0], index)
            sequences = complete(model, asked, keys, config, tokenizer)
            logits = model(token_ids(sequences[:, :-1]))
            sampled = log_probabilities(logits, sequences[:, 1:], config.temperature)
            bits = jax.lax.bitcast_convert_type(sampled, jnp.int32)
            return jnp.concatenate([sequences, bits], axis=1)

        if spec.config.is_bitwise:
            return deterministic_reduction.each(micro, prompts)
        index = jnp.arange(prompts.shape[0] * prompts.shape[1]).reshape(prompts.shape[:2])
        found: jax.Array = jax.lax.map(lambda one: micro(*one), (prompts, index))
        return found

    def on_devices(weights: Weights, prompts: jax.Array) -> jax.Array:
        function = sample
        if spec.config.is_bitwise:
            function = deterministic_reduction.parts_on_each_device(spec.mesh, sample)
        found = function(weights, prompts)
        return found.reshape(-1, found.shape[-1])

    shardings = jax.tree.map(lambda array: array.sharding, weights_of(spec.abstract))
    return jax.jit(
        on_devices,
        in_shardings=(shardings, batch_sharding(spec.mesh)),
        out_shardings=replicated(spec.mesh),
    )


def _keys(spec: TrainStateSpec, draws: jax.Array, index: jax.Array) -> jax.Array:
    """Return the PRNG keys of the sequences with these indices in the global batch."""
    key = jax.random.fold_in(jax.random.key(spec.config.seed), _SAMPLING)

    def one(draw: jax.Array, index: jax.Array) -> jax.Array:
        return jax.random.fold_in(jax.random.fold_in(key, draw.astype(jnp.uint32)), index)

    keys: jax.Array = jax.vmap(one)(draws, index)
    return keys
