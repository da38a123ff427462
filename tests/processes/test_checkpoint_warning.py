"""A program that saves where nobody looks: one warning, which names what was found."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.running import Result, Start

Supervise = Callable[..., Result]

PROGRAM = """
import os, sys
from pathlib import Path

name, model_dir = sys.argv[1], Path(sys.argv[2])
folder = model_dir / name
done = max((int(path.name.strip("step-ckpt")) for path in folder.glob("*[0-9]")), default=0)
for step in range(done + 1, done + 6):
    os.write(1, b"step %d\\n" % step)
checkpoint = folder / (sys.argv[3] % step)
checkpoint.mkdir(parents=True)
(checkpoint / sys.argv[4]).touch()
sys.exit(1)
"""


FIRST_PAUSES = """
import os, signal, sys
from pathlib import Path

if not (went_on := Path(sys.argv[2], "went_on")).exists():
    went_on.touch()
    os.write(1, b"phase two waits\\n")
    signal.pause()
"""


def job(tmp_path: Path, model_dir: Path, *arguments: str, **restart: Any) -> dict[str, Any]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    argv = [sys.executable, str(program), arguments[0], "{model_dir}", *arguments[1:]]
    restart = {"max_num_restarts": 2, "backoff": {"first": 0.01}, "standby": "off", **restart}
    checkpoint = {"directory": "{model_dir}/checkpoints"}
    return {
        "trainer": {
            "init": {"model_dir": str(model_dir), "autorestart": restart, "checkpoint": checkpoint},
            "command": {"argv": argv, "progress": {"pattern": r"step (\d+)"}},
        }
    }


@pytest.mark.parametrize(
    ("arguments", "reason", "found"),
    [
        (
            ("actor", "%d", "commit_success.txt"),
            "an attempt has failed",
            "committed checkpoints are in {model_dir}/actor (newest: step N): set "
            "trainer.init.checkpoint.directory (--set "
            "trainer.init.checkpoint.directory={model_dir}/actor)",
        ),
        (
            ("checkpoints", "ckpt%d", "model.pt"),
            "the program goes on at step 6, so it has saved",
            "{model_dir}/checkpoints/ckpt10",
        ),
    ],
)
def test_checkpoints_that_are_not_seen_are_named_once(
    supervise: Supervise,
    tmp_path: Path,
    model_dir: Path,
    arguments: tuple[str, ...],
    reason: str,
    found: str,
) -> None:
    result = supervise(job(tmp_path, model_dir, *arguments))
    assert result.code == 76, result.log
    told = result.event("checkpoints-unseen", place=f"{model_dir}/checkpoints")
    assert told["text"].startswith(reason)
    # The next attempt may have saved, too, when it is looked for them.
    text = re.sub(r"newest: step \d+", "newest: step N", told["text"])
    assert found.format(model_dir=model_dir) in text
    assert ("no known checkpoint layout" in told["text"]) == (arguments[0] == "checkpoints")
    assert ("a folder counts once commit_success.txt" in text) == (arguments[0] == "checkpoints")


def test_a_job_that_goes_on_in_its_second_phase_is_told_of_that_one(
    start: Start, tmp_path: Path, model_dir: Path
) -> None:
    config = job(tmp_path, model_dir, "actor", "%d", "commit_success.txt")
    program = tmp_path / "program.py"
    program.write_text(FIRST_PAUSES + PROGRAM)
    for_phase = "{model_dir}/checkpoints/%s"
    first, second = (
        {
            **config["trainer"],
            "name": name,
            "init": {**config["trainer"]["init"], "checkpoint": {"directory": for_phase % name}},
        }
        for name in ("one", "two")
    )
    first = {**first, "command": {"argv": [sys.executable, "-c", "pass"]}}
    config = {"trainer": [{"trainer": first}, {"trainer": second}]}
    running = start(config)
    running.wait_for("phase two waits")
    running.signal(signal.SIGTERM)
    assert running.result().code == 75
    result = start(config).result()
    assert result.code == 76, result.log
    assert result.event("checkpoints-unseen")["place"] == f"{model_dir}/checkpoints/two"


def test_higher_steps_of_an_old_run_are_named(
    supervise: Supervise, tmp_path: Path, model_dir: Path
) -> None:
    old = model_dir / "checkpoints" / "9000"
    old.mkdir(parents=True)
    (old / "commit_success.txt").touch()
    result = supervise(
        job(tmp_path, model_dir, "other", "%d", "commit_success.txt", max_num_restarts=0)
    )
    assert result.code == 76, result.log
    why = "the program began at step 1, and step 9000 was there before"
    assert why in result.event("checkpoints-unseen")["text"]


def test_commits_that_are_seen_are_no_reason(
    supervise: Supervise, tmp_path: Path, model_dir: Path
) -> None:
    config = job(tmp_path, model_dir, "checkpoints", "%d", "commit_success.txt")
    config["trainer"]["command"]["success"] = {"step": 15, "exit_code": 1}
    result = supervise(config)
    assert result.code == 0, result.log
    assert not result.has_event("checkpoints-unseen")


@pytest.mark.parametrize(
    ("save", "told"),
    [
        (
            'gzip.open("snapshots/snap_00020.pkl.gz", "wb").close()',
            r"give --set 'trainer.init.checkpoint.pattern=snap_(\d+)\.pkl\.gz'",
        ),
        ('open("snapshots/latest.npz", "wb").close()', "overwritten in place"),
        ('open("policy_20.pkl", "wb").close()', r"pattern=policy_(\d+)\.pkl'"),
        ('open("metrics.pkl", "wb").close()', None),
    ],
)
def test_a_run_that_is_never_killed_is_warned_of_what_is_not_understood(
    supervise: Supervise,
    tmp_path: Path,
    model_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    save: str,
    told: str | None,
) -> None:
    """A file that may be a result is no reason."""
    monkeypatch.chdir(tmp_path)
    program = f'import gzip, os; os.mkdir("snapshots"); {save}'
    init = {"model_dir": str(model_dir), "autorestart": {"max_num_restarts": 1}}
    result = supervise(
        {"trainer": {"init": init, "command": {"argv": [sys.executable, "-c", program]}}}
    )
    assert result.code == 0, result.log
    assert result.has_event("checkpoints-unseen") is (told is not None)
    if told is not None:
        text = result.event("checkpoints-unseen")["text"]
        assert text.startswith("the program has ended, but no new checkpoint is seen")
        assert told in text
