"""Training on prompts and completions: what is learned, and that its cut changes nothing."""

# mypy: allow-untyped-calls
from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from supervisor.config.training.data_files import DataError
from supervisor.config.training.layout import Rung
from supervisor.config.training.resolved import parse
from supervisor.config.training.sections import DataloaderConfig
from trainer.batch_sharder import BatchSharder
from trainer.data import read_examples
from trainer.mesh import make_mesh
from trainer.objective import Completion, NextToken, token_ids, unlearned, without_filling
from trainer.packing import rows_of
from trainer.replay import marked
from trainer.step import jit_loss_and_gradients
from trainer.tokenizer import BYTES, decode
from trainer.train_state import TrainState, TrainStateSpec

from .harness import assert_same_bits, tiny


def jsonl(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    return path


def loader(path: Path, length: int = 8) -> DataloaderConfig:
    return DataloaderConfig.model_validate(
        {
            "paths": str(path),
            "sequence_length": length,
            "prompt_field": "question",
            "completion_field": "answer",
        }
    )


def test_prompts_are_read_and_completions_learned(tmp_path: Path) -> None:
    path = jsonl(
        tmp_path / "qa.jsonl",
        {"question": "2+2=", "answer": "4"},
        {"question": "\x00", "answer": "no"},
    )
    windows = read_examples(loader(path, 8))
    assert len(windows) == 1
    window = windows[0]
    assert decode(token_ids(window)) == "2+2=4"
    assert list(window >= 0) == [False] * 4 + [True, True, False, True, True]
    assert decode(token_ids(window)[6:]) == "\x00no", "also the token 0 of a prompt is not learned"


@pytest.mark.parametrize(
    ("record", "told"),
    [
        ({"question": "2+2="}, "qa.jsonl:2: no text in the field 'answer'; set completion_field"),
        ({"answer": "4"}, "qa.jsonl:2: no text in the field 'question'; set prompt_field"),
        (
            {"question": "2", "answer": ["4"]},
            "qa.jsonl:2: the field 'answer' holds a list, not text: mend or remove the record, or "
            "set completion_field to another field",
        ),
        ({"question": None, "answer": "4"}, "qa.jsonl:2: the field 'question' holds null, not te"),
        ({"question": "2", "answer": ""}, "qa.jsonl:2: the completion in the field 'answer' is em"),
    ],
)
def test_a_record_that_teaches_nothing_is_named(
    tmp_path: Path, record: dict[str, Any], told: str
) -> None:
    path = jsonl(tmp_path / "qa.jsonl", {"question": "2+2=", "answer": "4"}, record)
    with pytest.raises(DataError) as error:
        read_examples(loader(path, 1))
    assert told in str(error.value)


def batch() -> np.ndarray:
    """Eight sequences, of which the first few have hardly a target and the last have many."""
    random = np.random.default_rng(0)
    tokens = random.integers(0, 257, (8, 17), np.int32)
    is_read = random.random((8, 17)) > np.linspace(0.05, 0.9, 8)[:, None]
    return np.where(is_read, unlearned(tokens), tokens)


def gradients(rung: Rung, spec_of: Any = Completion, *, bitwise: bool = False) -> tuple[Any, Any]:
    mapping = tiny(Path("/tmp/checkpoints"))
    mapping["trainer"]["init"]["model"]["dropout"] = 0.0
    if bitwise:
        mapping["trainer"]["init"]["determinism"] = {"elastic": "bitwise"}
        mapping["trainer"]["init"]["loop"] |= {"global_batch_size": 8, "micro_batch_size": 2}
    sharder = BatchSharder(make_mesh(rung), rung)
    spec = TrainStateSpec.of(parse(mapping).init, sharder.mesh, spec_of())
    state: TrainState = spec.fresh()
    tokens = batch() if spec_of is Completion else token_ids(batch())
    loss, found = jit_loss_and_gradients(spec)(state, sharder.put(tokens))
    return loss, found


def test_however_the_batch_is_cut_each_target_counts_alike() -> None:
    whole, by_one = gradients(Rung(1, 1, 1, 8, 1))
    for rung in (Rung(1, 1, 1, 2, 4), Rung(4, 2, 2, 1, 2)):
        loss, found = gradients(rung)
        np.testing.assert_allclose(loss, whole, rtol=1e-5)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(by_one), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-6)


def test_the_loss_is_the_mean_over_what_is_learned() -> None:
    mapping = tiny(Path("/tmp/checkpoints"))
    mapping["trainer"]["init"]["model"]["dropout"] = 0.0
    rung = Rung(1, 1, 1, 8, 1)
    spec = TrainStateSpec.of(parse(mapping).init, make_mesh(rung))
    from flax import nnx

    tokens = batch()
    logits = nnx.merge(spec.graph, spec.fresh().params)(token_ids(tokens)[:, :-1])
    losses, _ = NextToken().losses(logits, None, token_ids(tokens))
    expected = np.asarray(losses)[tokens[:, 1:] >= 0].mean()
    loss, _ = gradients(rung)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


@pytest.mark.slow
def test_bitwise_means_every_bit_on_every_rung() -> None:
    """Slow for XLA to optimise each of the programs, as it does for users."""
    two, four = (gradients(Rung(n, n, 1, 2, 4 // n), bitwise=True) for n in (2, 4))
    assert_same_bits(two, four)


def test_a_batch_without_a_target_moves_nothing() -> None:
    mapping = tiny(Path("/tmp/checkpoints"))
    rung = Rung(1, 1, 1, 8, 1)
    sharder = BatchSharder(make_mesh(rung), rung)
    spec = TrainStateSpec.of(parse(mapping).init, sharder.mesh, Completion())
    nothing = unlearned(token_ids(batch()))
    loss, found = jit_loss_and_gradients(spec)(replace(spec.fresh()), sharder.put(nothing))
    assert float(loss) == 0.0
    assert not any(np.asarray(each).any() for each in jax.tree.leaves(found))


def test_what_is_learned_of_a_sequence_is_marked_where_it_is_shown() -> None:
    asked, said = unlearned(np.array([256, *b"2+2="], np.int32)), np.array([*b"4", 256], np.int32)
    assert marked(np.concatenate([asked, said]), BYTES) == "2+2=«4<end>»"
    assert marked(np.array([*b"all of it", 256], np.int32), BYTES) == "all of it<end>"


def test_what_fills_a_sequence_is_no_part_of_it() -> None:
    end, example = 2, np.array([-4, -3, 5, 2], np.int32)
    ((row, _),) = rows_of([(example, "data.jsonl:1")], 7, int(unlearned(end)))
    assert token_ids(without_filling(row, end)).tolist() == [3, 2, 5, 2], "a learned end stays"
    assert without_filling(np.full(3, unlearned(end)), end).size == 0
