"""The model: a decoder-only transformer in the style of Llama and Qwen3.

RMSNorm before each sublayer (Zhang and Sennrich, 2019), rotary positions (Su et al., 2021),
grouped-query attention (Ainslie et al., 2023), SwiGLU (Shazeer, 2020), no biases; with `qk_norm`
also RMSNorm of each head's queries and keys. Parameters are float32; `dtype` is what is computed
in, and logits are float32 again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from supervisor.config.training.sections import ModelConfig, Remat, RopeScaling
from trainer.kv_cache import Cache, LayerCache
from trainer.layers import Linear, drop, fold


class Decoder(nnx.Module):
    """Token ids to next-token logits."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        dtype = jnp.dtype(config.dtype)
        self.embedding = nnx.Embed(
            config.vocab_size,
            config.hidden_size,
            dtype=dtype,
            embedding_init=nnx.initializers.normal(config.hidden_size**-0.5),
            rngs=rngs,
        )
        self.dropout = config.dropout
        self.remat = Remat.NONE
        self.scans_layers = False
        self.blocks = nnx.List(Block(config, rngs=rngs) for _ in range(config.num_layers))
        self.norm = _norm(config.hidden_size, config, rngs)
        self.head = (
            None
            if config.tie_embeddings
            else _linear(config.hidden_size, config.vocab_size, config, rngs)
        )

    def __call__(
        self,
        tokens: jax.Array,
        keys: jax.Array | None = None,
        documents: jax.Array | None = None,
        cache: Cache | None = None,
    ) -> jax.Array:
        """Return logits [batch, length, vocabulary], float32, for `tokens` [batch, length].

        `keys` [batch] are the PRNG keys for dropout, one per sequence; None: no dropout.
        `documents` [batch, length] are the numbers of the documents that the tokens belong to: none
        attends to another; None: each sequence is one. With a `cache`, the tokens come after those
        in it, and are added to it.
        """
        if self.scans_layers and cache is None:
            x = self._embedded(tokens, keys)
            for run in _alike(self.blocks):
                x = _scanned(run, self.remat, x, keys, documents)
            return self._logits(self.norm(x), keys)
        *_, (_, logits) = self.activations(tokens, keys, documents, cache)
        return logits

    def empty_cache(self, batch: int, length: int) -> Cache:
        """Return a cache for `batch` sequences of up to `length` tokens."""
        return [block.attention.empty_cache(batch, length) for block in self.blocks]

    def activations(
        self,
        tokens: jax.Array,
        keys: jax.Array | None,
        documents: jax.Array | None = None,
        cache: Cache | None = None,
    ) -> Iterator[tuple[str, jax.Array]]:
        """Yield what each part of the model returns, with the part's name; the logits come last.
        Arguments as for a call."""
        x = self._embedded(tokens, keys)
        yield "embedding", x
        for number, block in enumerate(self.blocks, 1):
            layer = None if cache is None else cache[number - 1]
            x = _recomputing(self.remat)(block, x, fold(keys, number), documents, layer)
            yield f"blocks.{number - 1}", x
        x = self.norm(x)
        yield "norm", x
        yield "logits", self._logits(x, keys)

    def _embedded(self, tokens: jax.Array, keys: jax.Array | None) -> jax.Array:
        return drop(self.embedding(tokens), self.dropout, fold(keys, 0))

    def _logits(self, x: jax.Array, keys: jax.Array | None) -> jax.Array:
        if self.head is None:
            logits = self.embedding.attend(x)
        else:
            logits = self.head(x, keys=fold(keys, len(self.blocks) + 1))
        return logits.astype(jnp.float32)


class Block(nnx.Module):
    """Attention, then a gated MLP, each on the normalised stream and added back to it."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.attention_norm = _norm(config.hidden_size, config, rngs)
        self.attention = Attention(config, rngs=rngs)
        self.mlp_norm = _norm(config.hidden_size, config, rngs)
        self.mlp = GatedMLP(config, rngs=rngs)
        self.dropout = config.dropout

    def __call__(
        self,
        x: jax.Array,
        keys: jax.Array | None,
        documents: jax.Array | None = None,
        cache: LayerCache | None = None,
    ) -> jax.Array:
        """Return `x` [batch, length, hidden] after this block."""
        attended = self.attention(self.attention_norm(x), fold(keys, 2), documents, cache)
        x = x + drop(attended, self.dropout, fold(keys, 0))
        return x + drop(self.mlp(self.mlp_norm(x), fold(keys, 3)), self.dropout, fold(keys, 1))


Run = tuple[nnx.GraphDef["Block"], list[int], list[Any]]
"""Neighbouring blocks with parameters alike: their graph, and the number and the state of each."""


def _alike(blocks: Iterable[Block]) -> Iterator[Run]:
    """Yield runs of blocks whose parameters have the same shapes: adapters may be in some only."""
    last: tuple[Any, Any] | None = None
    run: Run | None = None
    for number, block in enumerate(blocks, 1):
        graph, state = nnx.split(block)
        kind = graph, [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(state)]
        if run is None or kind != last:
            if run is not None:
                yield run
            run, last = (graph, [], []), kind
        run[1].append(number)
        run[2].append(state)
    if run is not None:
        yield run


def _scanned(
    run: Run, remat: Remat, x: jax.Array, keys: jax.Array | None, documents: jax.Array | None
) -> jax.Array:
    """Return `x` after the blocks of `run`: they are traced and compiled once, as the body of a
    loop over their stacked parameters."""
    graph, numbers, states = run

    def one(x: jax.Array, layer: tuple[jax.Array, Any]) -> tuple[jax.Array, None]:
        number, state = layer
        block = nnx.merge(graph, state)
        return _recomputing(remat)(block, x, fold(keys, number), documents), None

    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    after: jax.Array = jax.lax.scan(one, x, (jnp.array(numbers), stacked))[0]
    return after


def _recomputing(remat: Remat) -> Callable[..., jax.Array]:
    """Return the call of a block, which keeps for the backward pass what `remat` says."""
    if remat is Remat.NONE:
        return Block.__call__
    keeps = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    call: Callable[..., jax.Array] = nnx.remat(
        Block.__call__, policy=keeps if remat is Remat.DOTS else None
    )
    return call


class Attention(nnx.Module):
    """Causal attention in which num_heads / num_kv_heads query heads share a key/value head."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        hidden, size = config.hidden_size, config.head_size
        self.theta = config.rope_theta
        self.scaling = config.rope_scaling
        self.head_size = size
        self.num_kv_heads = config.num_kv_heads
        self.query = _linear(hidden, config.num_heads * size, config, rngs)
        self.key = _linear(hidden, config.num_kv_heads * size, config, rngs)
        self.value = _linear(hidden, config.num_kv_heads * size, config, rngs)
        self.output = _linear(config.num_heads * size, hidden, config, rngs)
        self.query_norm = _norm(size, config, rngs) if config.qk_norm else None
        self.key_norm = _norm(size, config, rngs) if config.qk_norm else None

    def empty_cache(self, batch: int, length: int) -> LayerCache:
        """Return a cache for `batch` sequences of up to `length` tokens."""
        return LayerCache.empty(batch, length, self.num_kv_heads, self.head_size, self.key.dtype)

    def __call__(
        self,
        x: jax.Array,
        keys: jax.Array | None = None,
        documents: jax.Array | None = None,
        cache: LayerCache | None = None,
    ) -> jax.Array:
        """Attend from each position of `x` [batch, length, hidden] to itself and earlier ones of
        its document; returns the same shape. `keys` are for the dropout of adapters; with a
        `cache`, the positions come after those in it, all of one document."""
        heads = (*x.shape[:-1], -1, self.head_size)
        query = self.query(x, keys=fold(keys, 0)).reshape(heads)
        key = self.key(x, keys=fold(keys, 1)).reshape(heads)
        value = self.value(x, keys=fold(keys, 2)).reshape(heads)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        places = None if cache is None else cache.places(x.shape[1])
        query, key = (rotate(one, self.theta, self.scaling, places) for one in (query, key))
        if cache is None:
            mixed = jax.nn.dot_product_attention(
                query, key, value, mask=_within_documents(documents), is_causal=True
            )
        else:
            mixed = cache.attend(query, key, value)
        return self.output(mixed.reshape(*x.shape[:-1], -1), keys=fold(keys, 3))


class GatedMLP(nnx.Module):
    """SwiGLU."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.gate = _linear(config.hidden_size, config.mlp_size, config, rngs)
        self.up = _linear(config.hidden_size, config.mlp_size, config, rngs)
        self.down = _linear(config.mlp_size, config.hidden_size, config, rngs)

    def __call__(self, x: jax.Array, keys: jax.Array | None = None) -> jax.Array:
        """Transform each position of `x` [..., hidden] by itself; returns the same shape. `keys`
        are for the dropout of adapters."""
        gated = jax.nn.silu(self.gate(x, keys=fold(keys, 0))) * self.up(x, keys=fold(keys, 1))
        return self.down(gated, keys=fold(keys, 2))


def rotate(
    x: jax.Array,
    theta: float,
    scaling: RopeScaling | None = None,
    places: jax.Array | None = None,
) -> jax.Array:
    """Rotary position embedding of `x` [batch, length, heads, size], at `places` [batch, length];
    None: from 0 on.

    Dimension i of the first half and of the second form a plane, turned by
    position / theta^(2i / size): dot products then depend on relative positions alone.
    """
    size = x.shape[-1]
    frequency = theta ** (-jnp.arange(0, size, 2, dtype=jnp.float32) / size)
    if scaling is not None:
        frequency = _stretched(frequency, scaling)
    if places is None:
        places = jnp.arange(x.shape[1])
    angle = places.astype(jnp.float32)[..., None, None] * frequency
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)


def _stretched(frequency: jax.Array, scaling: RopeScaling) -> jax.Array:
    """Return the frequencies [planes] for longer texts (Llama 3.1; Grattafiori et al., 2024)."""
    turns = scaling.original_max_position_embeddings * frequency / (2 * jnp.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    is_fast = jnp.clip((turns - low) / (high - low), 0, 1)
    return (1 - is_fast) * frequency / scaling.factor + is_fast * frequency


def _within_documents(documents: jax.Array | None) -> jax.Array | None:
    """Return which positions belong to the same document, [batch, 1, length, length]."""
    if documents is None:
        return None
    return (documents[:, :, None] == documents[:, None, :])[:, None]


def _linear(inputs: int, outputs: int, config: ModelConfig, rngs: nnx.Rngs) -> Linear:
    return Linear(inputs, outputs, jnp.dtype(config.dtype), rngs=rngs)


def _norm(size: int, config: ModelConfig, rngs: nnx.Rngs) -> nnx.RMSNorm:
    dtype = jnp.dtype(config.dtype)
    return nnx.RMSNorm(size, epsilon=config.norm_epsilon, dtype=dtype, rngs=rngs)
