"""Learning from preferences: what a pair is, what the loss is, and that it learns."""

# mypy: allow-untyped-calls
from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from supervisor.config.training.data_files import DataError
from supervisor.config.training.layout import Rung
from supervisor.config.training.resolved import TrainerConfig, parse
from supervisor.config.training.sections import DataloaderConfig, DpoConfig, ValidationConfig
from trainer.batch_sharder import BatchSharder
from trainer.data import read_examples
from trainer.dpo import DirectPreference
from trainer.evaluation import Evaluation
from trainer.evaluation_progress import EvaluationProgress
from trainer.executables import Executables
from trainer.log import WorkerLog
from trainer.mesh import make_mesh
from trainer.objective import NextToken, facts_of, model_inputs, token_ids, unlearned
from trainer.objective_choice import objective_of
from trainer.step import jit_evaluation_loss, jit_loss_and_gradients, jit_train_step
from trainer.tokenizer import decode
from trainer.train_state import TrainStateSpec
from trainer.training_setup import deciding_facts

from .harness import assert_same_bits, batches_of, spec_of, tiny

FIELDS = {"prompt_field": "ask", "chosen_field": "good", "rejected_field": "bad"}
PAIRS = [{"ask": f"{n}?", "good": "yes", "bad": "no"} for n in range(16)]


def jsonl(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    return path


def config(path: Path, *, lora: bool = False, bitwise: bool = False) -> TrainerConfig:
    """Of eight pairs a step, without dropout."""
    mapping = tiny(Path("/nowhere"))
    init, fit = mapping["trainer"]["init"], mapping["trainer"]["fit"]
    init["model"]["dropout"] = 0.0
    init["dpo"] = {"beta": 0.5}
    if lora:
        init["lora"] = {"rank": 2}
    if bitwise:
        init["determinism"] = {"elastic": "bitwise"}
        init["loop"] |= {"micro_batch_size": 2}
    fit["train_dataloader"] = {"paths": str(path), "sequence_length": 12, **FIELDS}
    return parse(mapping)


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    return jsonl(tmp_path / "pairs.jsonl", *PAIRS)


def test_an_evaluation_with_another_beta_does_not_go_on_where_one_was_broken_off(
    pairs: Path,
) -> None:
    mapping = {"every": 1, "steps": 2, "dataloader": loader(pairs).model_dump()}
    validation, rung = ValidationConfig.model_validate(mapping), Rung(1, 1, 1, 4, 2)
    sharder, executables = BatchSharder(make_mesh(rung), rung), Executables(None, {}, WorkerLog())

    def begin(beta: float, progress: EvaluationProgress | None = None) -> EvaluationProgress:
        init = config(pairs).init.model_copy(update={"dpo": DpoConfig(beta=beta)})
        spec = TrainStateSpec.of(init, sharder.mesh, DirectPreference(beta))
        return Evaluation(validation, spec, sharder, executables, print).begin(progress)

    broken_off = replace(begin(0.5), next_batch=1, total=3.0)
    assert begin(0.5, broken_off).next_batch == 1
    assert begin(5.0, broken_off).next_batch == 0


@dataclass(frozen=True, slots=True)
class Own(NextToken):
    margin: float = 1.0
    section: DpoConfig = field(default_factory=DpoConfig)
    reward: Any = None


def test_each_field_of_an_objective_decides_which_compiled_step_is_loaded(pairs: Path) -> None:
    given = [Own(), Own(margin=2.0), Own(section=DpoConfig(beta=0.7)), NextToken()]
    assert len({json.dumps(facts_of(each)) for each in given}) == len(given)
    assert facts_of(Own(nnx.LoRAParam, reward=print)).keys() < facts_of(Own()).keys()

    def facts(beta: float) -> dict[str, Any]:
        it = config(pairs)
        init = it.init.model_copy(update={"dpo": DpoConfig(beta=beta)})
        return deciding_facts(it.model_copy(update={"init": init}), Rung(1, 1, 1, 4, 2))

    assert facts(0.5) == facts(0.5) != facts(5.0)


def loader(path: Path, length: int = 8) -> DataloaderConfig:
    return DataloaderConfig.model_validate(
        {"paths": str(path), "sequence_length": length, **FIELDS}
    )


def test_a_pair_is_the_prompt_with_each_completion(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", {"ask": "2+2=", "good": "4", "bad": "five"}, *PAIRS)
    examples = read_examples(loader(path, 9), 257)
    assert len(examples) == 17
    chosen, rejected = np.split(examples[0], 2)
    assert decode(token_ids(chosen)[1:]) == "2+2=4"
    assert decode(token_ids(rejected)[1:]) == "2+2=five"
    assert list(chosen >= 0) == [False] * 5 + [True] * 2 + [False] * 3
    assert list(rejected >= 0) == [False] * 5 + [True] * 5
    assert {int(token_ids(each)[0]) for each in (chosen, rejected)} == {256}
    assert set(token_ids(chosen)[7:]) == {256}


@pytest.mark.parametrize(
    ("record", "told"),
    [
        ({"ask": "2"}, "a.jsonl:2: no text in the field 'good'; set chosen_field"),
        ({"ask": "2", "good": "1"}, "a.jsonl:2: no text in the field 'bad'; set rejected_field"),
        ({"good": "1", "bad": "2"}, "a.jsonl:2: no text in the field 'ask'; set prompt_field"),
        ({"ask": "2", "good": "", "bad": "2"}, "the completion in the field 'good' is empty"),
        ({"ask": "2", "good": "1", "bad": "1"}, "hold the same text, so neither is to be prefer"),
        (
            {"ask": "2+2=", "good": "4", "bad": "fives"},
            "a.jsonl:2: its prompt and one completion are 10 tokens with the end, more than "
            "sequence_length, 8. 1 records are too long",
        ),
    ],
)
def test_a_record_that_is_no_pair_is_named(
    tmp_path: Path, record: dict[str, Any], told: str
) -> None:
    path = jsonl(tmp_path / "a.jsonl", PAIRS[0], record)
    with pytest.raises(DataError) as error:
        read_examples(loader(path), 257)
    assert told in str(error.value)


def test_no_record_at_all_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no record in"):
        read_examples(loader(jsonl(tmp_path / "a.jsonl")), 257)


def test_the_loss_is_that_of_the_paper() -> None:
    """Two pairs of three tokens, computed here number by number."""
    random = np.random.default_rng(0)
    logits, reference = (random.normal(size=(4, 2, 5)).astype(np.float32) for _ in range(2))
    ids = random.integers(0, 5, (2, 6), np.int32)
    tokens = np.where([[True, False, True] * 2, [True, True, False] * 2], unlearned(ids), ids)

    def log_likelihood(found: np.ndarray, sequence: np.ndarray) -> float:
        total = 0.0
        for position, token in enumerate(sequence[1:]):
            if token >= 0:
                row = [math.exp(x) for x in found[position]]
                total += math.log(row[token] / sum(row))
        return total

    losses, margins = [], []
    for pair in range(2):
        ratios = [
            log_likelihood(logits[row], sequence) - log_likelihood(reference[row], sequence)
            for row, sequence in zip(
                (2 * pair, 2 * pair + 1), np.split(tokens[pair], 2), strict=True
            )
        ]
        margins.append(0.3 * (ratios[0] - ratios[1]))
        losses.append(-math.log(1 / (1 + math.exp(-margins[-1]))))
    objective = DirectPreference(0.3)
    found, measured = objective.losses(*map(jnp.asarray, (logits, reference, tokens)))
    np.testing.assert_allclose(found, losses, rtol=1e-5)
    np.testing.assert_allclose(measured["reward_margin"], margins, rtol=1e-4)
    assert list(measured["reward_accuracy"]) == [float(margin > 0) for margin in margins]
    np.testing.assert_array_equal(
        model_inputs(objective, jnp.asarray(tokens))[2:], ids.reshape(4, 3)[2:, :2]
    )


@pytest.mark.parametrize("lora", [False, True])
def test_a_toy_preference_is_learned_and_the_reference_stays(pairs: Path, lora: bool) -> None:
    parsed = config(pairs, lora=lora)
    plan = spec_of(parsed)
    sharder = BatchSharder(plan.mesh, Rung(1, 1, 1, 8, 1))
    batches = batches_of(parsed.fit.decisive, 8, 1)
    state, step, told = plan.fresh(), jit_train_step(plan), []
    assert_same_bits(
        state.frozen,
        TrainStateSpec.of(parse(tiny(Path("/nowhere"))).init, plan.mesh).fresh().params,
    )
    for _ in range(40):
        state, measured = step(state, sharder.put(next(batches)))
        told.append({name: float(value) for name, value in measured.items()})
    assert told[0]["loss"] == pytest.approx(math.log(2), rel=1e-6)
    assert told[0]["reward_margin"] == 0
    assert told[-1]["loss"] < 0.3
    assert told[-1]["reward_margin"] > 1
    assert told[-1]["reward_accuracy"] == 1
    assert_same_bits(state.frozen, plan.fresh().frozen)
    loss = jit_evaluation_loss(plan)(state, sharder.put(next(batches)))
    assert float(loss) < 0.3


def gradients(parsed: TrainerConfig, rung: Rung) -> tuple[Any, Any]:
    """Of the second step, in which the model is not the reference any more."""
    sharder = BatchSharder(make_mesh(rung), rung)
    objective = objective_of(parsed.init, parsed.fit.decisive)
    plan = TrainStateSpec.of(parsed.init, sharder.mesh, objective)
    batches = batches_of(parsed.fit.decisive, 8, 1)
    state, _ = jit_train_step(plan)(plan.fresh(), sharder.put(next(batches)))
    result: tuple[Any, Any] = jit_loss_and_gradients(plan)(state, sharder.put(next(batches)))
    return result


def test_a_pair_is_never_cut(pairs: Path) -> None:
    whole = gradients(config(pairs), Rung(1, 1, 1, 8, 1))
    for rung in (Rung(1, 1, 1, 1, 8), Rung(4, 2, 2, 1, 2)):
        found = gradients(config(pairs), rung)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(whole), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-2, atol=1e-5)


@pytest.mark.slow
def test_bitwise_means_every_bit_on_every_rung(pairs: Path) -> None:
    """Slow for XLA to optimise each of the programs, as it does for users."""
    parsed = config(pairs, bitwise=True, lora=True)
    two, four = (gradients(parsed, Rung(n, n, 1, 2, 4 // n)) for n in (2, 4))
    assert_same_bits(two, four)
