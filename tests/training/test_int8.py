"""A frozen base as int8: what it computes, how it is saved, started from and merged."""

# mypy: allow-untyped-calls
from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from supervisor.config.training.resolved import StartPoint, TrainerConfig, parse
from trainer.config_fingerprint import adapters_of, differences, fingerprint
from trainer.first_state import first_state
from trainer.int8 import dequantised, quantised
from trainer.lora import merged
from trainer.train_state import TrainStateSpec
from trainer.weights_fingerprint import weights_fingerprint

from .harness import MakeTrainer, assert_same_bits, spec_of, tiny
from .test_lora import with_random_adapters

ADAPTERS = {"rank": 2, "alpha": 8, "dropout": 0.3}


def config(base: str = "int8", directory: Path = Path("/nowhere")) -> TrainerConfig:
    mapping = tiny(directory)
    mapping["trainer"]["init"]["lora"] = ADAPTERS | {"base": base}
    return parse(mapping)


def flat(state: Any) -> dict[str, Any]:
    return {".".join(map(str, path)): leaf for path, leaf in nnx.to_flat_state(state)}


def test_each_channel_has_its_own_scale_and_zero_stays_zero() -> None:
    """The reference: the same in numpy."""
    kernel = np.random.default_rng(0).normal(size=(32, 8)).astype(np.float32)
    kernel *= np.float32(10.0) ** np.arange(-4, 4, dtype=np.float32)
    kernel[:, 3], kernel[5] = 0, 0
    values, scale = map(np.asarray, quantised(jnp.asarray(kernel)))
    largest = np.abs(kernel).max(axis=0)
    largest = np.where(largest > 0, largest, np.float32(127))
    np.testing.assert_array_equal(scale, largest * np.float32(1 / 127))
    inverse = np.float32(1) / largest * np.float32(127)
    np.testing.assert_array_equal(values, np.rint(kernel * inverse).astype(np.int8))
    assert values.dtype == np.int8
    assert np.abs(values).max(axis=0).tolist() == [127] * 3 + [0] + [127] * 4
    back = np.asarray(dequantised(jnp.asarray(values), jnp.asarray(scale)))
    assert (np.abs(back - kernel) <= 0.5001 * scale).all()
    assert not back[5].any()


def test_it_is_as_close_as_what_qwix_does() -> None:
    """Whose scale is the largest weight / 127.5."""
    qwix = pytest.importorskip("qwix")
    kernel = jax.random.normal(jax.random.key(0), (32, 8))
    theirs = qwix.quantize(kernel, jnp.int8, channelwise_axes=[1])
    values, scale = quantised(kernel)
    np.testing.assert_allclose(scale, theirs.scale.reshape(-1), rtol=0.005)
    np.testing.assert_allclose(values, theirs.qvalue, atol=1)
    own = jnp.abs(dequantised(values, scale) - kernel).mean()
    other = jnp.abs(qwix.dequantize(theirs) - kernel).mean()
    assert own < 1.02 * other


def test_all_linear_layers_of_the_base_are_int8_and_nothing_else() -> None:
    state = spec_of(config()).fresh()
    found = flat(state.frozen)
    assert {path for path, leaf in found.items() if leaf.dtype == jnp.int8} == {
        path for path in found if path.endswith(".kernel")
    }
    assert found["embedding.embedding"].dtype == jnp.float32
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(state.params))


def test_it_computes_nearly_what_the_float_base_does_and_exactly_what_its_own_weights_say() -> None:
    plan, float_plan = spec_of(config()), spec_of(config("float32"))
    state, exact = plan.fresh(), float_plan.fresh()
    tokens = jax.random.randint(jax.random.key(0), (2, 8), 0, 257)
    logits = plan.model(state.params, state.frozen)(tokens)
    assert jnp.abs(logits - float_plan.model(exact.params, exact.frozen)(tokens)).max() < 0.1
    np.testing.assert_array_equal(plan.reference(state.frozen)(tokens), logits)
    params = with_random_adapters(state.params)
    plain = TrainStateSpec.of(parse(tiny(Path("/nowhere"))).init, plan.mesh)
    weights = merged(params, state.frozen, scale=4.0)
    assert set(flat(weights)) == set(flat(plain.weights))
    np.testing.assert_allclose(
        plain.reference(weights)(tokens),
        plan.model(params, state.frozen)(tokens),
        rtol=1e-3,
        atol=1e-3,
    )


def test_a_phase_starts_from_float_weights_and_leaves_float_weights(
    make_trainer: MakeTrainer,
) -> None:
    """Whole weights, then an int8 base with adapters, and its merged weights as a base again."""
    whole = make_trainer("whole", max_steps=3)
    whole.finish()
    trainer = make_trainer("int8", max_steps=3)
    trainer.mapping["trainer"]["init"]["lora"] = ADAPTERS | {"base": "int8"}
    trainer.mapping["trainer"]["start_from"] = {"directory": str(whole.checkpoints)}
    trainer.finish()
    state, started = trainer.state(3), whole.state(3)
    kernel = "blocks.0.mlp.up.kernel"
    values, scale = quantised(flat(started.params)[kernel][...])
    assert_same_bits(flat(state.frozen)[kernel][...], values)
    assert_same_bits(flat(state.frozen)["blocks.0.mlp.up.kernel_scale"][...], scale)

    mapping = tiny(Path("/nowhere"))
    mapping["trainer"]["start_from"] = {"directory": str(trainer.checkpoints)}
    parsed = parse(mapping)
    assert isinstance(parsed.start_from, StartPoint)
    following = first_state(parsed.start_from, spec_of(parsed), lambda *_: None)
    assert {leaf.dtype for leaf in jax.tree.leaves(following.params)} == {jnp.dtype("float32")}
    expected = merged(state.params, state.frozen, scale=4.0)
    np.testing.assert_allclose(flat(following.params)[kernel], flat(expected)[kernel], rtol=1e-6)


def test_another_type_of_the_base_is_refused_by_name() -> None:
    one, other = fingerprint(config().init), fingerprint(config("float32").init)
    assert differences(other, one) == ["lora.base is 'float32' there, but 'int8' in the config"]
    old = {key: value for key, value in other.items() if key != "lora.base"}
    adapters = adapters_of(old)
    assert adapters is not None
    assert adapters.base == "float32", "of a checkpoint that knows no other"


def test_the_fingerprint_of_frozen_weights_covers_each_int8_bit() -> None:
    frozen = spec_of(config()).fresh().frozen
    leaves, tree = jax.tree.flatten(frozen)
    number = next(n for n, leaf in enumerate(leaves) if leaf.dtype == jnp.int8)
    leaves[number] = leaves[number].at[0, 0].add(1)
    assert weights_fingerprint(jax.tree.unflatten(tree, leaves)) != weights_fingerprint(frozen)
