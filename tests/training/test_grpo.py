"""Learning from rewards: advantages, the loss, what is sampled, and that it learns."""

# mypy: allow-untyped-calls
from __future__ import annotations

import json
import math
import re
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from supervisor.config.training.data_files import DataError
from supervisor.config.training.layout import Rung
from supervisor.config.training.resolved import TrainerConfig, parse
from supervisor.config.training.sections import (
    END_OF_DOCUMENT,
    DataloaderConfig,
    GrpoConfig,
    Importance,
    ModelConfig,
)
from trainer.batch_sharder import BatchSharder
from trainer.data import Batch, first_batches, training_data
from trainer.grpo import GroupRelative, advantages, examples
from trainer.kv_cache import set_lengths
from trainer.mesh import make_mesh
from trainer.model import Decoder
from trainer.objective import model_inputs, unlearned
from trainer.objective_choice import objective_of
from trainer.rewards import RewardNotFiniteError
from trainer.rollout_mesh import RolloutMesh
from trainer.rollouts import Rollouts, jit_sample
from trainer.sampling import Prompts, complete, nucleus
from trainer.step import jit_train_step
from trainer.token_files import read_prompts
from trainer.tokenizer import BYTES, decode
from trainer.train_state import TrainState, TrainStateSpec

from .harness import MakeTrainer, assert_same_bits, tiny
from .rewarding import of_ascii
from .test_metrics import told, writing

PROMPTS = [{"ask": f"{n}?"} for n in range(16)]


def grpo(**changes: Any) -> GrpoConfig:
    return GrpoConfig.model_validate(
        {"reward": "tests.training.rewarding:of_ascii", "completion_length": 4, "group_size": 4}
        | changes
    )


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    lines = [json.dumps(each) + "\n" for each in PROMPTS]
    (tmp_path / "prompts.jsonl").write_text("".join(lines))
    return tmp_path / "prompts.jsonl"


def config(
    prompts: Path, *, bitwise: bool = False, batch: int = 8, **changes: Any
) -> TrainerConfig:
    """Without dropout. A step learns from `batch` completions, by default four of each prompt."""
    mapping = tiny(Path("/nowhere"), max_steps=60, global_batch_size=batch)
    init, fit = mapping["trainer"]["init"], mapping["trainer"]["fit"]
    init["model"]["dropout"] = 0.0
    init["optimizer"] |= {"learning_rate": 0.02, "weight_decay": 0.0}
    init["grpo"] = grpo(**changes).model_dump(mode="json")
    if bitwise:
        init["determinism"] = {"elastic": "bitwise"}
        init["loop"] |= {"micro_batch_size": 2}
    fit["train_dataloader"] = loader(prompts).model_dump()
    fit["validation"]["dataloader"] = loader(prompts).model_dump()
    return parse(mapping)


def loader(path: Path, length: int = 8) -> DataloaderConfig:
    return DataloaderConfig.model_validate(
        {"paths": str(path), "sequence_length": length, "prompt_field": "ask"}
    )


# --- what is pure, against plain numpy ----------------------------------------------------------

rewards_of_groups = st.integers(2, 5).flatmap(
    lambda size: st.tuples(
        st.just(size),
        arrays(np.float32, (3 * size,), elements=st.floats(-100, 100, width=16)),
    )
)


@given(rewards_of_groups)
def test_advantages_are_rewards_in_deviations_from_the_mean_of_their_group(
    given: tuple[int, np.ndarray],
) -> None:
    size, rewards = given
    found = advantages(rewards, size)
    assert found.dtype == np.float32
    for begin in range(0, len(rewards), size):
        group = [float(each) for each in rewards[begin : begin + size]]
        mean = math.fsum(group) / size
        deviation = math.sqrt(math.fsum((each - mean) ** 2 for each in group) / (size - 1))
        expected = [(each - mean) / (deviation + 1e-4) for each in group]
        np.testing.assert_allclose(found[begin : begin + size], expected, rtol=1e-4, atol=1e-5)


def test_a_group_with_equal_rewards_teaches_nothing() -> None:
    np.testing.assert_array_equal(advantages(np.array([0.3] * 3 + [0, 1, 1], np.float32), 3)[:3], 0)


@settings(max_examples=30, deadline=None)
@given(
    arrays(np.float32, (2, 9), elements=st.integers(-40, 40).map(lambda n: n / 10)),
    st.sampled_from([0.05, 0.3, 0.5, 0.9, 0.999, 1.0]),
)
def test_the_nucleus_is_the_smallest_set_that_reaches_top_p(
    logits: np.ndarray, top_p: float
) -> None:
    found = np.isfinite(np.asarray(nucleus(jnp.asarray(logits), top_p)))
    for row, kept in zip(logits, found, strict=True):
        probability = np.exp(row.astype(np.float64))
        probability /= probability.sum()
        order = np.argsort(-row, kind="stable")
        before = np.zeros(len(row))
        before[order[1:]] = np.cumsum(probability[order])[:-1]
        tells = abs(before - top_p) > 1e-5  # else rounding decides
        assert np.array_equal(kept[tells], ((before < top_p) | (top_p == 1))[tells])
        assert kept[order[0]]


def numpy_loss(
    objective: GroupRelative,
    logits: np.ndarray,
    reference: np.ndarray,
    row: np.ndarray,
    sampled: np.ndarray,
    advantage: float,
) -> tuple[float, float, float]:
    """The loss of one completion, the share of its tokens that are clipped, and its KL, computed
    number by number."""
    settings = objective.config

    def log_probability(found: np.ndarray, place: int, token: int) -> float:
        scaled = found[place].astype(np.float64) / settings.temperature
        return float(scaled[token] - np.log(np.exp(scaled).sum()))

    learned = [place for place, token in enumerate(row[1:]) if token >= 0]
    now = {place: log_probability(logits, place, row[place + 1]) for place in learned}
    mean = sum(now[place] - sampled[place] for place in learned) / len(learned)
    losses, clipped, kls = [], [], []
    for place in learned:
        one = now[place] - sampled[place] if settings.importance is Importance.TOKEN else mean
        ratio = math.exp(one)
        bounded = min(max(ratio, 1 - settings.clip), 1 + settings.clip_high)
        away = log_probability(reference, place, row[place + 1]) - now[place]
        kls.append(math.exp(away) - away - 1)
        losses.append(-min(ratio * advantage, bounded * advantage) + settings.beta * kls[-1])
        clipped.append(bounded * advantage < ratio * advantage)
    count = len(learned)
    return sum(losses) / count, sum(clipped) / count, sum(kls) / count


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(list(Importance)), st.sampled_from([0.0, 0.3]))
def test_the_loss_is_that_of_the_papers(seed: int, importance: Importance, beta: float) -> None:
    random = np.random.default_rng(seed)
    objective = GroupRelative(
        grpo(importance=importance, beta=beta, clip=0.1, clip_high=0.3, temperature=0.7), 4, 5
    )
    logits, reference = (random.normal(size=(4, 5, 7)).astype(np.float32) for _ in range(2))
    ids = random.integers(0, 7, (4, 6), np.int32)
    tokens = np.where(random.random((4, 6)) < 0.5, unlearned(ids), ids)
    tokens[:, -1] = ids[:, -1]
    sampled = random.normal(-2, 0.3, (4, 5)).astype(np.float32)
    rewards = random.normal(size=4).astype(np.float32)
    rows = examples(np.concatenate([tokens, sampled.view(np.int32)], axis=1), rewards, 4)
    assert rows.shape == objective.rollout
    assert rows.dtype == np.int32
    np.testing.assert_array_equal(model_inputs(objective, jnp.asarray(rows)), ids[:, :-1])
    given = jnp.asarray(reference) if beta else None
    losses, measured = objective.losses(jnp.asarray(logits), given, jnp.asarray(rows))
    assert set(measured) == set(objective.metrics)
    np.testing.assert_array_equal(measured["reward"], rewards)
    for number, advantage in enumerate(advantages(rewards, 4)):
        loss, clipped, kl = numpy_loss(
            objective, logits[number], reference[number], tokens[number], sampled[number], advantage
        )
        np.testing.assert_allclose(losses[number], loss, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(measured["clipped"][number], clipped, atol=1e-6)
        if beta:
            np.testing.assert_allclose(measured["kl"][number], kl, rtol=1e-3, atol=1e-4)
        assert measured["completion_length"][number] == (tokens[number, 1:] >= 0).sum()


def test_gspo_of_tokens_has_the_gradient_of_gspo_where_a_completion_has_one_advantage() -> None:
    """As in the paper; and GRPO has another one."""
    random = np.random.default_rng(3)
    logits = jnp.asarray(random.normal(size=(4, 5, 7)), jnp.float32)
    tokens = random.integers(0, 7, (4, 6), np.int32)
    sampled = random.normal(-2, 0.1, (4, 5)).astype(np.float32)
    behind = np.concatenate([tokens, sampled.view(np.int32)], axis=1)
    rows = jnp.asarray(examples(behind, np.array([0, 1, 1, 3], np.float32), 4))

    def gradient(importance: Importance) -> jax.Array:
        objective = GroupRelative(grpo(importance=importance, clip=0.9, beta=0), 4, 5)
        found: jax.Array = jax.grad(lambda given: objective.losses(given, None, rows)[0].sum())(
            logits
        )
        return found

    token, sequence, both = (gradient(each) for each in Importance)
    np.testing.assert_allclose(sequence, both, rtol=1e-4, atol=1e-6)
    assert not np.allclose(token, sequence, rtol=1e-2)


# --- sampling -----------------------------------------------------------------------------------


def decoder(**changes: Any) -> Decoder:
    shape = {"hidden_size": 16, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2}
    return Decoder(ModelConfig.model_validate(shape | changes), rngs=nnx.Rngs(0))


def test_the_cache_changes_no_logits() -> None:
    """Whatever the lengths of the sequences, and in how many pieces they are read."""
    model, row = decoder(), jnp.arange(3)
    tokens = jax.random.randint(jax.random.key(1), (3, 8), 0, 257)
    lengths = jnp.array([2, 3, 5])

    @jax.jit
    def in_pieces(tokens: jax.Array) -> tuple[jax.Array, ...]:
        cache = model.empty_cache(3, 8)
        first = model(tokens[:, :5], cache=cache)
        set_lengths(cache, lengths)
        pieces = [tokens[row, lengths + number][:, None] for number in range(3)]
        return model(tokens), first, *(model(piece, cache=cache)[:, 0] for piece in pieces)

    whole, first, *others = in_pieces(tokens)
    np.testing.assert_allclose(first, whole[:, :5], atol=1e-4)
    for number, logits in enumerate(others):
        np.testing.assert_allclose(logits, whole[row, lengths + number], atol=1e-4)


def test_a_completion_follows_the_prompt_and_ends_with_the_end() -> None:
    model, ids = decoder(), jnp.array([[256, 50, 51, 256], [256, 60, 256, 256]] * 32)
    keys, lengths = jax.random.split(jax.random.key(4), 64), jnp.array([3, 2] * 32)
    completed = jax.jit(partial(complete, model, settings=grpo(completion_length=12)))
    found = np.asarray(completed(Prompts(ids, lengths), keys))
    assert found.shape == (64, 16)
    ended = 0
    for row, prompt, length in zip(found, np.asarray(ids), np.asarray(lengths), strict=True):
        np.testing.assert_array_equal(row[:length], unlearned(prompt[:length]))
        learned = np.flatnonzero(row >= 0)
        assert list(learned) == list(range(length, length + len(learned)))
        assert max(row[learned]) <= END_OF_DOCUMENT
        ends = np.flatnonzero(row[learned] == END_OF_DOCUMENT)
        assert list(ends) in ([], [len(learned) - 1])
        assert len(ends) or len(learned) == 12
        assert set(row[length + len(learned) :]) <= {unlearned(END_OF_DOCUMENT)}
        ended += len(ends)
    assert ended
    other_way = completed(Prompts(ids[::-1], lengths[::-1]), keys[::-1])
    np.testing.assert_array_equal(found, other_way[::-1], "a row depends on its key alone")


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    model, count = decoder(), 4000
    asked = Prompts(jnp.full((count, 2), 256), jnp.full(count, 1))
    settings = grpo(completion_length=1, temperature=0.5, top_p=0.6)
    keys = jax.random.split(jax.random.key(0), count)
    drawn = np.asarray(jax.jit(partial(complete, model, settings=settings))(asked, keys))[:, 1]
    logits = np.asarray(jax.jit(model)(jnp.array([[256]]))[0, 0, :257], np.float64) / 0.5
    likely = np.exp(logits) / np.exp(logits).sum()
    order = np.argsort(-likely)
    kept = order[: np.searchsorted(np.cumsum(likely[order]), 0.6) + 1]
    expected = np.zeros(257)
    expected[kept] = likely[kept] / likely[kept].sum()
    found = np.bincount(drawn, minlength=257) / count
    assert set(np.flatnonzero(found)) <= set(kept)
    deviation = np.sqrt(expected * (1 - expected) / count)
    assert np.all(abs(found - expected) <= 5 * deviation + 1e-9)


# --- batches ------------------------------------------------------------------------------------


def rollouts(
    parsed: TrainerConfig, rung: Rung
) -> tuple[TrainStateSpec, BatchSharder, Rollouts, Any]:
    loader, data = parsed.fit.decisive, training_data(parsed)
    sharder = BatchSharder(make_mesh(rung), rung)
    spec = TrainStateSpec.of(parsed.init, sharder.mesh, objective_of(parsed.init, loader))
    assert parsed.init.grpo is not None
    sample: Future[Any] = Future()
    mesh = RolloutMesh.of(spec, sharder)
    sample.set_result(jit_sample(mesh.spec, parsed.init.grpo))
    assert data.prompts is not None
    made = Rollouts(parsed.init.grpo, spec, mesh, sample, data.prompts)
    return spec, sharder, made, data.batches


def steps(
    parsed: TrainerConfig, rung: Rung, count: int
) -> tuple[TrainState, list[dict[str, float]], list[Batch]]:
    """The state after so many steps, with what they measured and learned from."""
    spec, sharder, made, batches = rollouts(parsed, rung)
    state, step, told, seen = spec.fresh(), jit_train_step(spec), [], []
    for number in range(count):
        if made.due(number):
            state = made.made(state, number, next(batches))
        seen.append(made.batch(state))
        state, measured = step(state, sharder.put(seen[-1]))
        told.append({name: float(value) for name, value in measured.items()})
    return state, told, seen


def test_a_reward_that_is_not_finite_names_the_record_of_its_prompt(prompts: Path) -> None:
    parsed = config(prompts, reward="tests.training.rewarding:nan_for_seven")
    spec, _, made, _ = rollouts(parsed, Rung(1, 1, 1, 8, 1))
    rows = read_prompts(loader(prompts), 4, BYTES).rows[[3, 7]]
    told = rf"for the prompt '7\?' \({re.escape(str(prompts))}:8\) with the completion"
    with pytest.raises(RewardNotFiniteError, match=told):
        made.made(spec.fresh(), 0, rows)


def test_a_toy_reward_is_learned_on_batches_that_are_used_several_times(prompts: Path) -> None:
    parsed = config(prompts, batch=32, group_size=8, num_iterations=2)
    state, told, seen = steps(parsed, Rung(1, 1, 1, 32, 1), 60)
    np.testing.assert_array_equal(seen[0], seen[1])
    assert not np.array_equal(seen[1], seen[2])
    np.testing.assert_array_equal(state.rollout["rows"], seen[-1])
    sequences = GroupRelative(grpo(), 32, 8).sequences(seen[0])
    starts = [tuple(row[:3]) for row in sequences]
    assert [len(set(starts[begin : begin + 8])) for begin in range(0, 32, 8)] == [1] * 4
    assert len(set(map(tuple, sequences))) > 2
    assert told[0]["kl"] == pytest.approx(0, abs=1e-5), "the model is the reference"
    assert told[1]["kl"] > 0
    assert told[0]["reward"] == pytest.approx(seen[0][:, -1].view(np.float32).mean())
    early, late = ([each["reward"] for each in part] for part in (told[:10], told[-10:]))
    assert np.mean(late) > np.mean(early) + 0.3, told
    plan = TrainStateSpec.of(parsed.init, make_mesh(Rung(1, 1, 1, 8, 1)))
    assert_same_bits(state.frozen, plan.fresh().params)
    for row in seen[-1]:
        sequence = GroupRelative(grpo(), 32, 8).sequences(row[None])[0]
        begin = np.flatnonzero(sequence >= 0)[0]
        prompt, said = decode(unlearned(sequence[1:begin])), decode(sequence[sequence >= 0])
        assert {"ask": prompt} in PROMPTS
        assert of_ascii([], [said], [prompt])[0] == pytest.approx(row[-1:].view(np.float32)[0])


def test_what_is_sampled_depends_on_no_division_of_the_batch(prompts: Path) -> None:
    found = []
    for rung in (Rung(1, 1, 1, 8, 1), Rung(1, 1, 1, 2, 4), Rung(4, 2, 2, 1, 2)):
        spec, _, made, batches = rollouts(config(prompts), rung)
        found.append(made.batch(made.made(spec.fresh(), 0, next(batches)))[:, :9])
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_devices_of_their_own_sample_with_the_weights_that_the_state_has_then(
    prompts: Path,
) -> None:
    together, rung = config(prompts), Rung(2, 2, 1, 4, 1)
    apart = config(prompts, rollout={"devices": 2})
    one, other = (rollouts(parsed, rung) for parsed in (together, apart))
    state = one[0].fresh()
    trained = replace(state, params=jax.tree.map(lambda leaf: leaf * 1.5, state.params))
    asked, found = next(one[3]), []
    for now in (state, trained):
        both = [made.batch(made.made(now, 0, asked))[:, :9] for _, _, made, _ in (one, other)]
        np.testing.assert_array_equal(both[0], both[1])
        found.append(both[0])
    assert not np.array_equal(found[0], found[1]), "other weights answer otherwise"
    made = other[2].made(trained, 2, asked)
    assert made.rollout["rows"].sharding == state.rollout["rows"].sharding
    mesh = RolloutMesh.of(other[0], other[1])
    weights, _ = mesh.weights(trained)
    used = {device for leaf in jax.tree.leaves(weights) for device in leaf.sharding.device_set}
    assert used == set(jax.devices()[-2:])
    assert "completions are made on 2 of 4 devices" in mesh.shown


@pytest.mark.slow
def test_bitwise_means_every_bit_on_every_rung(prompts: Path) -> None:
    """Slow for XLA to optimise each of the programs, as it does for users."""
    parsed = config(prompts, bitwise=True, num_iterations=2)
    two, four = (steps(parsed, Rung(n, n, 1, 2, 4 // n), 3) for n in (2, 4))
    assert_same_bits(two[0], four[0])
    assert_same_bits(two[2], four[2])


def test_rewards_are_evaluated_alone_as_training_would(
    prompts: Path, make_trainer: MakeTrainer
) -> None:
    parsed = config(prompts)
    alone = make_trainer()
    trainer = alone.mapping["trainer"]
    trainer["init"] |= {
        "model": parsed.init.model.model_dump(exclude_none=True),
        "grpo": grpo().model_dump(mode="json", exclude_none=True),
    }
    del trainer["init"]["optimizer"], trainer["init"]["loop"]["max_steps"]
    dataloader = loader(prompts).model_dump(exclude_none=True)
    trainer["fit"] = {"validation": {"steps": 2, "dataloader": dataloader}}
    writing(alone).finish()
    (*_, last) = told(alone.folder)
    spec, _, made, _ = rollouts(parsed, Rung(1, 1, 1, 8, 1))
    asked = first_batches(read_prompts(loader(prompts), 4, BYTES).rows, 8, 2)
    state = spec.fresh()
    found = [made.loss(state, number, batch) for number, batch in enumerate(asked)]
    assert found[0] != found[1]
    assert last["evaluation_loss"] == pytest.approx(np.mean(found), abs=1e-6)


# --- prompts ------------------------------------------------------------------------------------


def test_a_prompt_has_its_record_and_its_length_in_front(prompts: Path) -> None:
    file = read_prompts(loader(prompts), 4, BYTES)
    assert (file.records, file.num_before) == (PROMPTS, 1)
    number, length, *ids = file.rows[7]
    assert (number, length) == (7, 3)
    assert ids == [256, ord("7"), ord("?"), 256, 256]


def test_it_is_told_how_many_tokens_of_prompts_are_read(prompts: Path) -> None:
    """Or a long file would look like a hang."""
    read = list[int]()
    file = training_data(config(prompts), read.append).prompts
    assert file is not None
    assert read == list(np.cumsum(file.rows[:, 1]))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"question": "1"}', "bad.jsonl:1: no text in the field 'ask'; set prompt_field"),
        (
            '{"ask": "12345"}',
            "bad.jsonl:1: its prompt is 5 tokens, more than the 4 that sequence_length, 8, leaves "
            "beside completions of 4 (init.grpo.completion_length). 1 records are too long",
        ),
        ('{"ask": ""}', "bad.jsonl:1: the prompt in the field 'ask' is empty, so there is nothing"),
        ("", "there is no record in "),
    ],
)
def test_a_record_that_is_no_prompt_is_named(tmp_path: Path, line: str, told: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(f"{line}\n" if line else "")
    with pytest.raises(DataError) as error:
        read_prompts(loader(path), 4, BYTES)
    assert told in str(error.value)
