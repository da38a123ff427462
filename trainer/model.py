"""The model: a decoder-only transformer in the style of Llama.

RMSNorm before each sublayer (Zhang and Sennrich, 2019), rotary positions (Su et al., 2021),
grouped-query attention (Ainslie et al., 2023), SwiGLU (Shazeer, 2020), no biases. Parameters are
float32; `dtype` is what is computed in, and logits are float32 again.
"""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
from flax import nnx

from supervisor.config.training.sections import ModelConfig


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
        self.blocks = nnx.List(Block(config, rngs=rngs) for _ in range(config.num_layers))
        self.norm = _norm(config, rngs)
        self.head = (
            None
            if config.tie_embeddings
            else _linear(config.hidden_size, config.vocab_size, config, rngs)
        )

    def __call__(self, tokens: jax.Array, keys: jax.Array | None = None) -> jax.Array:
        """Return logits [batch, length, vocabulary], float32, for `tokens` [batch, length].

        `keys` [batch] are the PRNG keys for dropout, one per sequence; None: no dropout.
        """
        *_, (_, logits) = self.activations(tokens, keys)
        return logits

    def activations(
        self, tokens: jax.Array, keys: jax.Array | None
    ) -> Iterator[tuple[str, jax.Array]]:
        """Yield what each part of the model returns, with the part's name; the logits come last.
        Arguments as for a call."""
        x = drop(self.embedding(tokens), self.dropout, fold(keys, 0))
        yield "embedding", x
        for number, block in enumerate(self.blocks, 1):
            x = block(x, fold(keys, number))
            yield f"blocks.{number - 1}", x
        x = self.norm(x)
        yield "norm", x
        logits = self.embedding.attend(x) if self.head is None else self.head(x)
        yield "logits", logits.astype(jnp.float32)


class Block(nnx.Module):
    """Attention, then a gated MLP, each on the normalised stream and added back to it."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.attention_norm = _norm(config, rngs)
        self.attention = Attention(config, rngs=rngs)
        self.mlp_norm = _norm(config, rngs)
        self.mlp = GatedMLP(config, rngs=rngs)
        self.dropout = config.dropout

    def __call__(self, x: jax.Array, keys: jax.Array | None) -> jax.Array:
        """Return `x` [batch, length, hidden] after this block."""
        x = x + drop(self.attention(self.attention_norm(x)), self.dropout, fold(keys, 0))
        return x + drop(self.mlp(self.mlp_norm(x)), self.dropout, fold(keys, 1))


class Attention(nnx.Module):
    """Causal attention in which num_heads / num_kv_heads query heads share a key/value head."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        hidden, size = config.hidden_size, config.head_size
        self.theta = config.rope_theta
        self.head_size = size
        self.query = _linear(hidden, config.num_heads * size, config, rngs)
        self.key = _linear(hidden, config.num_kv_heads * size, config, rngs)
        self.value = _linear(hidden, config.num_kv_heads * size, config, rngs)
        self.output = _linear(config.num_heads * size, hidden, config, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Attend from each position of `x` [batch, length, hidden] to itself and earlier ones;
        returns the same shape."""
        heads = (*x.shape[:-1], -1, self.head_size)
        query = rotate(self.query(x).reshape(heads), self.theta)
        key = rotate(self.key(x).reshape(heads), self.theta)
        value = self.value(x).reshape(heads)
        mixed = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        return self.output(mixed.reshape(*x.shape[:-1], -1))


class GatedMLP(nnx.Module):
    """SwiGLU."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.gate = _linear(config.hidden_size, config.mlp_size, config, rngs)
        self.up = _linear(config.hidden_size, config.mlp_size, config, rngs)
        self.down = _linear(config.mlp_size, config.hidden_size, config, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Transform each position of `x` [..., hidden] by itself; returns the same shape."""
        return self.down(jax.nn.silu(self.gate(x)) * self.up(x))


def rotate(x: jax.Array, theta: float) -> jax.Array:
    """Rotary position embedding of `x` [batch, length, heads, size].

    Dimension i of the first half and of the second form a plane, turned by
    position / theta^(2i / size): dot products then depend on relative positions alone.
    """
    size = x.shape[-1]
    frequency = theta ** (-jnp.arange(0, size, 2, dtype=jnp.float32) / size)
    angle = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None, None] * frequency
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)


def fold(keys: jax.Array | None, number: int) -> jax.Array | None:
    """Return per-sequence PRNG keys for submodule `number`; None without `keys`."""
    return None if keys is None else jax.vmap(jax.random.fold_in, (0, None))(keys, number)


def drop(x: jax.Array, rate: float, keys: jax.Array | None) -> jax.Array:
    """Apply dropout at `rate` to `x` [batch, length, hidden]. A sequence's mask follows from its
    key alone, so it does not depend on which sequences share the micro-batch."""
    if keys is None or rate == 0:
        return x
    kept = jax.vmap(lambda key: jax.random.bernoulli(key, 1 - rate, x.shape[1:]))(keys)
    return jnp.where(kept, x / (1 - rate), 0)


def _linear(inputs: int, outputs: int, config: ModelConfig, rngs: nnx.Rngs) -> nnx.Linear:
    return nnx.Linear(inputs, outputs, use_bias=False, dtype=jnp.dtype(config.dtype), rngs=rngs)


def _norm(config: ModelConfig, rngs: nnx.Rngs) -> nnx.RMSNorm:
    return nnx.RMSNorm(config.hidden_size, dtype=jnp.dtype(config.dtype), rngs=rngs)
