"""The decoder computes what a causal, grouped-query, rotary transformer must."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from supervisor.config.training.sections import LoraConfig, ModelConfig
from trainer.layers import drop, fold
from trainer.lora import add_adapters
from trainer.model import Decoder, rotate


def _model(**changes: Any) -> Decoder:
    shape: dict[str, Any] = {"hidden_size": 16, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2}
    return Decoder(ModelConfig.model_validate(shape | changes), rngs=nnx.Rngs(0))


def _tokens(seed: int = 0) -> jax.Array:
    return jax.random.randint(jax.random.key(seed), (2, 8), 0, 257)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_are_float32_over_the_vocabulary(tied: bool, dtype: str) -> None:
    model = _model(tie_embeddings=tied, dtype=dtype)
    logits = model(_tokens())
    assert logits.shape == (2, 8, 264)
    assert logits.dtype == jnp.float32
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))} == {
        jnp.dtype("float32")
    }
    assert (model.head is None) == tied


def test_a_later_token_does_not_change_earlier_logits() -> None:
    model, tokens = _model(), _tokens()
    changed = tokens.at[:, 5].set((tokens[:, 5] + 1) % 257)
    before, after = (model(one) for one in (tokens, changed))
    np.testing.assert_array_equal(before[:, :5], after[:, :5])
    assert not np.allclose(before[:, 5:], after[:, 5:])


def test_query_heads_share_key_value_heads_in_groups() -> None:
    """Full attention with each key/value head repeated for its group gives the same."""
    grouped, full = _model(num_kv_heads=2), _model(num_kv_heads=4)
    state = nnx.state(grouped, nnx.Param)
    for block in state["blocks"].values():
        for name in ("key", "value"):
            kernel = block["attention"][name]["kernel"]
            heads = kernel[...].reshape(16, 2, 4)
            kernel.set_value(jnp.repeat(heads, 2, axis=1).reshape(16, 16))
    nnx.update(full, state)
    np.testing.assert_allclose(
        full(_tokens()),
        _model(num_kv_heads=2)(_tokens()),
        rtol=1e-5,
        atol=1e-5,  # of sums whose terms are of the order of 1
    )


def test_rotation_makes_products_depend_on_distance_alone() -> None:
    query, key = (jax.random.normal(jax.random.key(seed), (8,)) for seed in (0, 1))
    turned = [rotate(jnp.tile(one, (1, 6, 1, 1)), 10_000.0)[0, :, 0] for one in (query, key)]
    products = turned[0] @ turned[1].T
    for distance in range(-5, 6):
        diagonal = np.diagonal(products, distance)
        np.testing.assert_allclose(diagonal, diagonal[0], rtol=1e-4, atol=1e-5)
    assert not np.allclose(products[0, 0], products[0, 1], rtol=1e-2)


def test_dropout_follows_from_the_key_of_a_sequence_alone() -> None:
    model, tokens, keys = _model(dropout=0.5), _tokens(), jax.random.split(jax.random.key(1), 2)
    both = model(tokens, keys)
    assert not np.allclose(both, model(tokens))
    assert not np.allclose(both, model(tokens, keys[::-1]))
    for one in range(2):
        alone = model(tokens[one : one + 1], keys[one : one + 1])
        np.testing.assert_allclose(alone[0], both[one], rtol=1e-5, atol=1e-5)


def test_each_place_in_the_model_drops_others() -> None:
    keys = jax.random.split(jax.random.key(1), 2)
    masks = [drop(jnp.ones((2, 8, 16)), 0.5, fold(keys, number)) for number in range(3)]
    assert {*np.unique(np.stack(masks))} == {0.0, 2.0}
    assert len({mask[place].tobytes() for mask in masks for place in range(2)}) == 6


def test_blocks_in_a_loop_compute_the_same_with_fewer_operations() -> None:
    """With dropout and documents, and adapters in one block alone, which is in no loop then."""
    tokens, keys = _tokens(), jax.random.split(jax.random.key(1), 2)
    documents = jnp.array([[1] * 5 + [2] * 3, [1] * 8])
    products, found = {}, []
    in_haste: Any = {"xla_backend_optimization_level": 0}
    for scans in (False, True):
        model = _model(num_layers=6, dropout=0.3)
        config = LoraConfig(rank=2, pattern=r"^blocks\.3\.mlp")
        add_adapters(model, config, rngs=nnx.Rngs(2))
        model.scans_layers = scans
        graph, state = nnx.split(model)

        def loss(state: Any, graph: Any = graph) -> jax.Array:
            logits: jax.Array = nnx.merge(graph, state)(tokens, keys, documents)
            return jnp.square(logits).mean()

        lowered = jax.jit(jax.value_and_grad(loss)).lower(state)
        products[scans] = lowered.as_text().count("dot_general")
        found.append(lowered.compile(in_haste)(state))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), *found)
    assert products[True] < products[False] * 0.7
