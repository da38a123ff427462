"""Programs that train no more: they do not exit after their last step, or their losses are NaN."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.forked import forked
from tests.running import Result

Supervise = Callable[..., Result]

SAVES = """
import sys, threading, time
from pathlib import Path
import supervise_worker

saves = Path(sys.argv[1])
start = max((int(done.parent.name) for done in saves.glob("*/commit_success.txt")), default=0)

def save(n):
    (saves / str(n)).mkdir(parents=True)
    (saves / str(n) / "commit_success.txt").touch()
    supervise_worker.saved(n)
"""
UNPROVEN = "ended before its work was done, as far as is known"
REPORTS_SAVE = "    supervise_worker.saved(n)\n"
STAYS = """
for n in range(start + 1, 4):
    supervise_worker.step(n)
    save(n)
threading.Event().wait()
"""
"""A trainer of three steps that never exits, as one that waits for a thread that never ends."""
DIVERGES = """
for n in range(start + 1, 1000):
    supervise_worker.step(n, loss=float("nan") if n > 5 else 1.0)
    if n in SAVED:
        save(n)
    time.sleep(0.11)  # a step that comes sooner is not reported
"""


COPIES_A_BASE = """
if not start:
    save(3000)
for n in range(1, 1 if start else 9):
    TELL
    time.sleep(0.3)
"""
"""A program that copies a base model of step 3000, and does not train so far."""
SAVES_ONCE = """
for n in range(1, 9):
    TELL
    time.sleep(0.3)
save(3000)
"""


def config(model_dir: Path, program: str, **restart: Any) -> dict[str, Any]:
    restart = {"max_num_restarts": 3, "standby": "off", "grace_period": 5, **restart}
    path = model_dir.parent / "train.py"
    path.write_text(SAVES + program)
    argv = [sys.executable, str(path), "{model_dir}/checkpoints"]
    return {
        "trainer": {
            "init": {
                "model_dir": str(model_dir),
                "autorestart": {**restart, "backoff": {"first": 0.05}},
            },
            "command": {"argv": argv, "success": {"step": 3}},
        }
    }


def done(result: Result) -> bool:
    reason = result.event("job-ended")["reason"]
    return "step 3 is committed, and the program did not exit" in reason


def test_work_that_is_committed_is_done_and_no_hang(supervise: Supervise, model_dir: Path) -> None:
    """It takes 3 s: the time to dump the stacks is part of it."""
    job = config(model_dir, STAYS, deadlines={"TRAINING": 0.3, "FINISHING": 0.4})
    result = supervise(job)
    assert result.code == 0, result.log
    assert done(result)
    assert result.attempts == 1
    assert not result.has_event("budget-used")
    assert result.event("attempt-ended")["status"] == "SUCCEEDED"
    again = supervise(job)
    assert (again.code, again.events("attempt-started")) == (0, []), "the success is final"


def test_a_failure_after_the_work_is_committed_is_told_as_such(
    supervise: Supervise, model_dir: Path
) -> None:
    fails = STAYS.replace("threading.Event().wait()", "sys.exit(1)")
    result = supervise(config(model_dir, fails, max_num_restarts=1))
    assert result.code == 76, result.log
    told = "Step 3 of `success` is committed: the program failed after it"
    *early, end = [each["advice"] for each in result.events("advice")]
    assert told in end
    assert not any(told in advice for advice in early)
    for verb in ("status", "explain"):
        assert told in " ".join(forked(verb, model_dir).stdout.split()), verb


def test_work_that_is_not_committed_is_not_done(supervise: Supervise, model_dir: Path) -> None:
    deadlines = {"TRAINING": 0.3, "FINISHING": 0.3}
    job = config(model_dir, STAYS, deadlines=deadlines, max_num_restarts=0)
    job["trainer"]["command"]["success"]["step"] = 4
    result = supervise(job)
    assert result.code == 76, result.log
    assert result.has_event("attempt-failed", code="hang")
    assert "of `success`" not in result.event("advice")["advice"]


@pytest.mark.slow
def test_who_has_done_its_work_and_does_nothing_is_ended(
    supervise: Supervise, model_dir: Path
) -> None:
    """Also where no deadline holds: nobody tells a step here. Workers are looked at every 5 s."""
    quiet = STAYS.replace("supervise_worker.step(n)", "pass")
    result = supervise(config(model_dir, quiet, deadlines={"FINISHING": 1}))
    assert result.code == 0, result.log
    assert done(result)
    assert result.attempts == 1
    assert not result.has_event("hang-detected")
    assert "it did nothing" in result.event("workers-told-to-stop")["reason"]


TELLS = {"reported": "supervise_worker.step(n)", "shown": "print('step', n, flush=True)"}


def of_3000_steps(model_dir: Path, program: str, tell: str, **restart: Any) -> dict[str, Any]:
    """A job whose program tells its steps, and reports no save."""
    program = program.replace("TELL", TELLS[tell])
    job = config(model_dir, program.replace("save(", "copy("), **restart)
    path = model_dir.parent / "train.py"
    path.write_text(path.read_text().replace("def save(", "def copy(").replace(REPORTS_SAVE, ""))
    job["trainer"]["command"]["success"]["step"] = 3000
    return job


def test_a_step_that_is_saved_again_and_again_is_no_success(
    supervise: Supervise, model_dir: Path
) -> None:
    """The name has the number of all steps, and each save replaces the one before."""
    program = """
import os, pickle, shutil
saves.mkdir(parents=True, exist_ok=True)
for n in range(1, 9):
    TELL
    (saves / "new").write_bytes(pickle.dumps(n))
    (saves / "new").rename(saves / "ckpt_3000.pkl")
    time.sleep(0.4)
"""
    job = of_3000_steps(model_dir, program, "reported", max_num_restarts=1)
    result = supervise(job)
    assert result.code == 76, result.log
    failures = [each["failure"] for each in result.events("attempt-ended")]
    assert [each["cause"] for each in failures] == [UNPROVEN] * 2


def test_a_step_that_is_only_shown_is_named_where_it_proves_no_success(
    supervise: Supervise, model_dir: Path
) -> None:
    program = """
for n in range(1, 51):
    time.sleep(0.05)
    print("step", n, "loss", "nan", flush=True)
save(40)
"""
    job = config(model_dir, program, max_num_restarts=0)
    job["trainer"]["command"]["success"]["step"] = 50
    path = model_dir.parent / "train.py"
    path.write_text(path.read_text().replace(REPORTS_SAVE, ""))
    result = supervise(job)
    assert result.code == 76, result.log
    failure = result.event("attempt-ended")["failure"]
    assert "at step 40 (the newest committed step), before success.step (50)" in failure["reason"]
    assert "The output shows step 50" in failure["advice"]
    assert result.has_event("losses-doubtful")


def test_status_does_not_hide_a_loss_that_is_no_number_behind_a_success(
    supervise: Supervise, model_dir: Path
) -> None:
    program = """
for n in range(1, 41):
    time.sleep(0.05)
    print("step", n, "loss", 1 / n if n < 20 else "nan", flush=True)
"""
    job = config(model_dir, program)
    del job["trainer"]["command"]["success"]
    assert supervise(job).code == 0
    told = forked("status", model_dir).stdout
    assert "SUCCEEDED" in told
    assert "the last loss that the program showed, at step 40, is NaN or Inf" in told


@pytest.mark.parametrize("tell", TELLS)
def test_a_base_model_that_is_copied_is_no_success(
    supervise: Supervise, model_dir: Path, tell: str
) -> None:
    """Also not in the next attempt, which tells no steps."""
    result = supervise(of_3000_steps(model_dir, COPIES_A_BASE, tell, max_num_restarts=1))
    assert result.code == 76, result.log
    failures = [each["failure"] for each in result.events("attempt-ended")]
    assert [each["cause"] for each in failures] == [UNPROVEN] * 2


@pytest.mark.parametrize("tell", TELLS)
def test_the_only_save_is_a_success_if_it_is_the_last_one(
    supervise: Supervise, model_dir: Path, tell: str
) -> None:
    """It counts examples, while the output counts batches."""
    result = supervise(of_3000_steps(model_dir, SAVES_ONCE, tell))
    assert (result.code, result.attempts) == (0, 1), result.log


@pytest.mark.slow
@pytest.mark.parametrize("tell", TELLS)
def test_who_has_copied_a_base_model_and_waits_for_data_is_not_ended(
    supervise: Supervise, model_dir: Path, tell: str
) -> None:
    """Workers are looked at every 5 s."""
    waits = COPIES_A_BASE + "time.sleep(13)\nprint('goes on', flush=True)\nsys.exit(7)\n"
    job = of_3000_steps(
        model_dir, waits, tell, max_num_restarts=0, deadlines={"FINISHING": 1, "TRAINING": 60}
    )
    result = supervise(job)
    assert result.code == 76, result.log
    assert not result.has_event("workers-told-to-stop")
    assert b"goes on" in result.rank_log(1)


def diverging(model_dir: Path, *saved: int) -> dict[str, Any]:
    job = config(model_dir, DIVERGES.replace("SAVED", str({*saved})))
    job["trainer"]["command"]["success"]["step"] = 900
    return job


def test_no_checkpoint_with_nan_replaces_all_good_ones(
    supervise: Supervise, model_dir: Path
) -> None:
    job = diverging(model_dir, 3, 7)
    job["trainer"]["command"]["success"]["step"] = 7
    result = supervise(job)
    assert result.code == 70, result.log
    assert result.attempts == 1, "the newest checkpoint has the NaN"
    told = result.event("loss-not-finite")
    assert (told["step"], told["newest_committed_step"]) == (6, 3)
    failure = result.event("attempt-failed")
    assert (failure["code"], failure["verdict"]) == ("not-finite", "POLICY")
    assert "step 7 was saved after that" in result.event("job-ended")["reason"]
    assert "from before it is that of step 3" in result.event("advice")["advice"]
    assert "of `success`" not in result.event("advice")["advice"], "the NaN is in that step"


@pytest.mark.slow
def test_losses_that_stay_nan_lead_back_to_the_newest_checkpoint_once(
    supervise: Supervise, model_dir: Path
) -> None:
    """Ten losses that are read twice a second take 5 s, and that twice."""
    result = supervise(diverging(model_dir, 3))
    assert result.code == 70, result.log
    assert result.attempts == 2
    assert [each["step"] for each in result.events("attempt-started")] == [None, 3]
    assert result.event("job-ended")["reason"].startswith("step 6 gave NaN or Inf twice")


PRINTS = """
for n in range(1, 16):
    LINE
    if n in (5, 9, 12):
        save(n)
    time.sleep(0.11)
"""


@pytest.mark.parametrize(
    "line",
    [
        "val/loss={'nan' if n > 5 else 1.0} train/loss=0.15",
        "best loss {'inf' if n > 5 else 1.0} current 0.1",
    ],
    ids=["of a validation", "the best one"],
)
def test_other_losses_that_are_nan_end_nothing(
    supervise: Supervise, model_dir: Path, line: str
) -> None:
    job = config(model_dir, PRINTS.replace("LINE", f'print(f"step {{n}} {line}", flush=True)'))
    job["trainer"]["command"] |= {"progress": {"pattern": r"step (\d+)"}, "success": {"step": 12}}
    result = supervise(job)
    assert (result.code, result.attempts) == (0, 1), result.log
    assert not result.has_event("loss-not-finite")


def test_a_real_nan_behind_another_loss_ends_the_attempt(
    supervise: Supervise, model_dir: Path
) -> None:
    line = "print('step', n, 'kl loss 0.1 | loss', LOSS, flush=True)"
    program = PRINTS.replace("LINE", line.replace("LOSS", "0.2 if n < 5 else 'nan'"))
    program = program.replace("range(1, 16)", "range(1, 100)").replace("0.11", "0.3")
    job = config(model_dir, program)
    job["trainer"]["command"] |= {"progress": {"pattern": r"step (\d+)"}, "success": {"step": 90}}
    result = supervise(job)
    assert result.code == 70, result.log
    assert result.event("loss-not-finite")["step"] == 5
