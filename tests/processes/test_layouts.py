"""Programs that commit nothing: what they save refills the budget, and what they left torn does
not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints.samples import npz
from tests.running import Result

Supervise = Callable[..., Result]

SAVES = """
import os, re, signal, sys, time, zipfile
from pathlib import Path

model_dir, template, last = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
folder = model_dir / "checkpoints"
folder.mkdir(exist_ok=True)

def save(step):
    with zipfile.ZipFile(folder / template.format(step), "w") as archive:
        archive.writestr("w", b"x" * 1000)

def sees(step):
    journal = (model_dir / "journal.jsonl").read_bytes()
    return re.search(rb'"CheckpointCommitted"[^}]*"step":%d[,}]' % step, journal)

done = max((int(re.findall("[0-9]+", path.name)[-1]) for path in folder.iterdir()), default=0)
for step in range(done + 1, last + 1):
    save(step)
    if step < last:
        while not sees(step):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
"""
"""It is killed after each step that was seen, and ends well after the last one: nobody saw that."""

TORN = """
import os, signal, sys
from pathlib import Path

folder = Path(sys.argv[1], "checkpoints")
folder.mkdir(exist_ok=True)
step = 1 + sum(1 for _ in folder.iterdir())
file = open(folder / f"ckpt-{step}.npz", "wb", buffering=0)
file.write(Path(sys.argv[2]).read_bytes())
os.kill(os.getpid(), signal.SIGKILL)
"""
"""It writes whole files, and is killed before it has closed one."""


def job(
    tmp_path: Path, model_dir: Path, program: str, *arguments: str, **checkpoint: str
) -> dict[str, Any]:
    path = tmp_path / "program.py"
    path.write_text(program)
    restart = {"max_num_restarts": 1, "backoff": {"first": 0.01}, "standby": "off"}
    init = {"model_dir": str(model_dir), "autorestart": restart, "checkpoint": checkpoint}
    argv = [sys.executable, str(path), "{model_dir}", *arguments]
    return {"trainer": {"init": init, "command": {"argv": argv, "success": {"step": 4}}}}


@pytest.mark.parametrize(
    ("template", "checkpoint"),
    [
        ("ckpt-{}.pt", {}),
        ("gpt2.{}.blob", {"pattern": r"gpt2\.(\d+)\.blob"}),
    ],
    ids=["known", "own"],
)
def test_a_job_that_is_killed_after_every_save_goes_on(
    supervise: Supervise,
    tmp_path: Path,
    model_dir: Path,
    template: str,
    checkpoint: dict[str, str],
) -> None:
    result = supervise(job(tmp_path, model_dir, SAVES, template, "4", **checkpoint))
    assert result.code == 0, result.log
    assert result.attempts == 4  # with one restart in a row
    assert result.events("attempt-ended")[-1]["newest_committed_step"] == 4


def test_what_is_left_open_is_no_progress(
    supervise: Supervise, tmp_path: Path, model_dir: Path
) -> None:
    whole = tmp_path / "whole.npz"
    whole.write_bytes(npz())
    result = supervise(job(tmp_path, model_dir, TORN, str(whole)))
    assert result.code == 76, result.log
    assert result.attempts == 2
    assert result.events("attempt-ended")[-1]["newest_committed_step"] is None
