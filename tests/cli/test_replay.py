"""What `supervise replay` decides and says, without running anything."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.cli.replay import Span, first_difference, report, span


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
