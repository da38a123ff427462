"""What `supervise replay` decides and says, without running anything."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.cli.job_view import view
from supervisor.cli.replay import (
    Span,
    attempt_of,
    first_difference,
    of_same_config,
    report,
    run,
    span,
)
from supervisor.core.decisions import StartWorkers
from supervisor.core.events import CheckpointCommitted, WorkersStarted
from tests.adapters.test_journal import STORY, tell


@given(st.integers(1, 1000), st.sets(st.integers(0, 1000)))
def test_it_begins_at_the_newest_checkpoint_before_the_step(step: int, kept: set[int]) -> None:
    found = span(step, kept)
    assert found.begin < step
    assert found.begin in {*kept, 0}
    assert not any(found.begin < each < step for each in kept)


def test_a_step_counts_from_1() -> None:
    assert span(1, [1, 2]) == Span(0, 1)
    with pytest.raises(ValueError, match="steps count from 1"):
        span(0, [])


def test_no_step_comes_after_the_last() -> None:
    assert span(300, [200], last=300) == Span(200, 300)
    with pytest.raises(ValueError, match="--step 301: the last step of this job is 300"):
        span(301, [200], last=300)


def measured(step: int, **numbers: Any) -> dict[str, Any]:
    return {"time": step * 1.5, "phase": "p", "attempt": step, "step": step, **numbers}


def test_the_first_step_that_differs_is_found_whatever_the_attempts_were() -> None:
    ours = [measured(1, loss=2.0), {**measured(2, loss=1.0), "attempt": 9}, measured(3, loss=0.5)]
    theirs = [measured(1, loss=2.0), measured(2, loss=1.0), measured(3, loss=0.25, norm=1)]
    found = first_difference(ours, theirs)
    assert found == (3, ["loss: 0.5 here, 0.25 there", "norm: None here, 1 there"])
    assert first_difference(ours, theirs[:2]) is None
    assert first_difference(ours, [theirs[0], theirs[2]]) == (2, ["only one of them has this step"])


def test_what_is_computed_again_is_held_against_the_record() -> None:
    told: list[dict[str, Any]] = [{"step": 1, "loss": 2.0}, {"step": 2, "loss": None}]
    told += [{"step": 3, "skipped": True}, {"step": 4, "loss": 1.0}, {"step": 5, "loss": 1.0}]
    recorded: dict[int, dict[str, Any]] = {
        1: {"loss": 2.0},
        2: {"loss": None},
        4: {"loss": 1.5},
    }
    assert list(report(told, recorded)) == [
        "step 1: loss 2.0 (as recorded)",
        "step 2: loss NaN or Inf (as recorded)",
        "step 3: its batch is skipped, as in the attempt",
        "step 4: loss 1.0 (DIFFERS from the run: loss was 1.5)",
        "step 5: loss 1.0 (the run has no record of this step)",
    ]


def test_the_worst_sequences_come_first_and_nan_before_all() -> None:
    sequences = [
        {"sequence": number, "loss": loss, "text": f"text {number}\n"}
        for number, loss in enumerate([1.0, 3.0, None, 2.0])
    ]
    found = {"min": -1.0, "max": None, "not_finite": 2}
    inside = {
        "step": 7,
        "gradient_norms": {"embedding": 0.12345},
        "activations": {"blocks.0": found},
        "sequences": sequences,
    }
    assert list(report([inside], {})) == [
        "gradient norms: embedding 0.1235",
        "activations of blocks.0: -1 to NaN or Inf, 2 of them NaN or Inf",
        "batch: 4 sequences; those with the highest losses:",
        "  sequence 2, loss NaN or Inf: text 2\\n",
        "  sequence 1, loss 3: text 1\\n",
        "  sequence 3, loss 2: text 3\\n",
    ]


@pytest.mark.parametrize(
    ("step", "attempt", "found"), [(None, None, 1), (None, 2, 2), (3, None, None), (3, 2, 2)]
)
def test_the_last_failure_is_looked_for_in_its_own_attempt(
    tmp_path: Path, step: int | None, attempt: int | None, found: int | None
) -> None:
    """The attempts after it may skip its batch, or be in the next phase."""
    tell(tmp_path, *STORY[:7], CheckpointCommitted(4.8, 0, 8), WorkersStarted(4.9, 2, (8,)))
    assert attempt_of(Namespace(step=step, attempt=attempt), view(tmp_path)) == found


def test_what_another_config_measured_is_no_record(tmp_path: Path) -> None:
    starts = [
        StartWorkers(number, 0, "", directory=folder)
        for number, folder in enumerate(("a", "a", "b"), start=1)
    ]
    records = [{**measured(step), "attempt": step} for step in (1, 2, 3, 4)]
    assert of_same_config(records, starts, 1).keys() == {1, 2, 4}
    assert of_same_config(records, starts, 3).keys() == {3, 4}


def job_with(folder: Path, *steps: tuple[str, int, float]) -> Path:
    folder.mkdir()
    lines = [
        {"time": 1.0, "phase": phase, "attempt": 1, "step": step, "loss": loss}
        for phase, step, loss in steps
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)
    return folder


def compared(one: Path, other: Path, *, as_json: bool = False) -> int:
    return run(Namespace(model_dir=one, compare=other, json=as_json))


def test_jobs_are_compared_phase_by_phase(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = job_with(tmp_path / "one", ("a", 1, 0.5), ("a", 2, 0.4), ("b", 1, 0.3))
    same = job_with(tmp_path / "same", ("a", 1, 0.5), ("a", 2, 0.4), ("b", 1, 0.3), ("b", 2, 0.2))
    earlier = job_with(tmp_path / "earlier", ("a", 1, 0.5), ("a", 2, 0.41), ("b", 1, 0.3))
    first = job_with(tmp_path / "first", ("a", 1, 0.5))
    assert compared(one, same) == 0
    assert "all steps up to 1 of phase 'b', the last that both have" in capsys.readouterr().out
    assert compared(one, earlier) == 0
    assert "step 2 of phase 'a' is the first that differs" in capsys.readouterr().out
    assert compared(one, first) == 0
    assert "all steps up to 1 of phase 'a', the last that both have" in capsys.readouterr().out
    assert compared(one, earlier, as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["phase"], told["first_difference"]) == ("a", 2)


def test_what_cannot_be_compared_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    one, other = job_with(tmp_path / "one", ("a", 1, 0.5)), job_with(tmp_path / "x", ("b", 1, 0.5))
    empty = job_with(tmp_path / "empty")
    for place, told in (
        (tmp_path / "gone", f"there is no {tmp_path / 'gone' / 'metrics.jsonl'}: give the model_"),
        (empty, f"{empty / 'metrics.jsonl'} has no steps: give the model_dir"),
        (other, f"{one} has the phases a, and {other} has b: there is no phase of the same name"),
    ):
        assert compared(one, place) == 64
        assert told in capfd.readouterr().err
