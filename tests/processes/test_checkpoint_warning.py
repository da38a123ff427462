"""A program that saves where nobody looks: one warning, which names what was found."""

from __future__ import annotations

import json
import re
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.forked import forked
from tests.running import Result, Start, command_config

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
    status = json.loads((model_dir / "status.json").read_text())
    assert status["checkpoints"] == f"{model_dir}/checkpoints"


@pytest.mark.parametrize(
    ("save", "told"),
    [
        (
            'gzip.open("snapshots/snap_00020.pkl.gz", "wb").close()',
            r"give --set 'trainer.init.checkpoint.pattern=snap_(\d+)\.pkl\.gz'",
        ),
        ('open("snapshots/latest.npz", "wb").close()', "overwritten in place"),
        ('open("policy_20.pkl", "wb").close()', r"pattern=policy_(\d+)\.pkl'"),
        ('[open("run1_%04d.pkl" % n, "wb") for n in (10, 20, 30)]', r"=run\d+_(\d+)\.pkl'"),
        ('[open("batch_%d.pkl" % n, "wb") for n in (1, 2, 3)]', None),
        ('[open("result_%d.pkl" % n, "wb") for n in (1, 2)]', None),
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


IN_PLACE = """
import pathlib, sys

import numpy as np

file = pathlib.Path(sys.argv[1])
begins = int(np.load(file)["step"]) if file.exists() else 0
for step in range(begins + 1, begins + 5):
    np.savez(file, step=step)
    print("step", step, flush=True)
1 / 0
"""


def test_a_job_is_not_said_to_begin_anew_whose_program_overwrites_one_file(
    supervise: Supervise, tmp_path: Path, model_dir: Path
) -> None:
    (tmp_path / "train.py").write_text(IN_PLACE)
    file = model_dir / "state.npz"
    config = command_config(model_dir)
    config["trainer"]["command"] = [sys.executable, str(tmp_path / "train.py"), str(file)]
    result = supervise(config)
    assert result.code in (70, 76), result.out
    status = forked("status", model_dir).stdout
    assert "this begins at the first step, as far as is seen" in status
    overwritten = f"overwritten in place: {file}"
    assert overwritten in result.event("checkpoints-unseen")["text"]
    assert overwritten in status
    assert overwritten in forked("explain", model_dir, "1").stdout


SAVES_AND_DIES = """
import os, pickle, sys
from pathlib import Path

out, name = Path("outf"), sys.argv[1]
out.mkdir(exist_ok=True)
data = pickle.dumps({})
if not any(out.iterdir()):
    for step in (20, 40)[: int(sys.argv[2])]:
        (out / "tmp").write_bytes(data if sys.argv[3] == "whole" else data[:-1])
        os.replace(out / "tmp", out / f"{name}_{step:05d}.pkl")
for step in range(1, 6):
    print(f"[it {step}/60] mse=0.5", flush=True)
sys.exit(1)
"""


@pytest.mark.parametrize("launch", ["directly", "shell", "make"])
@pytest.mark.parametrize(
    ("saved", "is_told"),
    [
        ("ck 1 whole", True),
        ("xy 2 whole", True),
        ("xy 2 torn", False),
        ("batch 2 whole", False),
    ],
)
def test_a_job_that_fails_names_what_it_saved_under_unknown_names(
    supervise: Supervise,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    launch: str,
    saved: str,
    is_told: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("program.py").write_text(SAVES_AND_DIES)
    text = f"{sys.executable} program.py {saved}"
    Path("Makefile").write_text(f"train:\n\t{text}\n")
    argv = {
        "directly": text.split(),
        "shell": ["bash", "-c", f"true; {text}"],
        "make": ["make", "train"],
    }[launch]
    restart = {"max_num_restarts": 3, "backoff": {"first": 0.01}, "standby": "off"}
    init = {"model_dir": "run", "autorestart": restart}
    result = supervise({"trainer": {"init": init, "command": {"argv": argv}}})
    assert result.code == 70, result.log
    assert result.has_event("checkpoints-unseen") is is_told
    advice = [each["advice"] for each in result.events("advice", code="checkpoints-unseen")]
    assert len(advice) == is_told
    if is_told:
        name = saved.split()[0]
        told = result.event("checkpoints-unseen")["text"]
        assert told in advice[0]
        assert f": {tmp_path}/outf/{name}_000" in told
        events = result.events("checkpoints-unseen", "workers-started")
        assert [each["event"] for each in events] == [
            "workers-started",
            "checkpoints-unseen",
            "workers-started",
        ]
        assert rf"--set 'trainer.init.checkpoint.pattern={name}_(\d+)\.pkl'" in told
        assert f"--set trainer.init.checkpoint.directory={tmp_path}/outf" in told


NUMBERED = """
import os, signal, sys
from pathlib import Path

name, folder = sys.argv[1], Path(sys.argv[1]).parent
folder.mkdir(exist_ok=True)
done = 10 * len([*folder.iterdir()])
for step in (done + 10, done + 20):
    Path(name % step).write_text("state")
if done < 40:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.parametrize("name", ["rundir/snap.%05d", "weights/model_%d.json"])
def test_the_advice_for_numbered_files_of_any_suffix_is_the_cure(
    supervise: Supervise,
    tmp_path: Path,
    model_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    is_named: bool,
) -> None:
    """Whoever named the folder is not told to name it, and what is told makes the job go on."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / Path(name).parent
    config = command_config(model_dir)
    config["trainer"]["command"] = [sys.executable, "-c", NUMBERED, name]
    place = f"trainer.init.checkpoint.directory={folder}"
    given = ["--set", place] if is_named else []
    result = supervise(config, *given)
    assert result.code == 76, result.log
    assert "from the beginning, as far as is seen (" in result.events("attempt-started")[1]["text"]
    told = result.event("checkpoints-unseen")["text"]
    newest = (Path(name % step).name for step in (20, 30, 40))  # the next attempt may have saved
    assert any(f": {folder}/{each}, " in told for each in newest)
    options = shlex.split(told.partition("; give ")[2].partition(" if only")[0])
    assert (place in options) is not is_named
    cured = supervise(config, *given, *options)
    assert cured.code == 0, cured.log
    assert cured.events("checkpoint-committed")[-1]["step"] == 60
