"""`checkpoint.verify`: a program whose newest checkpoint is damaged goes on from the one before."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from supervisor.adapters.stores.journal import FileJournal
from supervisor.adapters.stores.storage import LocalStorage
from supervisor.checkpoints.step_manifest import (
    FOLDER,
    FileRecord,
    StepManifest,
    manifest_file,
    manifest_folder,
    write_manifest,
)
from supervisor.core.events import CheckpointSetAside
from tests.running import Running, Start, eventually

OF_PYTORCH = Path(__file__).parents[1] / "checkpoints" / "golden" / "torch_save" / "ckpt-100.pt"
PROGRAM = """
import hashlib, json, os, signal, sys, time
from pathlib import Path

way, folder = sys.argv[1], Path(sys.argv[2], "checkpoints")
SIZE = 4096

def save(step, state):
    temporary = folder / f"{step}.orbax-checkpoint-tmp"
    (temporary / "default").mkdir(parents=True)
    (temporary / "default" / "data").write_bytes(state)
    (temporary / "_METADATA").write_text("{}")
    committed = json.dumps({"commit_timestamp_nsecs": time.time_ns()})
    (temporary / "_CHECKPOINT_METADATA").write_text(committed)
    temporary.rename(folder / str(step))

def restore():
    step = max((int(each.name) for each in folder.glob("*") if each.name.isdecimal()), default=0)
    if step == 0:
        return 0, bytes(SIZE)
    (folder / str(step) / "_METADATA").read_text()
    state = (folder / str(step) / "default" / "data").read_bytes()
    if len(state) != SIZE:
        raise OSError("the data is cut off")
    return step, state  # a flipped bit is not noticed

def recorded(step):
    for each in range(1, step + 1):
        while not list(Path("run").glob(f"checkpoint_manifests/*/{each}.json")):
            time.sleep(0.01)
    return folder / str(step)

def flip(step):
    data = recorded(step) / "default" / "data"
    content = bytearray(data.read_bytes())
    content[1234] ^= 4
    data.write_bytes(content)

def strike():
    match way:
        case "none":
            return
        case "flip":
            flip(4)
        case "flip-all":
            recorded(4)
            for step in (1, 2, 3, 4):
                flip(step)
        case "cut":
            os.truncate(recorded(4) / "default" / "data", 100)
        case "lose":
            (recorded(4) / "_METADATA").unlink()
        case "empty":
            for each in [*recorded(4).rglob("*")][::-1]:
                each.rmdir() if each.is_dir() else each.unlink()
        case "pause":
            signal.pause()
        case "large":
            os.truncate(folder / "4" / "default" / "data", 1 << 37)
            signal.pause()
    os.kill(os.getpid(), signal.SIGKILL)

step, state = restore()
print("starts after", step, flush=True)
while step < 6:
    step += 1
    state = b"".join(
        hashlib.sha256(state + bytes([step, part])).digest() for part in range(SIZE // 32)
    )
    save(step, state)
    if step == 4 and not os.path.exists("struck"):
        Path("struck").touch()
        strike()
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of the jobs."""
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def job(way: str, folder: str = "run", **checkpoint: object) -> dict[str, Any]:
    """A job whose program is struck once, after step 4 of 6."""
    restart = {
        "max_num_restarts": 1,
        "backoff": {"first": 0.01},
        "standby": "off",
        "grace_period": 0.5,
    }
    init = {
        "model_dir": "run",
        "checkpoint": {"verify": True, **checkpoint},
        "autorestart": restart,
    }
    command = {"argv": [sys.executable, "program.py", way, folder]}
    return {"trainer": {"init": init, "command": command}}


def undisturbed(here: Path) -> bytes:
    """The last state of a run that nothing disturbs."""
    subprocess.run([sys.executable, "program.py", "none", "calm"], check=True, cwd=here)
    return (here / "calm" / "checkpoints" / "6" / "default" / "data").read_bytes()


def set_aside(model_dir: Path) -> list[CheckpointSetAside]:
    """What the journal says of damaged checkpoints."""
    journal = FileJournal(LocalStorage(model_dir))
    turns = journal.all_transitions(journal.peek())
    return [turn.event for turn in turns if isinstance(turn.event, CheckpointSetAside)]


@pytest.mark.parametrize(
    ("way", "reason", "file"),
    [
        ("flip", "does not have the content that was committed", "default/data"),
        ("cut", "has 100 bytes, not 4096", "default/data"),
        ("lose", "is missing", "_METADATA"),
        ("empty", "is missing", "_CHECKPOINT_METADATA"),
    ],
)
def test_a_damaged_checkpoint_is_moved_aside_and_the_bits_are_right(
    start: Start, here: Path, way: str, reason: str, file: str
) -> None:
    result = start(job(way)).result()
    assert result.code == 0, result.log
    told = result.event("checkpoint-damaged")
    assert (told["step"], told["newest_committed_step"], told["level"]) == (4, 3, "warning")
    assert told["reason"].startswith(f"{file} {reason}")
    assert file in told["files"]
    moved = here / "run" / "damaged_checkpoints" / "4-1.damaged"
    assert told["place"] == str(moved)
    assert moved.is_dir()
    assert f"{here}/run/checkpoints/4" in moved.with_name("4-1.damaged.txt").read_text()
    assert [each.step for each in set_aside(result.model_dir)] == [4]
    status = subprocess.run(
        [sys.executable, "-m", "supervisor", "status", "run"], capture_output=True, text=True
    )
    assert "1 damaged checkpoint moved aside" in status.stdout
    assert result.event("checkpoint-verified")["step"] == 3
    assert b"starts after 3" in result.rank_log(2)
    final = (here / "run" / "checkpoints" / "6" / "default" / "data").read_bytes()
    assert final == undisturbed(here)


def test_without_the_key_the_flipped_bit_spreads(start: Start, here: Path) -> None:
    """What the other tests find is there to be found."""
    config = job("flip")
    folder = here / "run" / FOLDER / "x"
    folder.mkdir(parents=True)
    for step in (1, 2, 3, 4):
        (folder / f"{step}.json").touch()  # the program waits for that
    config["trainer"]["init"]["checkpoint"] = {}
    result = start(config).result()
    assert result.code == 0, result.log
    final = (here / "run" / "checkpoints" / "6" / "default" / "data").read_bytes()
    assert final != undisturbed(here)


def test_if_all_are_damaged_only_a_person_may_begin_from_step_0(start: Start, here: Path) -> None:
    result = start(job("flip-all")).result()
    assert result.code == 70, result.log
    failed = result.event("launch-failed")["failure"]
    assert failed["cause"] == "every checkpoint is damaged"
    assert failed["rule"] == "no-usable-checkpoint"
    assert failed["root_cause"].startswith(
        "steps 4, 3, 2, 1; of step 4, default/data does not have"
    )
    again = start(job("flip-all")).result()
    assert again.code == 70, "to run the command again decides nothing"
    checkpoints = here / "run" / "checkpoints"
    assert sorted(path.name for path in checkpoints.iterdir()) == ["1", "2", "3", "4"]
    checkpoints.rename(here / "damaged")
    checkpoints.mkdir()
    last = start(job("flip-all")).result()
    assert last.code == 0, last.log
    assert b"starts after 0" in last.rank_log(4)


def test_while_the_disk_of_the_checkpoints_is_away_nothing_starts(start: Start, here: Path) -> None:
    """The steps are links to it, as people make them where the first disk is full."""
    running = start(job("pause"))
    assert eventually(lambda: list((here / "run").glob(f"{FOLDER}/*/4.json")))
    running.signal(signal.SIGTERM)
    assert running.result().code == 75
    disk, away = here / "disk", here / "away"
    disk.mkdir()
    for step in [*(here / "run" / "checkpoints").iterdir()]:
        shutil.move(step, disk / step.name)
        step.symlink_to(disk / step.name)
    disk.rename(away)
    again = start(job("pause"))
    failed = again.wait_for_event("launch-failed")["failure"]
    assert (failed["verdict"], failed["remedy"]) == ("RESTART", "wait-for-storage")
    assert failed["root_cause"] == "step 4: its link leads nowhere"
    away.rename(disk)
    result = again.result()
    assert result.code == 0, result.log
    assert result.event("checkpoint-verified")["step"] == 4
    assert not (here / "run" / "damaged_checkpoints").exists()


def test_where_manifests_cannot_be_written_it_is_told_once(start: Start, here: Path) -> None:
    (here / "run").mkdir()
    (here / "run" / FOLDER).write_text("a file is in the way")
    running = start(job("pause"))
    told = running.wait_for_event("manifest-not-written")
    assert "no manifests are made now" in told["reason"]
    assert eventually((here / "struck").exists)
    (worker,) = running.wait_for_event("workers-started")["pids"]
    os.kill(worker, signal.SIGKILL)
    result = running.result()
    assert result.code == 0, result.log
    unverified = result.event("checkpoint-unverified")
    assert (unverified["step"], unverified["reason"]) == (4, "it has no manifest")
    assert b"starts after 4" in result.rank_log(2)
    reasons = [each["reason"] for each in result.events("manifest-not-written")]
    assert len(reasons) == len(set(reasons))


def keeper(running: Running) -> psutil.Process | None:
    """The process that keeps the manifests; None: it does not live (yet)."""
    for each in psutil.Process(running.process.pid).children(recursive=True):
        try:
            if any("manifest_keeper" in word for word in each.cmdline()):
                return each
        except psutil.NoSuchProcess:
            continue
    return None


def reads(process: psutil.Process | None, path: Path) -> bool:
    try:
        return process is not None and str(path) in {each.path for each in process.open_files()}
    except psutil.NoSuchProcess:
        return False


def test_kill_9_of_the_supervisor_while_a_checkpoint_is_read(start: Start, here: Path) -> None:
    """That nothing is left is the fixture's to see."""
    data = here / "run" / "checkpoints" / "4" / "default" / "data"
    running = start(job("large"))
    assert eventually(lambda: reads(keeper(running), data))
    found = keeper(running)
    assert found is not None
    assert os.sched_getscheduler(found.pid) == os.SCHED_IDLE
    running.signal(signal.SIGKILL)
    running.result()
    assert eventually(lambda: not found.is_running())
    os.truncate(data, 4096)
    result = start(job("large")).result()
    assert result.code == 0, result.log
    assert not result.has_event("checkpoint-damaged")
    assert result.event("checkpoint-unverified")["step"] == 4
    assert b"starts after 4" in result.rank_log(2)


@pytest.mark.slow  # the keeper waits for an idle CPU, and for the next periodic look
def test_a_keeper_that_is_killed_is_replaced(start: Start, here: Path) -> None:
    running = start(job("pause"))
    assert eventually(lambda: keeper(running) is not None)
    first = keeper(running)
    assert first is not None
    first.kill()
    manifest = f"{FOLDER}/*/4.json"
    assert eventually(lambda: (later := keeper(running)) is not None and later.pid != first.pid)
    assert eventually(lambda: list((here / "run").glob(manifest)))
    (worker,) = running.wait_for_event("workers-started")["pids"]
    os.kill(worker, signal.SIGKILL)
    result = running.result()
    assert result.code == 0, result.log
    assert result.event("checkpoint-verified")["step"] == 4


def test_a_long_check_does_not_keep_the_supervisor_from_stopping(start: Start, here: Path) -> None:
    directory = here / "run" / "checkpoints"
    step = directory / "4"
    step.mkdir(parents=True)
    (step / "commit_success.txt").touch()
    data = step / "data"
    data.touch()
    os.truncate(data, 1 << 37)
    files = {
        "data": FileRecord(1 << 37, 1, 1, 1, "0" * 64),
        "commit_success.txt": FileRecord(0, 2, 2, 2, ""),
    }
    place = manifest_file(manifest_folder(here / "run", directory), "4")
    write_manifest(place, StepManifest("4", None, 3, files), below=here / "run")
    config = job("none")
    config["trainer"]["init"]["autorestart"]["grace_period"] = 600.0
    running = start(config)
    running.wait_for_event("attempt-started")
    assert eventually(lambda: reads(psutil.Process(running.process.pid), data))
    running.signal(signal.SIGTERM)
    result = running.result()  # at once: what is not started needs no grace period
    assert result.code == 75, result.log
    assert not result.has_event("workers-started")
    assert step.is_dir()


def test_a_directory_that_is_found_is_verified_too(start: Start, here: Path) -> None:
    """It takes a while: the manifests begin at the next periodic look after the find."""
    result = start(job("flip", "elsewhere")).result()
    assert result.code == 0, result.log
    assert result.event("checkpoints-found")["place"] == str(here / "elsewhere" / "checkpoints")
    assert result.event("checkpoint-damaged")["step"] == 4
    final = (here / "elsewhere" / "checkpoints" / "6" / "default" / "data").read_bytes()
    assert final == undisturbed(here)


def test_a_checkpoint_that_nothing_commits_is_told_as_unverified(start: Start, here: Path) -> None:
    """It is neither read nor moved."""
    (here / "run" / "checkpoints").mkdir(parents=True)
    config = job("none")
    config["trainer"]["command"] = ["true"]
    shutil.copy(OF_PYTORCH, here / "run" / "checkpoints")
    result = start(config).result()
    assert result.code == 0, result.log
    told = result.event("checkpoint-unverified")
    assert told["step"] == 100
    assert "no marker and no rename commits" in told["reason"]


def test_validate_says_what_will_be_done(here: Path) -> None:
    (here / "trainer.yaml").write_text(yaml.safe_dump(job("none")))
    told = subprocess.run(
        [sys.executable, "-m", "supervisor", "validate", "trainer.yaml"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "      verify: true\n" in told.stdout
    assert "# checkpoint.verify: before each launch" in told.stdout
