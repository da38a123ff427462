"""Tunix in trouble, with the real library: what the supervisor mends from outside."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.integrations.environments import command, variables
from tests.integrations.programs import Program
from tests.integrations.supervised import Run, run_supervised
from tests.running import leaving_nothing

SCRIPT = Path(__file__).with_name("tunix_trouble.py")
PROGRAM = Program("tunix in trouble", str(SCRIPT), 60, 10)
LIMIT = 600.0
NAN_AT = 34
"""The weights are NaN after this step. Each tenth step is saved, and three are kept."""

pytestmark = pytest.mark.integrations


def run(folder: Path, *arguments: str, options: tuple[str, ...] = ()) -> Run:
    """Run the program until its job ends."""
    python = command(PROGRAM)[0]
    with leaving_nothing() as mark:
        env = {**os.environ, **variables(PROGRAM), **mark}
        done = run_supervised([python, str(SCRIPT), "out", *arguments], folder, env, LIMIT, options)
    print(done.log())
    return done


def test_nan_is_found_before_every_good_checkpoint_is_replaced(tmp_path: Path) -> None:
    done = run(tmp_path, "--dropout", "0.1", "--nan-at", str(NAN_AT))
    assert done.code == 70
    (differs,) = done.all("resume-differs")
    assert "LoRA dropout is 0.1" in differs["text"]
    first = done.all("loss-not-finite")[0]
    assert NAN_AT < first["step"] <= NAN_AT + 2
    assert first["newest_committed_step"] == 30
    assert (tmp_path / "out" / "checkpoints" / "30").is_dir()


def test_a_trainer_that_never_exits_has_done_its_work(tmp_path: Path) -> None:
    limit = "trainer.init.autorestart.deadlines.FINISHING=5"
    done = run(tmp_path, "--stay", options=("--success-step", "60", "--set", limit))
    assert done.code == 0
    assert len(done.all("attempt-started")) == 1
    assert done.all("resume-differs") == []
    (ended,) = done.all("job-ended")
    assert "step 60 is committed, and the program did not exit" in ended["reason"]
