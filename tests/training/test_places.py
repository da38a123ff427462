"""From which records a batch is: `file:line`, found again for a replay."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from supervisor.config.training.resolved import TrainerConfig, parse
from trainer.data import places_of_batch, training_data
from trainer.objective import token_ids
from trainer.token_files import places
from trainer.tokenizer import BYTES

from .configs import tiny

RECORDS = [f"<{number:03}{'x' * (number % 7)}>" for number in range(1, 91)]
KINDS: dict[str, dict[str, Any]] = {
    "a stream of texts": {},
    "completions": {"prompt_field": "ask", "completion_field": "say"},
    "packed": {"prompt_field": "ask", "completion_field": "say", "packing": "examples"},
    "token ids": {"tokens_field": "ids"},
    "pairs": {"prompt_field": "ask", "chosen_field": "say", "rejected_field": "text"},
}


def config(path: Path, **fields: Any) -> TrainerConfig:
    mapping = tiny("/nowhere")
    del mapping["trainer"]["fit"]["validation"]
    loader = {"paths": str(path), "sequence_length": 24, **fields}
    mapping["trainer"]["fit"]["train_dataloader"] = loader
    return parse(mapping)


def batches(it: TrainerConfig, number: int) -> Any:
    """Yields the text and the places of each example of the first batches."""
    data = training_data(it)
    for _ in range(number):
        position = data.batches.get_state()
        batch = next(data.batches)
        for example, found in zip(batch, places_of_batch(it, data, position), strict=True):
            yield BYTES.text(np.atleast_1d(token_ids(example)).ravel()), found


@pytest.mark.parametrize("kind", KINDS)
def test_each_record_of_an_example_is_named_and_no_other(kind: str, tmp_path: Path) -> None:
    lines = [
        {"text": one, "ask": one[:2], "say": one[2:], "ids": list(one.encode())} for one in RECORDS
    ]
    path = tmp_path / "data.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    several = 0
    for text, found in batches(config(path, **KINDS[kind]), 4):
        numbers = [int(place.removeprefix(f"{path}:")) for place in found]
        assert len(numbers) == len(set(numbers)) > 0
        assert {*map(int, re.findall(r"<(\d{3})", text))} <= {*numbers}
        for number in numbers:  # of the first and the last one a part may be in other examples
            assert str(number).zfill(3) in text or number in (min(numbers), max(numbers))
        several += len(numbers) > 1
    assert (several > 0) == (kind != "pairs")


def test_of_a_text_file_the_line_is_named(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        lines = (f"{name[0]}{number:03} some text\n" for number in range(1, 61))
        (tmp_path / name).write_text("".join(lines))
    for text, found in batches(config(tmp_path / "*.txt"), 6):
        for place in found:
            name, _, line = place.rpartition(":")
            whole = re.search(rf"{Path(name).name[0]}(\d{{3}}) ", text)
            if whole is not None:
                assert 0 <= int(whole[1]) - int(line) <= 1, (text, place)
        assert 1 <= len(found) <= 2


def test_a_text_file_that_is_given_twice_has_the_same_lines_each_time(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("".join(f"{number} some text\n" for number in range(1, 4)))
    loader = config(path).fit.decisive.model_copy(update={"paths": [str(path)] * 2})
    size = path.stat().st_size + 1  # with the end of the document
    spans = [range(14, 20), range(size + 14, size + 20), range(size - 3, size + 3)]
    first, again, both = places(loader, BYTES, 257, spans)
    assert first == again == [f"{path}:2"]
    assert both == [f"{path}:3", f"{path}:1"]
