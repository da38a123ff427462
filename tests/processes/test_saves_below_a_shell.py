"""What a program saves after SIGTERM has ended the shell above it counts, unless it ended while it
wrote, or nobody knows how it ended."""

from __future__ import annotations

import shlex
import signal
import sys
from pathlib import Path

import pytest

from tests.exit_info import KERNEL_TELLS_EXITS
from tests.running import Start

PROGRAM = """
import os, pickle, signal, sys, time
from pathlib import Path

out, how = Path("out"), sys.argv[1]
out.mkdir(exist_ok=True)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
signal.signal(signal.SIGTERM, lambda *_: None)

def save(step):
    with open(out / f"model_{step}.pkl", "wb", buffering=0) as file:
        file.write(pickle.dumps({"step": step}))
        if how == "is killed" and step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "fails-writing" and step == 2:
            os._exit(1)

save(1)
print("ready to save", flush=True)
signal.sigwait({signal.SIGTERM})
save(2)
while how == "fails-later" and not Path("seen").exists():
    time.sleep(0.01)
sys.exit(1 if how == "fails-later" else 0)
"""

IF_TOLD = 2 if KERNEL_TELLS_EXITS else 1
"""A shell has reaped the program, and may have ended with code 0 whatever that has done."""


@pytest.mark.parametrize(
    ("form", "how", "step"),
    [
        ("true; {}; echo done", "ends", 2),
        ("true; bash -c 'true; {}; echo done'; echo done", "ends", 2),
        ("{} | tee log", "ends", 2),
        ("true; {}; echo done", "fails-later", 2),
        ("true; bash -c 'true; {}; echo done'; echo done", "fails-later", 2),
        ("trap : TERM; {}; echo done", "fails-later", 2),
        ("trap : TERM; {}; echo done", "ends", IF_TOLD),
        ("trap 'kill $!; wait $!; exit 0' TERM; {} & wait", "ends", IF_TOLD),
        ("true; {}; echo done", "fails-writing", 1),
        ("true; {}; echo done", "is killed", 1),
    ],
    ids=[
        "shell",
        "nested shells",
        "tee",
        "that fails",
        "that fails below nested shells",
        "that fails below a trap",
        "trap",
        "trap that passes it on",
        "that fails while it writes",
        "that is killed",
    ],
)
def test_what_a_program_saves_after_its_shell_has_ended_counts(
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    how: str,
    step: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("saves.py").write_text(PROGRAM)
    command = f"{sys.executable} saves.py {shlex.quote(how)}"
    init = {"model_dir": "run", "autorestart": {"max_num_restarts": 1, "standby": "off"}}
    argv = ["bash", "-c", form.format(command)]
    running = start({"trainer": {"init": init, "command": {"argv": argv}}})
    running.wait_for("ready to save")
    running.wait_for_event("checkpoint-committed", step=1)
    running.signal(signal.SIGTERM)
    if how == "fails-later":
        running.wait_for_event("checkpoint-committed", step=2)
        Path("seen").touch()
    result = running.result()
    assert result.code == 75, result.log
    assert Path("out/model_2.pkl").exists()
    assert result.summary["highest_committed_step"] == step, result.log


TRAINER = """
import pickle, time
from pathlib import Path

out = Path("out")
out.mkdir(exist_ok=True)
(out / "model_1.pkl").write_bytes(pickle.dumps("weights") + pickle.dumps("optimizer"))
while not (Path("go").exists() and Path("ready").exists()):
    time.sleep(0.01)
with open(out / "model_2.pkl", "wb", buffering=0) as file:
    file.write(pickle.dumps("weights"))
    print("in the middle of a save", flush=True)
    time.sleep(60)
    file.write(pickle.dumps("optimizer"))
"""
HELPER = """
import signal, sys, time
from pathlib import Path

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
Path("ready").touch()
signal.sigwait({signal.SIGTERM})
time.sleep(2)
sys.exit(int(sys.argv[1]))
"""
RUNS_BOTH = "trap '{trap}' TERM; {python} helper.py {code} & {python} train.py & trainer=$!; wait"


@pytest.mark.parametrize(
    ("trap", "code"),
    [
        ("kill $trainer; wait $trainer; trap - TERM; kill $$", 0),
        ("kill $trainer; wait $trainer; trap - TERM; kill $$", 1),
        ("trap - TERM; kill -- -$$", 0),
        ("kill $trainer; wait $trainer; exit 0", 0),
        ("trap : TERM; kill 0; wait; wait; sleep 2; exit 0", 0),
    ],
    ids=["helper", "helper that fails", "whole group", "exit code 0", "shell that lives on"],
)
def test_a_save_that_a_shell_has_cut_off_does_not_count(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trap: str, code: int
) -> None:
    """It kills the trainer before anybody has seen that as a survivor; a helper or the shell itself
    lives on, and ends with code 0."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TRAINER)
    Path("helper.py").write_text(HELPER)
    script = RUNS_BOTH.format(trap=trap, python=sys.executable, code=code)
    init = {"model_dir": "run", "autorestart": {"max_num_restarts": 1, "standby": "off"}}
    running = start({"trainer": {"init": init, "command": {"argv": ["bash", "-c", script]}}})
    running.wait_for_event("checkpoint-committed", step=1)
    Path("go").touch()
    running.wait_for("in the middle of a save")
    running.signal(signal.SIGTERM)
    result = running.result()
    assert result.code == 75, result.log
    assert result.summary["highest_committed_step"] == 1, result.log
