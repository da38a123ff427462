"""Text in, the same batches out: whatever the devices, and wherever reading stopped."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.config.training.data_files import (
    DataError,
    check_all_records,
    check_first_records,
    matching_files,
)
from supervisor.config.training.layout import Rung
from supervisor.config.training.resolved import parse
from supervisor.config.training.sections import END_OF_DOCUMENT, VOCABULARY_SIZE, DataloaderConfig
from supervisor.later_data import problems
from trainer.batch_sharder import BatchSharder
from trainer.data import first_batches, read_examples, training_data
from trainer.mesh import make_mesh
from trainer.tokenizer import decode, encode, pack

from .harness import batches_of, tiny


@given(st.text())
def test_tokens_hold_the_text(text: str) -> None:
    assert decode(encode(text)) == text


@given(st.lists(st.text()))
def test_documents_are_packed_with_their_ends(documents: list[str]) -> None:
    tokens = pack(documents)
    ends = np.flatnonzero(tokens == END_OF_DOCUMENT)
    starts = [0, *(ends[:-1] + 1)] if len(ends) else []
    assert [decode(tokens[start:]) for start in starts] == documents
    assert not len(tokens) or tokens.max() < VOCABULARY_SIZE


def test_text_cut_within_a_character_can_be_shown() -> None:
    assert decode(encode("é")[:1]) == "�"


def _config(paths: str | Path, length: int = 8) -> DataloaderConfig:
    return DataloaderConfig.model_validate({"paths": str(paths), "sequence_length": length})


@pytest.fixture
def letters(tmp_path: Path) -> DataloaderConfig:
    """40 windows of 8 tokens, each with bytes of its own."""
    (tmp_path / "letters.txt").write_bytes(bytes(i // 8 for i in range(320)))
    return _config(tmp_path / "letters.txt")


def _read(
    config: DataloaderConfig, count: int, seed: int = 1, size: int = 4
) -> np.ndarray[Any, Any]:
    batches = batches_of(config, size, seed)
    return np.stack([next(batches) for _ in range(count)])


def test_an_epoch_has_every_window_once_and_the_next_another_order(
    letters: DataloaderConfig,
) -> None:
    batches = _read(letters, 20)
    first, second = batches[:10, :, 0].ravel(), batches[10:, :, 0].ravel()
    assert sorted(first) == sorted(second) == list(range(40))
    assert list(first) != list(second)


def test_the_order_is_the_shuffle_seeds_alone(letters: DataloaderConfig) -> None:
    assert np.array_equal(_read(letters, 5), _read(letters, 5))
    assert not np.array_equal(_read(letters, 5, seed=1), _read(letters, 5, seed=2))


def test_reading_goes_on_where_it_stopped(letters: DataloaderConfig) -> None:
    whole = _read(letters, 15)
    batches = batches_of(letters, 4, 1)
    for _ in range(7):
        next(batches)
    position = json.loads(json.dumps(batches.get_state()))
    resumed = batches_of(letters, 4, 1)
    resumed.set_state(position)
    assert np.array_equal(np.stack([next(resumed) for _ in range(8)]), whole[7:])


def test_every_token_is_a_target_once(letters: DataloaderConfig) -> None:
    windows = read_examples(letters)
    targets = np.concatenate([windows[index][1:] for index in range(len(windows))])
    assert np.array_equal(targets, [*(i // 8 for i in range(1, 320)), END_OF_DOCUMENT])


def test_every_rung_gets_the_same_batch(letters: DataloaderConfig) -> None:
    (batch,) = _read(letters, 1, size=8)
    for rung in (Rung(1, 1, 1, 2, 4), Rung(2, 2, 1, 4, 1), Rung(4, 2, 2, 1, 2)):
        sharder = BatchSharder(make_mesh(rung), rung)
        placed = sharder.put(batch)
        assert placed.shape[:2] == (rung.accumulation, 8 // rung.accumulation)
        assert {shard.data.shape[1] for shard in placed.addressable_shards} == {
            rung.per_device_batch
        }
        assert np.array_equal(np.asarray(placed).reshape(batch.shape), batch)
        assert sharder.abstract(batch.shape[-1]).shape == placed.shape


def test_a_compiled_program_takes_a_batch_as_the_training_loop_passes_it(
    letters: DataloaderConfig,
) -> None:
    (batch,) = _read(letters, 1, size=8)
    for rung in (Rung(1, 1, 1, 2, 4), Rung(2, 2, 1, 4, 1)):
        sharder = BatchSharder(make_mesh(rung), rung)
        passed = sharder.argument(batch)
        assert isinstance(passed, np.ndarray) == (rung.num_devices == 1)
        program = jax.jit(lambda tokens: tokens + 1).lower(sharder.abstract(batch.shape[-1]))
        found, expected = map(program.compile(), (passed, sharder.put(batch)))
        assert found.sharding == expected.sharding
        assert np.array_equal(found, expected)


def test_validation_starts_at_the_start_and_wraps(letters: DataloaderConfig) -> None:
    batches = first_batches(read_examples(letters), 16, 3)
    firsts = np.concatenate([batch[:, 0] for batch in batches])
    assert list(firsts) == [*range(40), *range(8)]


def test_jsonl_and_text_are_documents(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "one"}\n{"body": "two"}\n')
    (tmp_path / "b.txt").write_text("three")
    config = DataloaderConfig.model_validate(
        {"paths": str(tmp_path / "*"), "sequence_length": 13, "text_field": "body"}
    )
    (window,) = [read_examples(config)[0]]
    assert np.array_equal(window, pack(["one", "two", "three"])[:14])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "a.jsonl:2: not JSON"),
        ('{"txt": ""}', "a.jsonl:2: no text in the field 'text'"),
        ("[1, 2]", "a.jsonl:2: the line is a list, not an object with fields"),
        ('"text"', "a.jsonl:2: the line is text, not an object with fields"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n' + line)
    with pytest.raises(DataError, match=message):
        read_examples(_config(tmp_path / "a.jsonl"))


def test_blank_lines_are_passed_over_and_a_later_line_keeps_its_number(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('\n{"text": "ab"}\n \n{"text": "cd"}\n\n')
    check_first_records(_config(path), 512)
    assert np.array_equal(read_examples(_config(path, 4))[0], pack(["ab", "cd"])[:5])
    path.write_text('{"text": "x"}\n\n{\n')
    for check in (check_first_records, partial(check_all_records, pause=lambda: None)):
        with pytest.raises(DataError, match=r"a\.jsonl:3: not JSON"):
            check(_config(path), 512)
    with pytest.raises(DataError, match=r"a\.jsonl:3: not JSON"):
        read_examples(_config(path))


def test_a_line_that_is_being_written_is_refused_only_as_the_first(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "whole"}\n{"text": "hal')
    check_first_records(_config(path), 512)
    path.write_text('{"text": "hal')
    with pytest.raises(DataError, match=r"a\.jsonl:1: not JSON"):
        check_first_records(_config(path), 512)


def test_many_small_files_are_looked_through_with_pauses(tmp_path: Path) -> None:
    for number in range(64):
        (tmp_path / f"{number}.jsonl").write_text('{"text": "short"}\n')
    pauses: list[int] = []
    check_all_records(_config(tmp_path / "*.jsonl"), 512, lambda: pauses.append(1))
    assert len(pauses) >= 3


def test_a_long_first_record_is_read_in_few_calls(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "x" * (1 << 20)}) + "\n")

    def calls() -> int:
        counters = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return int(counters["syscr"])

    before = calls()
    check_first_records(_config(tmp_path / "a.jsonl"), 512)
    assert calls() - before < 1 << 15


def test_records_are_checked_before_and_the_rest_with_pauses(tmp_path: Path) -> None:
    good, long = '{"text": "abc"}\n', json.dumps({"text": "x" * (3 << 20)}) + "\n"
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text(long + long + long + good * 9000 + long)
    config, pauses = _config(tmp_path / "*.jsonl"), list[int]()
    check_first_records(config, 512)
    check_all_records(config, 512, lambda: pauses.append(1))
    assert 2 * (12 + 2) <= len(pauses) <= 2 * (12 + 6)
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write(f"{good}[]\n")
    check_first_records(config, 512)
    with pytest.raises(DataError, match=r"a\.jsonl:9006: the line is a list"):
        check_all_records(config, 512, lambda: None)
    (tmp_path / "b.jsonl").write_text("[]\n")
    with pytest.raises(DataError, match=r"b\.jsonl:1: the line is a list"):
        check_first_records(config, 512)


def test_the_data_of_a_phase_are_looked_through(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n' * 9 + "{\n")
    params = tiny(tmp_path)
    for loader in (params["trainer"]["fit"][key] for key in ("train_dataloader", "validation")):
        loader.get("dataloader", loader)["paths"] = str(tmp_path / "bad.jsonl")
    found = list(problems(params, lambda: None, is_present=False))
    assert [each.partition("(fit.")[2].partition(")")[0] for each in found] == [
        "train_dataloader",
        "validation.dataloader",
    ]
    assert found[0].startswith(f"{tmp_path}/bad.jsonl:10: not JSON: ")
    assert list(problems(params, lambda: None, is_present=True)) == found[1:]
    (tmp_path / "bad.jsonl").unlink()
    assert list(problems(params, lambda: None, is_present=False)) == []


def _tokens(path: Path, *records: object) -> DataloaderConfig:
    path.write_text("".join(json.dumps({"ids": record}) + "\n" for record in records))
    return DataloaderConfig.model_validate(
        {"paths": str(path), "sequence_length": 3, "tokens_field": "ids"}
    )


@pytest.mark.parametrize("vocab_size", [300, 100_000])
def test_token_ids_are_used_as_they_stand(tmp_path: Path, vocab_size: int) -> None:
    config = _tokens(tmp_path / "a.jsonl", [1, 2, vocab_size - 1], [], [0, 5, 6, 7])
    windows = read_examples(config, vocab_size)
    assert [list(windows[index]) for index in range(2)] == [
        [1, 2, vocab_size - 1, 0],
        [0, 5, 6, 7],
    ]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ([5, 300], r"a.jsonl:2: token id 300 at position 1 is outside .*vocab_size is 300"),
        ([5, -1], r"a.jsonl:2: token id -1 at position 1 is outside"),
        ([2**40], r"a.jsonl:2: token id 1099511627776 at position 0 is outside"),
        ("text", "a.jsonl:2: no token ids in the field 'ids'"),
        ([[1], [2, 3]], r"a.jsonl:2: \[1\] at position 0 in the field 'ids' is no integer"),
        ([1, 2.0, 3], r"a.jsonl:2: 2.0 at position 1 in the field 'ids' is no integer"),
        ([True], "a.jsonl:2: true at position 0 in the field 'ids' is no integer"),
        (None, "a.jsonl:2: no token ids"),
    ],
)
def test_a_token_id_outside_the_vocabulary_is_named(
    tmp_path: Path, record: object, message: str
) -> None:
    config = _tokens(tmp_path / "a.jsonl", [1, 2, 3, 4], record)
    with pytest.raises(DataError, match=message):
        read_examples(config, 300)


def test_too_little_data_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1234567")
    with pytest.raises(DataError, match="8 tokens of data do not fill"):
        read_examples(_config(tmp_path / "a.txt"))
    mapping = tiny(tmp_path)
    mapping["trainer"]["fit"]["validation"]["dataloader"]["paths"] = str(tmp_path / "a.txt")
    with pytest.raises(DataError, match=r"8 tokens of data do not fill .*a\.txt"):
        training_data(parse(mapping))


def test_the_standard_library_is_sorted_and_bounded() -> None:
    files = matching_files("stdlib")
    assert files == sorted(files)
    assert all(file.suffix == ".py" for file in files)
    assert 0 < sum(file.stat().st_size for file in files) <= 2 * 1024 * 1024
    assert not {*files} & {*matching_files("stdlib/json/*.py")}
