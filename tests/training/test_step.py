"""The train step: the same global batch makes the same step, however it is spread."""

# mypy: allow-untyped-calls
from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from pydantic import TypeAdapter

from supervisor.config.training.layout import Rung
from supervisor.config.training.resolved import InitConfig, parse
from supervisor.config.training.sections import OptimizerConfig, Remat, ValidationConfig
from trainer.batch_sharder import BatchSharder
from trainer.data import Batch
from trainer.evaluation import Evaluation
from trainer.evaluation_progress import EvaluationProgress
from trainer.executables import Executables
from trainer.log import WorkerLog
from trainer.mesh import make_mesh
from trainer.optimizer import make_schedule
from trainer.step import Metrics, jit_loss_and_gradients, jit_train_step
from trainer.termination import Termination
from trainer.train_state import TrainState, TrainStateSpec

from .harness import assert_same_bits, tiny


@pytest.fixture(autouse=True)
def _compiled_in_haste() -> Iterator[None]:
    """What is computed here is compared up to rounding, and most of the time is the compiler's."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def _init(name: str = "adamw", dropout: float = 0.0) -> InitConfig:
    mapping = tiny(Path("/tmp/checkpoints"))
    mapping["trainer"]["init"]["model"]["dropout"] = dropout
    mapping["trainer"]["init"]["optimizer"] = {"name": name, "learning_rate": 0.01}
    return parse(mapping).init


def _batch() -> Batch:
    return np.random.default_rng(0).integers(0, 257, (8, 17), np.int32)


@cache
def _step(init: InitConfig, rung: Rung) -> tuple[TrainState, Metrics]:
    sharder = BatchSharder(make_mesh(rung), rung)
    spec = TrainStateSpec.of(init, sharder.mesh)
    state, metrics = jit_train_step(spec)(spec.fresh(), sharder.put(_batch()))
    return state, metrics


ONE = Rung(1, 1, 1, 8, 1)
RUNGS = [Rung(1, 1, 1, 2, 4), Rung(4, 2, 2, 1, 2)]


@pytest.mark.parametrize("rung", RUNGS, ids=str)
def test_accumulation_and_sharding_change_a_step_only_by_rounding(rung: Rung) -> None:
    # Plain descent: the change of the parameters is the gradient itself.
    whole_state, whole = _step(_init("sgd", dropout=0.5), Rung(1, 1, 1, 8, 1))
    state, metrics = _step(_init("sgd", dropout=0.5), rung)
    for name, value in whole.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-5)
    for one, other in zip(
        jax.tree.leaves(state.optimizer), jax.tree.leaves(whole_state.optimizer), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-6)


def test_dropout_is_another_in_each_step() -> None:
    rung = Rung(1, 1, 1, 8, 1)
    sharder = BatchSharder(make_mesh(rung), rung)
    spec = TrainStateSpec.of(_init("sgd", dropout=0.5), sharder.mesh)
    step = jit_train_step(spec)
    later = replace(spec.fresh(), step=jnp.int32(1))
    losses = [
        step(state, sharder.put(_batch()))[1]["loss"]
        for state in (spec.fresh(), spec.fresh(), later)
    ]
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.slow
def test_the_first_state_is_the_same_on_every_mesh_and_its_seeds_own() -> None:
    """Slow for XLA to optimise both programs, as it does for users."""
    init = _init()
    one, four = (TrainStateSpec.of(init, make_mesh(rung)).fresh() for rung in RUNGS)
    assert_same_bits(one, four)
    other = TrainStateSpec.of(init.model_copy(update={"seed": 1}), make_mesh(RUNGS[0])).fresh()
    assert not np.array_equal(jax.tree.leaves(one.params)[0], jax.tree.leaves(other.params)[0])


def test_parameters_and_moments_are_sharded_over_fsdp() -> None:
    state, _ = _step(_init(), Rung(4, 1, 4, 2, 1))
    for tree in (state.params, state.optimizer):
        for array in jax.tree.leaves(tree):
            if array.ndim:
                (size,) = {shard.data.size for shard in array.addressable_shards}
                assert size == array.size // 4


@pytest.mark.parametrize("name", ["adamw", "lion", "adafactor", "sgd"])
def test_every_optimizer_learns(name: str) -> None:
    rung = Rung(1, 1, 1, 8, 1)
    sharder = BatchSharder(make_mesh(rung), rung)
    spec = TrainStateSpec.of(_init(name), sharder.mesh)
    state, train_step, tokens = spec.fresh(), jit_train_step(spec), sharder.put(_batch())
    losses = []
    for _ in range(12):
        state, metrics = train_step(state, tokens)
        losses.append(metrics["loss"])
    assert losses[-1] < losses[0] - 0.05


def test_the_rate_warms_up_and_falls_to_its_final_fraction() -> None:
    config = TypeAdapter[OptimizerConfig](OptimizerConfig).validate_python(
        {
            "name": "sgd",
            "learning_rate": 1.0,
            "warmup_steps": 4,
            "final_learning_rate_fraction": 0.2,
        }
    )
    rates = [np.asarray(make_schedule(config, 10)(jnp.int32(step))) for step in range(11)]
    np.testing.assert_allclose(rates[:5], [0.2, 0.4, 0.6, 0.8, 1.0], rtol=1e-6)
    np.testing.assert_allclose(rates[7], 0.6, rtol=1e-6)
    np.testing.assert_allclose(rates[10], 0.2, rtol=1e-6)
    assert rates[4:] == sorted(rates[4:], reverse=True)


def test_what_is_kept_for_the_backward_pass_changes_no_gradient() -> None:
    """What is not kept is computed again: with `dots` the products of attention alone, with
    `blocks` all of them."""
    products, found = {}, []
    for remat in Remat:
        init = _init(dropout=0.1)  # the same masks, too
        init = init.model_copy(update={"loop": init.loop.model_copy(update={"remat": remat})})
        sharder = BatchSharder(make_mesh(ONE), ONE)
        spec = TrainStateSpec.of(init, sharder.mesh)
        state, tokens = spec.fresh(), sharder.put(_batch())
        lowered = jit_loss_and_gradients(spec).lower(state, tokens)
        products[remat] = lowered.as_text().count("dot_general")
        found.append(lowered.compile()(state, tokens)[1])
    assert products[Remat.DOTS] == products[Remat.NONE] + 2
    assert products[Remat.BLOCKS] > products[Remat.DOTS]
    for other in found[1:]:
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), found[0], other)


def test_gradients_are_clipped_by_their_global_norm() -> None:
    init = _init("sgd")
    assert init.optimizer is not None
    clipped = init.optimizer.model_copy(update={"clip_norm": 1e-3})
    state, metrics = _step(init.model_copy(update={"optimizer": clipped}), RUNGS[0])
    assert metrics["gradient_norm"] > 1e-2
    np.testing.assert_allclose(optax.tree.norm(state.optimizer), 1e-3, rtol=1e-4)


@pytest.fixture
def termination() -> Iterator[Termination]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield Termination(environ={})
    for number, handler in before.items():
        signal.signal(number, handler)


def test_an_evaluation_repeats_itself_to_the_bit_also_in_parts(termination: Termination) -> None:
    rung = Rung(1, 1, 1, 4, 2)
    sharder = BatchSharder(make_mesh(rung), rung)
    spec = TrainStateSpec.of(_init(dropout=0.5), sharder.mesh)
    config = ValidationConfig.model_validate(
        {"every": 4, "steps": 5, "dataloader": {"paths": "stdlib/json/tool.py"}}
    )
    executables = Executables(None, {}, WorkerLog())
    evaluation, state = Evaluation(config, spec, sharder, executables, print), spec.fresh()
    first = evaluation.begin()
    loss = evaluation.run(state, first, termination.requested)
    assert isinstance(loss, float)
    assert abs(loss - np.log(264)) < 1.5
    assert evaluation.run(state, first, termination.requested) == loss
    os.kill(os.getpid(), signal.SIGTERM)
    assert evaluation.run(state, first, termination.requested) == first
    for done in range(5):
        found = evaluation.run(state, first, partial(next, iter([False] * done + [True])))
        assert isinstance(found, EvaluationProgress)
        assert found.next_batch == done
        kept = EvaluationProgress.parsed(json.loads(json.dumps(found.encoded())))
        assert evaluation.run(state, evaluation.begin(kept), lambda: False) == loss
    other = config.model_copy(update={"steps": 4})
    assert Evaluation(other, spec, sharder, executables, print).begin(kept).next_batch == 0
