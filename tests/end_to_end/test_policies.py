"""Our trainer under the supervisor, where a plain restart would only repeat what happened."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.end_to_end.test_training import config
from tests.running import Result, command_config
from tests.training.harness import Trainer, assert_same_bits, final_state, tiny
from tests.training.test_not_finite import poisoned, skipping

Supervise = Callable[..., Result]

OUT_OF_MEMORY = {
    "exception": "RuntimeError",
    "message": "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 68719476736 bytes.",
}


def _poisoned(model_dir: Path, **loop: int) -> tuple[dict[str, Any], int]:
    """A job that finds a checkpoint of step 1, and one batch that overflows."""
    model_dir.mkdir()
    job = config(model_dir)
    job["trainer"]["init"]["loop"] |= loop
    where = job["trainer"]["init"]["checkpoint"]
    where["directory"] = str(model_dir / "checkpoints")
    return job, poisoned(job, model_dir)


def test_a_step_that_gives_nan_twice_ends_the_job_at_the_last_good_checkpoint(
    supervise: Supervise, model_dir: Path, cache: dict[str, str]
) -> None:
    job, bad = _poisoned(model_dir)
    result = supervise(job, env=cache)
    assert (result.code, result.attempts) == (70, 2), result.log
    why = result.event("job-ended")["reason"]
    assert f"step {bad} gave NaN or Inf twice, and its batch may not be skipped" in why
    assert "skip_bad_batches of the config allows none" in why
    assert "skip_bad_batches" in result.events("advice")[-1]["advice"]
    assert result.summary["highest_committed_step"] == (bad - 1) // 5 * 5


@pytest.mark.slow
def test_a_batch_that_may_be_skipped_is_skipped_and_told(
    supervise: Supervise, model_dir: Path, tmp_path: Path, unoptimised: dict[str, str]
) -> None:
    job, bad = _poisoned(model_dir, skip_bad_batches=1)
    job["trainer"]["init"]["autorestart"]["max_num_restarts"] = 3
    job["trainer"]["faults"] = [{"step": bad + 1, "signal": "SIGKILL"}]
    result = supervise(job, env=unoptimised)
    assert (result.code, result.attempts) == (0, 4), result.log
    reasons = [told["reason"] for told in result.events("attempt-started")]
    assert any("its batch is skipped from now on" in each for each in reasons)
    assert result.events("batch-skipped", step=bad)

    folder = tmp_path / "undisturbed"
    folder.mkdir()
    undisturbed = Trainer(folder, unoptimised, 1, tiny(folder / "it"))
    assert poisoned(undisturbed.mapping, undisturbed.folder) == bad
    skipping(undisturbed, bad).finish()
    assert_same_bits(final_state(job, model_dir), undisturbed.state(17))


@pytest.mark.slow
def test_out_of_memory_twice_goes_on_with_more_accumulation_and_the_same_numbers(
    supervise: Supervise, tmp_path: Path, unoptimised: dict[str, str]
) -> None:
    struck = config(tmp_path / "struck", faults=[{"step": 3} | OUT_OF_MEMORY] * 2)
    whole = config(tmp_path / "whole")
    for job in (struck, whole):
        job["trainer"]["init"]["model"]["dropout"] = 0.0
    assert supervise(whole, env=unoptimised).code == 0
    result = supervise(struck, env=unoptimised)
    assert result.code == 0
    reason = result.event("attempt-started", attempt=3)["reason"]
    assert "half the computations in flight and twice the gradient accumulation" in reason
    (output,) = (tmp_path / "struck").rglob("0003/rank0.log")
    assert "4 sequences a device at a time, accumulation 2" in output.read_text()
    pairs = zip(
        jax.tree.leaves(final_state(struck, tmp_path / "struck").params),
        jax.tree.leaves(final_state(whole, tmp_path / "whole").params),
        strict=True,
    )
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=1e-2, atol=1e-3)


def test_a_record_that_cannot_be_used_ends_the_job_at_once(
    supervise: Supervise, model_dir: Path, tmp_path: Path, cache: dict[str, str]
) -> None:
    data = tmp_path / "data.jsonl"
    # more than is read before the job starts, or that would refuse it
    records = [{"ids": [1, 2, 3, 4] * 700_000}, {"ids": [5, 9999]}]
    data.write_text("".join(json.dumps(record) + "\n" for record in records))
    job = config(model_dir)
    job["trainer"]["fit"]["train_dataloader"] |= {"paths": str(data), "tokens_field": "ids"}
    result = supervise(job, env=cache)
    assert (result.code, result.attempts) == (70, 1), result.log
    assert result.summary["attempts"][-1]["failure"]["rule"] == "bad-data"
    told = f"{data}:2: token id 9999 at position 1 is outside the vocabulary"
    assert told in result.events("attempt-failed")[-1]["root_cause"]


UNTIL_TOLD = """
import pathlib, sys, time
place = pathlib.Path(sys.argv[1])
while not any(b"mend it before" in log.read_bytes() for log in place.rglob("run.log")):
    time.sleep(0.05)
sys.exit(3)
"""


def test_a_broken_record_of_a_later_phase_is_told_while_the_first_one_runs(
    supervise: Supervise, model_dir: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps({"text": "x" * (9 << 20)}) + '\n{"text": "fine"}\n{"txt": ""}\n')
    first = command_config(model_dir, restart={"max_num_restarts": 0})
    first["trainer"]["command"]["argv"] = [sys.executable, "-c", UNTIL_TOLD, str(model_dir)]
    second = config(model_dir)
    second["trainer"]["init"]["autorestart"] = first["trainer"]["init"]["autorestart"]
    second["trainer"]["fit"]["validation"]["dataloader"]["paths"] = str(data)
    for number, phase in enumerate((first, second), 1):
        phase["trainer"]["name"] = f"phase{number}"
    result = supervise({"trainer": [first, second]})
    assert result.code != 0
    told = result.event("data-unusable", phase="phase2")
    assert told["level"] == "warning"
    assert f"{data}:3: no text in the field 'text'" in told["text"]
    assert "(fit.validation.dataloader): mend it before then" in told["text"]


@pytest.mark.parametrize("missing", ["no-such.txt", "stdlib/no_such.py"])
def test_a_path_that_is_not_there_is_found_before_the_launch(
    supervise: Supervise, model_dir: Path, missing: str
) -> None:
    job = config(model_dir)
    job["trainer"]["fit"]["train_dataloader"]["paths"] = missing
    result = supervise(job)
    assert result.code == 78
    assert "matches no file" in result.err
    assert not model_dir.exists()


@pytest.mark.slow
def test_memory_that_really_runs_out_lasts_with_less_at_once(
    supervise: Supervise, model_dir: Path, cache: dict[str, str]
) -> None:
    """A step that needs 2.4 GB beside the trainer's 0.9 GB, where it may have 2.7 GB in all."""
    job = config(model_dir, max_steps=1, log_every=1)
    model = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 32768}
    loader = {"paths": "stdlib/json/*.py", "sequence_length": 1024}
    job["trainer"]["init"]["model"] = model
    job["trainer"]["init"]["optimizer"]["warmup_steps"] = 0
    job["trainer"]["fit"] = {"train_dataloader": loader}
    cpus = ",".join(
        str(cpu) for cpu in sorted(os.sched_getaffinity(0))[:2]
    )  # threads need room too
    limited = ("taskset", "-c", cpus, "sh", "-c", 'ulimit -v 2700000 && exec "$@"', "sh")
    result = supervise(job, env=cache | {"MALLOC_ARENA_MAX": "1"}, prefix=limited)
    assert (result.code, result.attempts) == (0, 3), result.log
    ran_out = "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating"
    causes = [told["root_cause"] for told in result.events("attempt-failed")]
    assert [cause.startswith(ran_out) for cause in causes] == [True, True]
    assert b"4 sequences a device at a time, accumulation 2" in result.rank_log(3)
