"""`supervise replay`: the bits of the run again, and nothing in model_dir touched."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tests.end_to_end.test_training import config
from tests.forked import forked
from tests.running import Result, Start, eventually, runs

Supervise = Callable[..., Result]


def replay(cache: dict[str, str], *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return forked("replay", *arguments, env={**os.environ, **cache})


PROMPT = "(Pdb) "


class Debugger:
    """`supervise replay --pdb` in a terminal."""

    def __init__(self, cache: dict[str, str], *arguments: str | Path) -> None:
        argv = [sys.executable, "-m", "supervisor", "replay", "--pdb", *map(str, arguments)]
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            os.execve(sys.executable, argv, {**os.environ, **cache})

    def told(self, end: str, typed: bytes = b"") -> str:
        """Returns what is printed after `typed`, until it ends with `end`, or the process has."""
        os.write(self._terminal, typed)
        said = b""
        with suppress(OSError):  # the terminal of a process that has ended
            while not said.endswith(end.encode()) and (byte := os.read(self._terminal, 1)):
                said += byte
        return said.decode(errors="replace")

    def code(self) -> int:
        """Returns the exit code, once it has ended."""
        _, status = os.waitpid(self._pid, 0)
        os.close(self._terminal)
        return os.waitstatus_to_exitcode(status)


def files_in(place: Path) -> dict[Path, tuple[int, int]]:
    found = [path for path in place.rglob("*") if path.is_file()]
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in found}


def test_a_step_is_computed_again_to_the_bit(
    supervise: Supervise, model_dir: Path, cache: dict[str, str]
) -> None:
    killed = config(model_dir, faults=[{"step": 12, "signal": "SIGKILL"}])
    assert supervise(killed, env=cache).code == 0
    before = files_in(model_dir)
    done = replay(cache, model_dir, "--step", "17")
    assert done.returncode == 0, done.stderr
    head, *lines = done.stdout.splitlines()
    assert head == (
        "replays steps 16 to 17 from the checkpoint of step 15, as attempt 2 ran them, on 1 devices"
    )
    assert [line.partition(":")[0] for line in lines[:2]] == ["step 16", "step 17"]
    assert all(line.endswith("(as recorded)") for line in lines[:2])
    assert lines[2].startswith("gradient norms: ")
    done = replay(cache, model_dir, "--step", "1", "--json")
    told = json.loads(done.stdout)
    assert (told["begin"], told["code"], told["told"][0]["step"]) == (0, 0, 1)
    assert files_in(model_dir) == before
    copy = shutil.copytree(model_dir, model_dir.with_name("copy"))
    model_dir.rename(model_dir.with_name("away"))
    done = replay(cache, copy, "--step", "16")
    assert done.stdout.splitlines()[1].endswith("(as recorded)"), "its own checkpoints are used"
    data = max((copy / "checkpoints" / "15").rglob("d/*"), key=lambda file: file.stat().st_size)
    data.write_bytes(data.read_bytes()[:-1] + b"?")
    done = replay(cache, copy, "--step", "16")
    assert done.returncode == 74
    assert "the checkpoint of step 15 is damaged: " in done.stderr
    assert "Traceback" not in done.stderr
    params = next(copy.glob("*/params.yaml"))
    params.unlink()
    os.mkfifo(params)
    done = replay(cache, copy, "--step", "16")
    assert done.returncode == 74
    assert "params.yaml is a FIFO, not a regular file" in done.stderr
    model_dir.with_name("away").rename(model_dir)
    gone = [sys.executable, "-m", "trainer.replay", str(next(model_dir.glob("*/params.yaml")))]
    gone += [str(model_dir / "checkpoints"), "14", "16"]
    done = subprocess.run(
        gone, env={**os.environ, **cache}, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 74
    assert done.stderr.splitlines()[-1].startswith("the checkpoint of step 14 is gone, as a job")
    done = replay(cache, model_dir, "--step", "18")
    assert (done.returncode, done.stdout) == (64, "")
    assert "--step 18: the last step of this job is 17" in done.stderr
    with (model_dir / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"time": 1.5, "phase": "phase1", "att')
    same = replay(cache, model_dir, "--compare", model_dir)
    assert "no difference: all steps up to 17" in same.stdout


@pytest.mark.slow
def test_each_phase_is_computed_again_from_where_it_started(
    supervise: Supervise, model_dir: Path, unoptimised: dict[str, str]
) -> None:
    phase = config(model_dir, max_steps=3)["trainer"]
    job = {"trainer": [{"trainer": {**phase, "name": name}} for name in ("first", "second")]}
    assert supervise(job, env=unoptimised).code == 0
    for attempt in ("1", "2"):
        done = replay(unoptimised, model_dir, "--step", "2", "--attempt", attempt)
        assert done.returncode == 0, done.stderr
        _, *lines = done.stdout.splitlines()
        assert [line.endswith("(as recorded)") for line in lines[:2]] == [True, True], done.stdout


@pytest.mark.slow
def test_a_step_on_completions_is_computed_again_with_the_same_ones(
    supervise: Supervise, model_dir: Path, unoptimised: dict[str, str]
) -> None:
    """From a checkpoint in the middle of a batch, and on into the next one. A device of its own
    makes the completions."""
    job = config(model_dir, 2, max_steps=9)
    prompts = model_dir.with_name("prompts.jsonl")
    prompts.write_text("".join(f'{{"ask": "{n}+{n}="}}\n' for n in range(8)))
    job["trainer"]["init"]["grpo"] = {
        "reward": "tests.training.rewarding:of_ascii",
        "completion_length": 4,
        "group_size": 4,
        "num_iterations": 3,
        "rollout": {"devices": 1},
    }
    fit = job["trainer"]["fit"]
    fit["train_dataloader"] = {"paths": [str(prompts)], "sequence_length": 9, "prompt_field": "ask"}
    del fit["validation"]
    result = supervise(job, env=unoptimised)
    assert result.code == 0, result.log
    (told,) = result.events("rollout-mesh-chosen", attempt=1)
    assert "completions are made on 1 of 2 devices" in told["text"]
    done = replay(unoptimised, model_dir, "--step", "7")
    assert done.returncode == 0, done.stderr
    head, *lines = done.stdout.splitlines()
    assert head.startswith("replays steps 6 to 7 from the checkpoint of step 5")
    assert head.endswith("on 2 devices, of which the last 1 only make completions")
    assert [line.endswith("(as recorded)") for line in lines[:2]] == [True, True], done.stdout
    assert "reward " in lines[1]
    shown, place = lines[-2:]
    assert re.match(r"  sequence \d, loss \S+, reward 0?\.?\d+, .*kl \S+: \d\+\d=", shown), shown
    assert re.search(r"    from .*prompts\.jsonl:\d+$", place), place
    # step 6 takes the completions of step 4, which were made before the checkpoint
    done = replay(unoptimised, model_dir, "--step", "6", "--json")
    (inside,) = [each for each in json.loads(done.stdout)["told"] if "sequences" in each]
    for each in inside["sequences"]:
        number = int(each["text"].partition("+")[0])
        assert each["records"] == [f"{prompts}:{number + 1}"]


@pytest.mark.slow
def test_data_with_a_relative_path_are_found_from_every_folder(
    supervise: Supervise,
    model_dir: Path,
    unoptimised: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job, folder = config(model_dir, max_steps=3), model_dir.with_name("started")
    folder.mkdir()
    (folder / "data.txt").write_text("of this job alone " * 100)
    job["trainer"]["fit"]["train_dataloader"]["paths"] = ["data.txt"]
    monkeypatch.chdir(folder)
    assert supervise(job, env=unoptimised).code == 0
    monkeypatch.chdir("/")
    done = replay(unoptimised, model_dir, "--step", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[2].endswith("(as recorded)")


def workers_of(process: subprocess.Popen[bytes]) -> list[int]:
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(pid) for pid in listed.read_text().split()] if listed.exists() else []


def _has_two(process: subprocess.Popen[bytes]) -> bool:
    return len(workers_of(process)) == 2


def _none_runs(pids: list[int]) -> bool:
    return not any(map(runs, pids))


def test_no_process_of_a_replay_outlives_it_and_none_waits_for_a_dead_one(
    start: Start, model_dir: Path, cache: dict[str, str]
) -> None:
    job = config(model_dir, 2, max_steps=3)
    job["trainer"]["init"]["workers"] = 2
    assert start(job, env=cache).result(120).code == 0
    argv = [sys.executable, "-m", "supervisor", "replay", str(model_dir), "--step", "2"]
    for strikes_the_replay in (True, False):
        replaying = subprocess.Popen(argv, env={**os.environ, **cache}, stderr=subprocess.PIPE)
        assert eventually(partial(_has_two, replaying), 60)
        pids = workers_of(replaying)
        os.kill(replaying.pid if strikes_the_replay else pids[1], signal.SIGKILL)
        _, told = replaying.communicate(timeout=60)
        assert eventually(partial(_none_runs, pids), 60)
    assert replaying.returncode == 70
    assert b"the replay ended with -9" in told


def test_ctrl_c_is_for_the_debugger(
    supervise: Supervise, model_dir: Path, cache: dict[str, str]
) -> None:
    assert supervise(config(model_dir, max_steps=5), env=cache).code == 0
    debugger = Debugger(cache, model_dir, "--step", "3")
    assert "before step 3: " in debugger.told(PROMPT)
    debugger.told("it waits", b"import signal; print('it ' + 'waits'); signal.pause()\n")
    assert "KeyboardInterrupt" in debugger.told(PROMPT, b"\x03")
    then = debugger.told(PROMPT, b"p signal.sigtimedwait([], 2), replay.step\n")
    assert "(None, 2)" in then, then
    assert "Traceback" not in debugger.told("the end is no prompt", b"q\n")
    assert debugger.code() == 0


def test_a_nan_is_found_again_at_the_step_of_the_failure(
    supervise: Supervise, model_dir: Path, cache: dict[str, str]
) -> None:
    wild = config(model_dir)
    wild["trainer"]["init"]["optimizer"] |= {"learning_rate": 1e20}
    result = supervise(wild, env=cache)
    assert result.code == 70, result.log
    done = replay(cache, model_dir)
    assert done.returncode == 0, done.stderr
    assert re.search("gradient_norm (NaN|Inf),", done.stdout)
    assert "the run has no record of this step" in done.stdout


def test_what_cannot_be_run_again_is_told(
    supervise: Supervise, model_dir: Path, cache: dict[str, str]
) -> None:
    from tests.running import command_config

    assert supervise(command_config(model_dir, success={"step": 6})).code == 0
    done = replay(cache, model_dir, "--step", "3")
    assert (done.returncode, done.stdout) == (64, "")
    assert "only steps of our trainer can be run again" in done.stderr
