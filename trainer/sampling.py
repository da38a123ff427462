"""Completions: a model reads prompts, and goes on with tokens that are drawn at random.

The decoder is any model with `empty_cache` that takes a cache. A sequence's tokens follow from its
key and the weights alone, so they do not depend on which sequences share the batch.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from supervisor.config.training.sections import GrpoConfig
from trainer.kv_cache import Cache, set_lengths
from trainer.objective import unlearned
from trainer.tokenizer import BYTES, Tokenizer


class Generator(Protocol):
    """A model that can be asked for the next token."""

    def empty_cache(self, batch: int, length: int) -> Cache:
        """Return a cache for `batch` sequences of up to `length` tokens."""
        ...

    def __call__(self, tokens: jax.Array, *, cache: Cache | None = None) -> jax.Array:
        """Return logits [batch, length, vocabulary] of `tokens`, which come after those in `cache`
        and are added to it."""
        ...


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Prompts:
    """Token ids [batch, places] from the left, and how many of them each prompt has, [batch]."""

    ids: jax.Array
    lengths: jax.Array


def complete(
    model: Generator,
    prompts: Prompts,
    keys: jax.Array,
    settings: GrpoConfig,
    tokenizer: Tokenizer = BYTES,
) -> jax.Array:
    """Return each prompt with a completion, [batch, places + settings.completion_length]: token ids
    as in `objective`, so that the completion with its end is learned, and nothing else is.

    `keys` [batch] are the PRNG keys, one per sequence. A completion ends with the end of the
    document, or where it has the greatest length.
    """
    batch, places = prompts.ids.shape
    row, filling = jnp.arange(batch), unlearned(jnp.int32(tokenizer.end))
    cache = model.empty_cache(batch, places + settings.completion_length)
    logits = model(prompts.ids, cache=cache)[row, prompts.lengths - 1]
    set_lengths(cache, prompts.lengths)
    is_read = jnp.arange(places) < prompts.lengths[:, None]
    begin = jnp.where(is_read, unlearned(prompts.ids), filling)
    tokens = jnp.pad(begin, ((0, 0), (0, settings.completion_length)), constant_values=filling)

    def goes_on(carry: Any) -> jax.Array:
        number, _, _, _, is_done = carry
        more: jax.Array = (number < settings.completion_length) & ~is_done.all()
        return more

    def one_more(carry: Any) -> Any:
        number, tokens, logits, cache, is_done = carry
        token = draw(
            logits, jax.vmap(jax.random.fold_in, (0, None))(keys, number), settings, tokenizer.size
        )
        place = prompts.lengths + number
        tokens = tokens.at[row, place].set(jnp.where(is_done, filling, token))
        logits = model(token[:, None], cache=cache)[:, 0]
        return number + 1, tokens, logits, cache, is_done | (token == tokenizer.end)

    start = jnp.int32(0), tokens, logits, cache, jnp.zeros(batch, bool)
    completed: jax.Array = jax.lax.while_loop(goes_on, one_more, start)[1]
    return completed


def draw(
    logits: jax.Array, keys: jax.Array, settings: GrpoConfig, num_tokens: int = BYTES.size
) -> jax.Array:
    """Return a token for each of `logits` [batch, vocabulary], by its key. Only the `num_tokens`
    that the tokenizer has are drawn: a model may have more rows than that."""
    known = jnp.arange(logits.shape[-1]) < num_tokens
    scaled = jnp.where(known, logits / settings.temperature, -jnp.inf)
    kept = nucleus(scaled, settings.top_p)
    tokens: jax.Array = jax.vmap(jax.random.categorical)(keys, kept)
    return tokens.astype(jnp.int32)


def nucleus(logits: jax.Array, top_p: float) -> jax.Array:
    """Return `logits` [..., vocabulary] with -inf for all but the likeliest tokens whose
    probabilities add up to `top_p`, with the one that reaches it (Holtzman et al., 2020). Of
    equally likely tokens the one with the smaller id comes first."""
    if top_p == 1:
        return logits
    order = jnp.argsort(-logits, axis=-1, stable=True)
    probabilities = jax.nn.softmax(jnp.take_along_axis(logits, order, axis=-1), axis=-1)
    before = jnp.cumsum(probabilities, axis=-1) - probabilities
    is_kept = jnp.take_along_axis(before < top_p, jnp.argsort(order, axis=-1), axis=-1)
    return jnp.where(is_kept, logits, -jnp.inf)
