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
        if self.head is None:
            logits = self.embedding.attend(x)
        else:
            logits = self.head(x, keys=fold(keys, len(self.blocks) + 1))
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
        attended = self.attention(self.attention_norm(x), fold(keys, 2))
        x = x + drop(attended, self.dropout, fold(keys, 0))
        return x + drop(self.mlp(self.mlp_norm(x), fold(keys, 3)), self.dropout, fold(keys, 1))


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

    def __call__(self, x: jax.Array, keys: jax.Array | None = None) -> jax.Array:
        """Attend from each position of `x` [batch, length, hidden] to itself and earlier ones;
        returns the same shape. `keys` are for the dropout of adapters."""
        heads = (*x.shape[:-1], -1, self.head_size)
        query = rotate(self.query(x, keys=fold(keys, 0)).reshape(heads), self.theta)
        key = rotate(self.key(x, keys=fold(keys, 1)).reshape(heads), self.theta)
        value = self.value(x, keys=fold(keys, 2)).reshape(heads)
        mixed = jax.nn.dot_product_attention(query, key, value, is_causal=True)
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


def _linear(inputs: int, outputs: int, config: ModelConfig, rngs: nnx.Rngs) -> Linear:
    return Linear(inputs, outputs, jnp.dtype(config.dtype), rngs=rngs)


def _norm(config: ModelConfig, rngs: nnx.Rngs) -> nnx.RMSNorm:
    return nnx.RMSNorm(config.hidden_size, dtype=jnp.dtype(config.dtype), rngs=rngs)
