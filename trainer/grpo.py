"""Learning from rewards: GRPO (Shao et al., 2024) and its variant GSPO (Zheng et al., 2025).

The model answers each prompt several times. A completion's advantage is by how much its reward is
above the mean of its group, in standard deviations of the group; each of its tokens becomes more or
less likely accordingly. The ratio of its probabilities, now and when it was sampled, is clipped, so
that several steps on the same completions go no further than one batch can tell.

An example is a row: a sequence with prompt and completion, and behind it the bits of numbers of
float32: the log-probability of each token as it was sampled, the advantage, and the reward. So a
batch of completions is one array, like any other batch.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
from flax import nnx

from supervisor.config.training.sections import GrpoConfig, Importance
from trainer.objective import Losses, token_ids

_BEHIND = 2
"""Numbers behind a sequence and its log-probabilities: the advantage and the reward."""
_EPSILON = 1e-4
"""Added to the standard deviation of a group: where all rewards are equal, nothing is learned."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class GroupRelative:
    """What is rewarded more than the rest of its group is to become more likely."""

    config: GrpoConfig
    batch: int
    """Completions in a batch."""
    length: int
    """Tokens of a sequence, without the first one."""
    trainable: Any = nnx.Param
    name: str = "group relative"
    rows: int = 1

    @property
    def metrics(self) -> tuple[str, ...]:
        """See `Objective`."""
        return ("reward", "clipped", "completion_length", *(["kl"] if self.reads_reference else []))

    @property
    def reads_reference(self) -> bool:
        """See `Objective`."""
        return self.config.beta > 0

    @property
    def rollout(self) -> tuple[int, int]:
        """See `Objective`."""
        return self.batch, self.width(self.length)

    def width(self, length: int) -> int:
        """See `Objective`."""
        return 2 * length + 1 + _BEHIND

    def sequences(self, tokens: Any) -> Any:
        """See `Objective`."""
        return tokens[:, : (tokens.shape[-1] - 1 - _BEHIND) // 2 + 1]

    def documents(self, tokens: jax.Array) -> jax.Array | None:
        """See `Objective`."""
        return None

    def losses(self, logits: jax.Array, reference: jax.Array | None, tokens: jax.Array) -> Losses:
        """See `Objective`. A loss for each completion, the mean over its tokens. Metrics by
        completion: `reward`, `completion_length`, the share of its tokens that are `clipped`, and
        `kl` in nats per token: an estimate of how far the model is from the reference."""
        targets = self.sequences(tokens)[:, 1:]
        numbers = jax.lax.bitcast_convert_type(tokens[:, targets.shape[1] + 1 :], jnp.float32)
        sampled, advantage, reward = numbers[:, :-2], numbers[:, -2:-1], numbers[:, -1]
        learned = (targets >= 0).astype(jnp.float32)
        length = learned.sum(axis=-1)

        def mean(each: jax.Array) -> jax.Array:
            mean: jax.Array = (each * learned).sum(axis=-1) / length
            return mean

        now = log_probabilities(logits, targets, self.config.temperature)
        ratio = jnp.exp(self._log_ratio(now, sampled, mean))
        low, high = 1 - self.config.clip, 1 + self.config.clip_high
        losses = -jnp.minimum(ratio * advantage, jnp.clip(ratio, low, high) * advantage)
        clipped = jnp.where(advantage > 0, ratio > high, (ratio < low) & (advantage < 0))
        measured = {"reward": reward, "clipped": mean(clipped), "completion_length": length}
        if reference is not None:
            away = log_probabilities(reference, targets, self.config.temperature) - now
            kl = jnp.exp(away) - away - 1  # never negative, and right on average (Schulman, 2020)
            losses = losses + self.config.beta * kl
            measured["kl"] = mean(kl)
        return mean(losses), measured

    def _log_ratio(self, now: jax.Array, sampled: jax.Array, mean: Any) -> jax.Array:
        """Return the logarithm of the probability ratio, [completions, tokens or 1]."""
        if self.config.importance is Importance.TOKEN:
            return now - sampled
        of_sequence: jax.Array = mean(now - sampled)[:, None]
        if self.config.importance is Importance.SEQUENCE:
            return of_sequence
        return jax.lax.stop_gradient(of_sequence - now) + now

    def num_targets(self, tokens: jax.Array) -> jax.Array | None:
        """See `Objective`. Each completion counts alike."""
        return None


def log_probabilities(logits: jax.Array, targets: jax.Array, temperature: float) -> jax.Array:
    """Return the logarithm of the probability of each target, [sequences, tokens]; 0 where it is
    not learned."""
    ids = token_ids(targets)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits / temperature, ids)
    return jnp.where(targets >= 0, -losses, 0.0)


def advantages(rewards: Floats, group_size: int) -> Floats:
    """Return the advantage of each completion; those of a group stand together."""
    groups = rewards.astype(np.float64).reshape(-1, group_size)
    above = groups - groups.mean(axis=1, keepdims=True)
    scaled: Floats = above / (groups.std(axis=1, ddof=1, keepdims=True) + _EPSILON)
    return scaled.ravel().astype(np.float32)


def examples(
    sampled: npt.NDArray[np.int32], rewards: Floats, group_size: int
) -> npt.NDArray[np.int32]:
    """Return the rows of a batch. `sampled` has sequences, and behind each the bits of the
    log-probabilities of its tokens."""
    behind = np.stack([advantages(rewards, group_size), rewards], axis=1)
    return np.concatenate([sampled, behind.astype(np.float32).view(np.int32)], axis=1)
