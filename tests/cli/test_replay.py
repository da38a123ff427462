"""What `supervise replay` decides and says, without running anything."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.cli.job_view import view
from supervisor.cli.replay import (
    FoundWrong,
    Span,
    attempt_of,
    choices,
    doubt,
    first_difference,
    found_wrong,
    of_same_config,
    report,
    run,
    span,
    step_of,
)
from supervisor.core.decisions import StartWorkers
from supervisor.core.events import CheckpointCommitted, LossSpiked, WorkersGone, WorkersStarted
from supervisor.protocol.loss_spikes import LossSpike
from supervisor.protocol.suspect_steps import in_words, suspect_steps
from tests.adapters.test_journal import KILLED, STORY, tell


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


def test_steps_in_a_row_that_are_as_recorded_have_one_line_but_for_the_last() -> None:
    told: list[dict[str, Any]] = [{"step": step, "loss": 10.0 - step} for step in range(1, 8)]
    recorded = {each["step"]: each for each in told} | {4: {"loss": 1.5}}
    assert list(report(told, recorded)) == [
        "steps 1 to 3: loss 9.0 to 7.0 (each as recorded)",
        "step 4: loss 6.0 (DIFFERS from the run: loss was 1.5)",
        "step 5: loss 5.0 (as recorded)",
        "step 6: loss 4.0 (as recorded)",
        "step 7: loss 3.0 (as recorded)",
    ]


def test_nan_and_inf_are_told_apart_and_are_what_the_run_could_not_record() -> None:
    told = [{"step": 1, "loss": "NaN", "gradient_norm": "-Inf"}]
    assert list(report(told, {1: {"loss": None, "gradient_norm": None}})) == [
        "step 1: loss NaN, gradient_norm -Inf (as recorded)"
    ]


def test_what_another_attempt_recorded_is_told_where_one_is_named() -> None:
    told, recorded = [{"step": 1, "loss": 2.0}], {1: {"loss": 2.0, "attempt": 2}}
    assert list(report(told, recorded, 1)) == ["step 1: loss 2.0 (as recorded by attempt 2)"]
    assert list(report(told, recorded, 2)) == ["step 1: loss 2.0 (as recorded)"]
    assert list(report(told, recorded)) == ["step 1: loss 2.0 (as recorded)"]


def test_steps_of_a_wrong_device_are_held_against_the_numbers_of_the_attempt_after_it() -> None:
    told = [{"step": step, "loss": 2.0} for step in (24, 25, 32)]
    recorded = {
        24: {"loss": 2.0, "attempt": 1},
        25: {"loss": 2.0, "attempt": 2},
        32: {"loss": 2.0, "attempt": 2},
    }
    wrong = FoundWrong(1, range(25, 33), "device 2", " (wrong gradients of step 32)")
    assert list(report(told, recorded, None, wrong)) == [
        "step 24: loss 2.0 (as recorded)",
        "step 25: loss 2.0 (as recorded by attempt 2)",
        "step 32: loss 2.0 (as recorded by attempt 2)",
    ]
    assert list(doubt(told, recorded, wrong)) == [
        "note: attempt 1 computed steps 25 to 32 with device 2, which was found wrong at step 32 "
        "(wrong gradients of step 32)",
        "note: what is recorded of them is attempt 2's, not attempt 1's: a replay on devices that "
        "compute rightly agrees with these numbers",
    ]
    (_, last) = doubt(told[1:2], {25: {"attempt": 1}}, wrong)
    assert last.startswith("note: what is recorded by attempt 1 itself may be wrong")
    assert list(doubt(told[:1], recorded, wrong)) == []
    assert list(doubt(told, recorded, None)) == []


def test_the_steps_of_a_wrong_device_are_read_from_the_journal(tmp_path: Path) -> None:
    message = f"trainer.SilentCorruptionError: step 8: cpu:2 is wrong. {in_words(5, 8)}"
    failure = replace(KILLED, rule="silent-corruption", root_cause=message)
    tell(tmp_path, *STORY[:5], WorkersGone(4.2, 1, failure, None, 7, 5))
    job = view(tmp_path)
    assert found_wrong(job, 1) == FoundWrong(1, range(5, 9), "a device that is not known", "")
    assert found_wrong(job, 2) is None


@pytest.mark.parametrize(("first", "last"), [(25, 32), (7, 7)])
def test_the_steps_that_are_suspect_are_read_as_they_are_written(first: int, last: int) -> None:
    message = f"SilentCorruptionError: step {last}: cpu:2 is wrong. {in_words(first, last)}"
    assert suspect_steps(message) == range(first, last + 1)
    assert not suspect_steps("step 7: something else")


def test_which_steps_there_are_is_told_where_none_is_named(tmp_path: Path) -> None:
    tell(tmp_path, *STORY[:3], LossSpiked(2.5, 1, LossSpike(4, 9.25, 2.0, 2.5)))
    job = view(tmp_path)
    name = job.policy.phases[0].name
    assert next(choices(job, tmp_path, name, [])) == "No step is recorded."
    record = {"time": 1.0, "phase": name, "attempt": 1, "step": 6, "loss": 0.5}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    steps, kept, spike = choices(job, tmp_path, name, [5, 3])
    assert steps == "There are steps 1 to 6."
    assert kept == "Quickest are steps soon after a checkpoint; those kept are of steps 3, 5."
    assert spike.startswith("note: the loss of step 4 stands out: 9.25")


def test_a_state_that_was_not_saved_is_replayed_at_its_own_step(tmp_path: Path) -> None:
    options, found = Namespace(step=None, attempt=None, phase=None), []
    for rule in ("not-finite", "state-not-finite"):
        folder = tmp_path / rule
        folder.mkdir()
        failure = replace(KILLED, rule=rule, step=25)
        tell(folder, *STORY[:5], WorkersGone(4.2, 1, failure, None, 25, 5))
        found.append(step_of(options, view(folder)))
    assert found == [26, 25]
    options.phase = view(folder).policy.phases[0].name
    assert step_of(options, view(folder)) == 25
    tell(tmp_path, *STORY[:5], WorkersGone(4.2, 1, replace(KILLED, step=None), None, None, 5))
    told = step_of(Namespace(step=None, attempt=None, phase=None), view(tmp_path))
    assert told == "the last failure names no step (SIGKILL)"


def test_the_worst_sequences_come_first_and_nan_before_all() -> None:
    sequences = [
        {"sequence": number, "loss": loss, "text": f"text {number}\n"}
        for number, loss in enumerate([1.0, 3.0, None, 2.0])
    ]
    found = {"min": -1.0, "max": None, "not_finite": 2}
    none = {"min": "Inf", "max": "-Inf", "not_finite": 2048}
    inside = {
        "step": 7,
        "gradient_norms": {"embedding": 0.12345},
        "activations": {"blocks.0": found, "blocks.1": none},
        "sequences": sequences,
    }
    assert list(report([inside], {})) == [
        "gradient norms: embedding 0.1235",
        "activations of blocks.0: -1 to NaN or Inf, 2 of them NaN or Inf",
        "activations of blocks.1: 2048 of them NaN or Inf, none is finite",
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
    options = Namespace(step=step, attempt=attempt, phase=None)
    assert attempt_of(options, view(tmp_path)) == found


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


def test_the_records_of_a_sequence_are_named_and_the_step_that_was_bad_first() -> None:
    sequence = {"sequence": 0, "records": ["a.jsonl:3", "a.jsonl:9\x1b"], "loss": 1.0, "text": "t"}
    inside = {"step": 7, "gradient_norms": {}, "activations": {}, "sequences": [sequence]}
    held = {"held_before": "the frozen weights: a", "held_after": "the frozen weights: a"}
    assert next(report([{**inside, **held}], {})) == (
        "before step 7 the state holds NaN or Inf already, so its batch is not the cause: the "
        "frozen weights: a"
    )
    held["held_before"] = ""
    assert next(report([{**inside, **held}], {})) == (
        "after step 7 the state holds NaN or Inf: the frozen weights: a"
    )
    lines = list(report([{**inside, "instead_of": 9}], {}))
    assert lines[0] == (
        "step 7 is the first that gives NaN or Inf: it is looked into in place of step 9"
    )
    assert lines[-2:] == ["  sequence 0, loss 1: t", "    from a.jsonl:3, a.jsonl:9\\x1b"]


@pytest.mark.parametrize(
    ("step", "attempt", "found"), [(None, None, 1), (3, None, 2), (None, 1, 1), (3, 2, 2)]
)
def test_a_phase_is_chosen_by_its_name(
    tmp_path: Path, step: int | None, attempt: int | None, found: int
) -> None:
    """Without a step it is the attempt that failed."""
    tell(tmp_path, *STORY[:7], CheckpointCommitted(4.8, 0, 8), WorkersStarted(4.9, 2, (8,)))
    job = view(tmp_path)
    name = job.policy.phases[0].name
    assert attempt_of(Namespace(step=step, attempt=attempt, phase=name), job) == found
    with pytest.raises(ValueError, match="of phase 'none' is not in the journal"):
        attempt_of(Namespace(step=step, attempt=attempt, phase="none"), job)
