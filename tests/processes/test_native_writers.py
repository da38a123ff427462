"""Programs whose checkpoints are opened in C++ or Rust, which no audit hook of Python sees: they
are found all the same, and a program that goes further in each attempt goes on."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.running import Start

PROGRAM = """
import ctypes, os, pickle, signal, sys

def write(path, data):
    libc = ctypes.CDLL(None)
    file = libc.creat(path.encode(), 0o644)
    libc.write(file, data, len(data))
    libc.close(file)

way, folder = sys.argv[1:]
if way == "makes":
    os.makedirs(folder, exist_ok=True)
steps = [int(each[6:-4]) for each in os.listdir(folder) if each.startswith("model_")]
step = max(steps, default=0)
if way == "reads":
    open("end").read()
    os.kill(os.getpid(), signal.SIGKILL)
elif step < 6:
    write(f"{folder}/model_{step + 1}.pkl", pickle.dumps({"step": step + 1}))
    signal.pause()
"""
TORCH = """
import os, torch
os.makedirs("out", exist_ok=True)
saved = sorted((each for each in os.listdir("out")), key=lambda name: int(name[6:-3]))
step = torch.load("out/" + saved[-1])["step"] if saved else 0
while step < 6:
    step += 1
    torch.save({"step": step, "net": torch.nn.Linear(8, 1).state_dict()}, f"out/model_{step}.pt")
    PAUSE
"""
TORCH_HERE = """
import glob, torch
saved = sorted(glob.glob("model_*.pt"), key=lambda name: int(name[6:-3]))
step = torch.load(saved[-1])["step"] if saved else 0
while step < 6:
    step += 1
    torch.save({"step": step}, f=f"model_{step}.pt")
    PAUSE
"""
SAFETENSORS = """
import os, numpy
from safetensors.numpy import load_file, save_file
os.makedirs("out", exist_ok=True)
saved = sorted((each for each in os.listdir("out")), key=lambda name: int(name[6:-12]))
step = int(load_file("out/" + saved[-1])["step"][0]) if saved else 0
while step < 6:
    step += 1
    save_file({"step": numpy.array([step])}, f"out/model-{step}.safetensors")
    PAUSE
"""
HDF5_HERE = """
import glob, h5py
saved = sorted(glob.glob("model-*.h5"), key=lambda name: int(name[6:-3]))
step = int(h5py.File(saved[-1])["step"][0]) if saved else 0
while step < 6:
    step += 1
    h5py.File(f"model-{step}.h5", "w").create_dataset("step", data=[step]).file.close()
    PAUSE
"""
PAUSE = """
    import time
    print("saved", step, flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of the jobs."""
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def job(*argv: str, model_dir: str = "run", restarts: int = 2) -> dict[str, Any]:
    restart = {"max_num_restarts": restarts, "backoff": {"first": 0.01}, "standby": "off"}
    init = {"model_dir": model_dir, "autorestart": restart}
    return {"trainer": {"init": init, "command": {"argv": [*argv]}}}


def kill_at_each_step(start: Start, config: dict[str, Any], steps: range) -> None:
    running = start(config)
    for step in steps:
        running.wait_for_event("checkpoint-committed", step=step)
        pid = running.wait_for_event("workers-started", attempt=step)["pids"][0]
        os.kill(pid, 9)
    result = running.result()
    assert result.code == 0, result.log
    started = [each["step"] for each in result.events("attempt-started")]
    assert started == [None, *steps]
    assert not result.has_event("checkpoints-unseen")


def test_what_a_program_saves_in_a_folder_that_it_makes_is_found(start: Start, here: Path) -> None:
    """The folder is there already from the second attempt on."""
    kill_at_each_step(start, job(sys.executable, "program.py", "makes", "out"), range(1, 7))


def test_a_folder_that_is_only_read_is_not_the_jobs(start: Start, here: Path) -> None:
    """Such as a teacher's, whose training goes on."""
    os.mkfifo(here / "end")
    (here / "theirs").mkdir()
    other = start(job(sys.executable, "program.py", "reads", "theirs", restarts=0))
    other.wait_for_event("workers-started")
    (here / "theirs" / "model_1.pkl").write_bytes(b"\x80\x04N.")
    (here / "theirs" / "model_2.pkl").write_bytes(b"\x80\x04N.")
    (here / "end").write_text("")
    result = other.result()
    assert result.code == 76, result.log
    assert not result.has_event("checkpoints-found")


@pytest.mark.slow
@pytest.mark.skipif("LAYOUTS_VENV" not in os.environ, reason="make test-layouts gives it")
@pytest.mark.parametrize("program", [TORCH, TORCH_HERE, SAFETENSORS, HDF5_HERE])
def test_what_the_real_libraries_save_is_found(start: Start, here: Path, program: str) -> None:
    (here / "train.py").write_text(program.replace("    PAUSE\n", PAUSE))
    python = str(Path(os.environ["LAYOUTS_VENV"], "bin", "python"))
    kill_at_each_step(start, job(python, "train.py"), range(1, 7))
