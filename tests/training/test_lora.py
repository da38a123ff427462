"""Low-rank adapters: what they compute, what is trained, how they are saved and started from."""

# mypy: allow-untyped-calls
from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from supervisor.config.training.layout import Rung
from supervisor.config.training.linear_layers import adapted_layers, linear_layers
from supervisor.config.training.resolved import StartPoint, TrainerConfig, parse
from supervisor.config.training.sections import LoraConfig, ModelConfig
from supervisor.protocol.messages import NoticeCode
from trainer.batch_sharder import BatchSharder
from trainer.checkpoint import newest_step
from trainer.checkpoint_steps import NoUsableCheckpointError
from trainer.first_state import first_state
from trainer.layers import Linear
from trainer.lora import merged
from trainer.manifest import MANIFEST
from trainer.mesh import make_mesh
from trainer.model import Decoder
from trainer.objective_choice import objective_of
from trainer.step import jit_loss_and_gradients, jit_train_step
from trainer.train_state import Params, TrainStateSpec

from .harness import MakeTrainer, Trainer, assert_same_bits, batches_of, spec_of, tiny
from .notices import Notices

ADAPTERS = {"rank": 2, "alpha": 8, "dropout": 0.3, "pattern": r"attention\.(query|value)|mlp\.down"}


def config(directory: Path = Path("/nowhere"), **changes: Any) -> TrainerConfig:
    mapping = tiny(directory)
    mapping["trainer"]["init"]["lora"] = ADAPTERS | changes
    return parse(mapping)


def with_random_adapters(params: Params) -> Params:
    """`params`, with adapters that are not zero."""
    key = jax.random.key(3)
    new: Params = jax.tree.map(lambda x: jax.random.normal(key, x.shape, x.dtype), params)
    return new


@pytest.mark.parametrize("tied", [True, False])
def test_the_paths_that_a_pattern_is_searched_in_are_those_of_the_model(tied: bool) -> None:
    shape = {"hidden_size": 16, "num_layers": 2, "num_heads": 4, "tie_embeddings": tied}
    model = ModelConfig.model_validate(shape)
    found = {
        ".".join(map(str, path))
        for path, layer in nnx.iter_modules(Decoder(model, rngs=nnx.Rngs(0)))
        if isinstance(layer, Linear)
    }
    assert set(linear_layers(model)) == found


def test_only_the_adapters_are_trained_and_the_base_is_that_of_the_seed() -> None:
    plan = spec_of(config())
    state = plan.fresh()
    plain = TrainStateSpec.of(parse(tiny(Path("/nowhere"))).init, plan.mesh).fresh()
    assert_same_bits(state.frozen, plain.params)
    paths = {".".join(map(str, path)) for path, _ in nnx.to_flat_state(state.params)}
    layers = adapted_layers(plan.config.model, LoraConfig.model_validate(ADAPTERS))
    assert layers == ["blocks.0.attention.query", "blocks.0.attention.value", "blocks.0.mlp.down"]
    assert paths == {f"{layer}.adapter.{half}" for layer in layers for half in ("down", "up")}


def test_adapters_begin_as_nothing_and_compute_what_the_merged_weights_do() -> None:
    plan = spec_of(config())
    state = plan.fresh()
    tokens = jax.random.randint(jax.random.key(0), (2, 8), 0, 257)
    base = plan.reference(state.frozen)(tokens)
    np.testing.assert_array_equal(plan.model(state.params, state.frozen)(tokens), base)
    params = with_random_adapters(state.params)
    adapted = plan.model(params, state.frozen)(tokens)
    assert not np.allclose(adapted, base)
    weights = merged(params, state.frozen, scale=4.0)
    np.testing.assert_allclose(plan.reference(weights)(tokens), adapted, rtol=1e-3, atol=1e-4)


def gradients(rung: Rung, *, bitwise: bool = False) -> tuple[Any, Any]:
    mapping = tiny(Path("/nowhere"))
    mapping["trainer"]["init"]["lora"] = ADAPTERS
    if bitwise:
        mapping["trainer"]["init"]["determinism"] = {"elastic": "bitwise"}
        mapping["trainer"]["init"]["loop"] |= {"micro_batch_size": 2}
    parsed = parse(mapping)
    sharder = BatchSharder(make_mesh(rung), rung)
    objective = objective_of(parsed.init, parsed.fit.decisive)
    plan = TrainStateSpec.of(parsed.init, sharder.mesh, objective)
    batch = next(batches_of(parsed.fit.decisive, 8, 1))
    result: tuple[Any, Any] = jit_loss_and_gradients(plan)(plan.fresh(), sharder.put(batch))
    return result


def test_dropout_of_adapters_depends_on_the_sequence_and_not_on_the_cut() -> None:
    whole = gradients(Rung(1, 1, 1, 8, 1))
    for rung in (Rung(1, 1, 1, 2, 4), Rung(4, 2, 2, 1, 2)):
        for one, other in zip(
            jax.tree.leaves(gradients(rung)), jax.tree.leaves(whole), strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-6)


@pytest.mark.slow
def test_bitwise_means_every_bit_on_every_rung() -> None:
    """Slow for XLA to optimise each of the programs, as it does for users."""
    two, four = (gradients(Rung(n, n, 1, 2, 4 // n), bitwise=True) for n in (2, 4))
    assert_same_bits(two, four)


def test_training_learns_and_leaves_the_base_alone() -> None:
    parsed = config(pattern=".", dropout=0.1)
    plan = spec_of(parsed)
    sharder = BatchSharder(plan.mesh, Rung(1, 1, 1, 8, 1))
    batch = sharder.put(next(batches_of(parsed.fit.decisive, 8, 1)))
    state, step, losses = plan.fresh(), jit_train_step(plan), []
    for _ in range(30):
        state, measured = step(state, batch)
        losses.append(float(measured["loss"]))
    assert losses[-1] < losses[0] - 0.2
    assert_same_bits(state.frozen, plan.fresh().frozen)
    assert all(np.asarray(leaf).any() for leaf in jax.tree.leaves(state.params))


def lora_trainer(
    make_trainer: MakeTrainer, name: str, *, save_frozen: bool = True, **loop: int
) -> Trainer:
    trainer = make_trainer(name, **loop)
    init = trainer.mapping["trainer"]["init"]
    init["lora"] = ADAPTERS
    init["checkpoint"] |= {"save_frozen": save_frozen}
    return trainer


@pytest.mark.parametrize("save_frozen", [True, False])
def test_killed_with_dropout_it_ends_with_the_same_bits(
    make_trainer: MakeTrainer, save_frozen: bool
) -> None:
    whole = lora_trainer(make_trainer, "whole", save_frozen=save_frozen, max_steps=9)
    whole.finish()
    killed = lora_trainer(make_trainer, "killed", save_frozen=save_frozen, max_steps=9)
    assert killed.run({"step": 3, "signal": "SIGTERM"}).returncode == -15
    saved = newest_step(killed.checkpoints)
    assert saved is not None
    assert (killed.checkpoints / str(saved) / "frozen").is_dir() == save_frozen
    assert f"restored step {saved}" in killed.finish()
    assert_same_bits(killed.state(9), whole.state(9))


def test_another_base_or_other_adapters_are_refused_by_name(make_trainer: MakeTrainer) -> None:
    trainer = lora_trainer(make_trainer, "run", save_frozen=False, max_steps=5)
    trainer.finish()
    init = trainer.mapping["trainer"]["init"]
    init["loop"]["max_steps"] = 6

    def refused(**changes: Any) -> str:
        trainer.mapping["trainer"]["init"] = init | changes
        assert trainer.run().returncode == 1
        (*_, last) = trainer.failure().exceptions
        assert last.type.endswith("CheckpointMismatchError")
        return last.message

    told = refused(seed=4)
    assert "its frozen weights have the fingerprint" in told
    assert "those that the config gives (start_from, model.pretrained or init.seed)" in told
    assert "lora.rank is 2 there, but 3 in the config" in refused(lora=ADAPTERS | {"rank": 3})
    assert "lora.rank is 2 there, but None in the config" in refused(lora=None)
    trainer.mapping["trainer"]["init"] = init
    assert "restored step 5" in trainer.finish()


def test_a_base_that_cannot_be_made_again_is_not_left_out(make_trainer: MakeTrainer) -> None:
    trainer = lora_trainer(make_trainer, "run", save_frozen=True, max_steps=3)
    trainer.finish()
    init = trainer.mapping["trainer"]["init"]
    init["loop"]["max_steps"] = 4
    init["checkpoint"]["save_frozen"] = False
    init["seed"] = 4
    assert trainer.run().returncode == 1
    (*_, last) = trainer.failure().exceptions
    assert last.type.endswith("CheckpointMismatchError")
    assert last.message.endswith(
        "set init.checkpoint.save_frozen: true to go on with those of the checkpoint"
    )
    del init["seed"]
    assert "restored step 3" in trainer.finish()
    assert not (trainer.checkpoints / "4" / "frozen").exists()


def test_a_phase_starts_from_merged_adapters(make_trainer: MakeTrainer) -> None:
    first = lora_trainer(make_trainer, "first", max_steps=5)
    first.finish()
    saved = first.state(5)
    expected = merged(saved.params, saved.frozen, scale=4.0)
    source = StartPoint(directory=first.checkpoints)
    plain, said = spec_of(parse(tiny(Path("/nowhere")))), Notices()
    assert_same_bits(first_state(source, plain, said).params, expected)
    other = config(rank=3, pattern="mlp")
    anew = first_state(source, spec_of(other), said)
    assert_same_bits(anew.frozen, expected)
    assert_same_bits(anew.params, spec_of(other).fresh().params)
    assert not said
    (first.checkpoints / "5" / MANIFEST).unlink()  # as after a kill just after the commit
    assert_same_bits(first_state(source, plain, said).params, expected)
    assert said.codes == [NoticeCode.CHECKPOINT_UNVERIFIED]


def test_adapters_without_their_base_are_no_start_for_another_phase(
    make_trainer: MakeTrainer,
) -> None:
    first = lora_trainer(make_trainer, "first", save_frozen=False, max_steps=2)
    first.finish()
    with pytest.raises(NoUsableCheckpointError, match=r"without their base: .*save_frozen: true"):
        first_state(StartPoint(directory=first.checkpoints), spec_of(config()), Notices())
