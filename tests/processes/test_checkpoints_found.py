"""A program whose config names no checkpoint directory: its checkpoints are found all the same."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.running import Running, Start

PROGRAM = """
import os, pickle, shutil, signal, subprocess, sys
from pathlib import Path

way, *options = sys.argv[1:]
folder = Path(options[1] if options[1:] else "nobody/names", "checkpoints", "actor")
step = max((int(each.name) for each in folder.glob("*[0-9]")), default=0)

def commit(step):
    temporary = folder / f"{step}.orbax-checkpoint-tmp"
    temporary.mkdir(parents=True)
    os.mknod(temporary / "commit_success.txt")  # no file is ever open
    temporary.rename(folder / str(step))

match way:
    case "dies-after-each":
        if step < 6:
            commit(step + 1)
            print("step", step + 1, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    case "copies-a-base":
        shutil.copytree("base", folder, dirs_exist_ok=True)
        os.kill(os.getpid(), signal.SIGKILL)
    case "brings-a-base":
        base = Path(options[2], "50000")
        if not base.exists():
            base.mkdir(parents=True)
            os.mknod(base / "commit_success.txt")
        own = [int(each.name) for each in folder.glob("*[0-9]") if each.name != base.name]
        if options[3:] != ["ends"] and max(own, default=0) < 6:
            commit(max(own, default=0) + 1)
            os.kill(os.getpid(), signal.SIGKILL)
    case "makes-a-folder":
        saves = [*map(int, options[0].split(","))]
        runs = len([*Path("runs").glob("*")])
        folder = Path(f"runs/2026-11-29_01-04-{runs:02}/ckpt")
        if runs < len(saves):
            commit(saves[runs])
            os.kill(os.getpid(), signal.SIGKILL)
    case "saves-twice":
        for each in (folder, folder.with_name("critic")):
            (each / "1").mkdir(parents=True)
            os.mknod(each / "1" / "commit_success.txt")
    case "launches":
        subprocess.run([sys.executable, "program.py", "pauses", "--workdir", "deep/er"])
    case "launches-away":
        subprocess.run([sys.executable, "program.py", "goes-away", "--dir", "deep/er"])
    case "goes-away":
        os.makedirs(options[1], exist_ok=True)
        os.chdir(options[1])
        folder = Path("checkpoints")
        if not folder.exists():
            commit(1)
            signal.pause()
    case "pauses" if step == 0:
        commit(1)
        signal.pause()
    case "overwrites":
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "last.pkl").write_bytes(pickle.dumps({}))
        os.kill(os.getpid(), signal.SIGKILL)
    case "is-killed-in-a-save":
        done = max((int(each.stem[5:]) for each in folder.glob("*.pkl")), default=0)
        print("step", done + 1, flush=True)
        if done == 2:
            signal.pause()
        folder.mkdir(parents=True, exist_ok=True)
        save = open(folder / f"ckpt_{done + 2}.pkl", "wb")
        save.write(pickle.dumps({"step": done + 2}))
        save.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    case "closes-a-file" if not Path("nobody/names").exists():
        folder = Path("nobody/names")
        folder.mkdir(parents=True)
        (folder / "ckpt-7.pkl").write_bytes(pickle.dumps({"step": 7}))
        signal.pause()
    case "finishes":
        print("restored from", step)
        commit(step + 1)
    case "waits":
        open("end").read()
        os.kill(os.getpid(), signal.SIGKILL)
"""
MARKED = '{"commit_timestamp_nsecs": 1600000000000000000}'
OLD = 1.6e9
UNPROVEN = "ended before its work was done, as far as is known"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of the jobs."""
    program = tmp_path / "program.py"
    program.write_text(f"#!{sys.executable}\n{PROGRAM}")
    program.chmod(0o755)
    (tmp_path / "train.sh").write_text(f'{sys.executable} program.py "$@"\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def job(*argv: str, model_dir: str = "run", restarts: int = 2) -> dict[str, Any]:
    restart = {"max_num_restarts": restarts, "backoff": {"first": 0.01}, "standby": "off"}
    init = {"model_dir": model_dir, "autorestart": restart}
    return {"trainer": {"init": init, "command": {"argv": [*argv]}}}


@pytest.mark.parametrize(
    ("argv", "folder"),
    [
        ((sys.executable, "program.py", "dies-after-each", "--workdir", "out"), "out"),
        ((sys.executable, "program.py", "dies-after-each"), "nobody/names"),
        (("./program.py", "dies-after-each"), "nobody/names"),
        (("sh", "train.sh", "dies-after-each", "--workdir", "out"), "out"),
        (("sh", "-c", "sh train.sh dies-after-each --workdir out; exit $?"), "out"),
        (("sh", "-c", f"{sys.executable} program.py dies-after-each"), "nobody/names"),
    ],
    ids=["named", "reported", "executable", "wrapped", "in a shell's text", "a shell's program"],
)
def test_a_program_that_progresses_is_restarted_as_often_as_it_takes(
    start: Start, here: Path, argv: tuple[str, ...], folder: str
) -> None:
    result = start(job(*argv)).result()
    assert result.code == 0, result.log
    found = result.event("checkpoints-found")
    assert found["place"] == str(here / folder / "checkpoints" / "actor")
    committed = [each["step"] for each in result.events("checkpoint-committed")]
    ended = [each["newest_committed_step"] for each in result.events("attempt-ended")]
    assert ended == [1, 2, 3, 4, 5, 6, 6]
    assert {*committed} <= {1, 2, 3, 4, 5, 6}
    starts = [each["step"] for each in result.events("attempt-started")]
    assert starts == [None, 1, 2, 3, 4, 5, 6]
    assert result.summary["checkpoint_directory"] == found["place"]
    assert not result.has_event("checkpoints-unseen")


def test_a_file_that_nothing_commits_is_found_once_it_is_closed(start: Start, here: Path) -> None:
    config = job(sys.executable, "program.py", "closes-a-file")
    running = start(config)
    found = running.wait_for_event("checkpoints-found")
    assert found["place"] == str(here / "nobody" / "names")
    running.wait_for_event("checkpoint-committed", step=7)
    running.signal(signal.SIGKILL)
    running.result()
    result = start(config).result()
    assert result.code == 0, result.log
    assert result.event("attempt-started", attempt=2)["step"] == 7


def test_what_nothing_proves_is_named_in_the_warning(start: Start, here: Path) -> None:
    (here / "train.sh").write_text(f'{sys.executable} -I program.py "$@"\n')  # it reports nothing
    config = job("sh", "train.sh", "dies-after-each")
    config["trainer"]["command"]["progress"] = {"pattern": r"step (\d+)"}
    result = start(config).result()
    assert result.code == 76, result.log
    assert not result.has_event("checkpoints-found")
    text = result.event("checkpoints-unseen")["text"]
    folder = here / "nobody" / "names" / "checkpoints" / "actor"
    assert f"committed checkpoints are in {folder} (newest: step " in text
    assert text.endswith(f" (--set trainer.init.checkpoint.directory={folder})")
    assert text.startswith("an attempt has failed, but")


def test_a_job_that_ends_without_a_checkpoint_says_where_was_looked(
    start: Start, here: Path
) -> None:
    result = start(job(sys.executable, "program.py", "overwrites", restarts=1)).result()
    assert result.code == 76, result.log
    assert "no checkpoint was ever seen" in result.event("job-ended")["reason"]
    text = result.event("checkpoints-unseen")["text"]
    assert text.startswith("the restart budget is spent")
    assert f"{here / 'run' / 'checkpoints'}, nor where the program was seen to write" in text
    assert str(here / "nobody" / "names" / "checkpoints" / "actor" / "last.pkl") in text
    assert "overwritten in place" in text
    assert "in the name, such as ckpt-100.pkl (see docs/reference/layouts.md)" in text
    first, second = (each["text"] for each in result.events("attempt-started"))
    assert first.startswith("starting attempt 1 from the beginning (")
    assert second.startswith("starting attempt 2 from the beginning, as far as is seen (")
    where = "--set trainer.init.checkpoint.directory=FOLDER"
    assert where in result.events("advice")[-1]["advice"]


def test_what_an_earlier_attempt_saved_is_named_in_the_warning(start: Start, here: Path) -> None:
    config = job(sys.executable, "program.py", "is-killed-in-a-save")
    config["trainer"]["command"]["progress"] = {"pattern": r"step (\d+)"}
    running = start(config)
    running.wait_for("step 3")
    running.signal(signal.SIGTERM)
    text = running.result().event("checkpoints-unseen")["text"]
    folder = here / "nobody" / "names" / "checkpoints" / "actor"
    assert f"complete checkpoints are in {folder} (newest: step 2)" in text


def test_a_base_model_refills_nothing(start: Start, here: Path) -> None:
    base = here / "base" / "900"
    base.mkdir(parents=True)
    (base / "_CHECKPOINT_METADATA").write_text(MARKED)
    argv = (sys.executable, "program.py", "copies-a-base", "--workdir", "out", "--base", "base")
    result = start(job(*argv)).result()
    assert result.code == 76, result.log
    assert result.attempts == 3
    assert not result.has_event("checkpoints-found")


@pytest.mark.parametrize("base", ["out/pretrained", "out/checkpoints/actor"])
def test_steps_below_a_base_model_that_the_program_brings_are_progress(
    start: Start, here: Path, base: str
) -> None:
    argv = (sys.executable, "program.py", "brings-a-base", "--workdir", "out", base)
    result = start(job(*argv)).result()
    assert result.code == 0, result.log
    assert result.summary["checkpoint_directory"] == str(here / "out" / "checkpoints" / "actor")
    ended = [each["newest_committed_step"] for each in result.events("attempt-ended")]
    assert ended[1:] == [2, 3, 4, 5, 6, 6]


@pytest.mark.parametrize("base", ["out/pretrained", "out/checkpoints/actor"])
def test_a_base_model_proves_no_success(start: Start, base: str) -> None:
    argv = (sys.executable, "program.py", "brings-a-base", "--workdir", "out", base, "ends")
    config = job(*argv, restarts=1)
    config["trainer"]["command"]["success"] = {"step": 100}
    result = start(config).result()
    assert result.code == 76, result.log
    failures = [each["failure"] for each in result.events("attempt-ended")]
    assert [each["cause"] for each in failures] == [UNPROVEN] * 2


def test_a_folder_that_a_child_program_names_and_goes_to_is_found(start: Start, here: Path) -> None:
    running = start(job(sys.executable, "program.py", "launches-away"))
    found = running.wait_for_event("checkpoints-found")
    assert found["place"] == str(here / "deep" / "er" / "checkpoints")
    running.signal(signal.SIGKILL)
    running.result()


def test_a_folder_that_only_a_child_program_names_is_found(start: Start, here: Path) -> None:
    running = start(job(sys.executable, "program.py", "launches"))
    found = running.wait_for_event("checkpoints-found")
    assert found["place"] == str(here / "deep" / "er" / "checkpoints" / "actor")
    running.signal(signal.SIGKILL)
    running.result()


def test_a_second_directory_is_told(start: Start, here: Path) -> None:
    result = start(job(sys.executable, "program.py", "saves-twice", "--workdir", "out")).result()
    assert result.code == 0, result.log
    folder = here / "out" / "checkpoints"
    assert result.event("checkpoints-found")["place"] == str(folder / "actor")
    elsewhere = result.event("checkpoints-elsewhere")
    assert elsewhere["place"] == str(folder / "critic")
    assert elsewhere["text"].endswith("--set trainer.init.checkpoint.directory=FOLDER")


def test_two_jobs_in_one_directory_keep_to_their_own(start: Start, here: Path) -> None:
    os.mkfifo(here / "end")
    waits = job(
        *(sys.executable, "program.py", "waits", "--workdir", "out-b"), model_dir="b", restarts=0
    )
    other = start(waits)
    other.wait_for_event("workers-started")
    ours = start(job(sys.executable, "program.py", "dies-after-each", "--workdir", "out")).result()
    (here / "end").write_text("")  # opens the pipe, so that the other program goes on
    theirs = other.result()
    assert ours.code == 0, ours.log
    assert theirs.code == 76, theirs.err
    assert not theirs.has_event("checkpoints-found")
    assert theirs.event("attempt-ended")["newest_committed_step"] is None


@pytest.mark.parametrize(("saves", "is_told"), [("5,3,2", True), ("5,6,7", False)])
def test_a_program_that_begins_again_in_a_new_folder_is_told_once_what_to_do(
    start: Start, here: Path, saves: str, *, is_told: bool
) -> None:
    """Not so one that restores from its last folder. Nothing is ended for that."""
    result = start(job(sys.executable, "program.py", "makes-a-folder", saves, restarts=3)).result()
    assert result.code == 0, result.log
    assert result.has_event("not-resumed") is is_told
    if is_told:
        told = result.event("not-resumed", attempt=2, step=3, newest_committed_step=5)
        assert told["level"] == "warning"
        first, second = (here / "runs" / f"2026-11-29_01-04-0{n}" / "ckpt" for n in (0, 1))
        assert f"step 3 in {second}, though step 5 is committed in {first}" in told["text"]
        assert "give it a fixed folder" in told["text"]


def test_the_next_supervisor_knows_the_directory(start: Start, here: Path) -> None:
    config = job(sys.executable, "program.py", "pauses", "--workdir", "out")
    running = start(config)
    found = running.wait_for_event("checkpoints-found")["place"]
    running.wait_for_event("checkpoint-committed")
    running.signal(signal.SIGKILL)
    running.result()
    told = subprocess.run(
        [sys.executable, "-m", "supervisor", "status", "run"], capture_output=True, text=True
    )
    assert f"checkpoints: {found} (found" in told.stdout
    result = start(config).result()
    assert result.code == 0, result.log
    assert result.event("attempt-started", attempt=2)["step"] == 1
    assert not result.has_event("checkpoints-found")
    assert result.summary["checkpoint_directory"] == found


def test_a_finished_job_that_is_run_again_goes_on_in_the_directory(
    start: Start, here: Path
) -> None:
    config = job(sys.executable, "program.py", "finishes")
    first = start(config).result()
    assert first.code == 0, first.log
    found = first.event("checkpoints-found")["place"]
    again = start(config).result()
    assert again.code == 0, again.log
    assert again.event("attempt-started", attempt=2)["step"] == 1
    assert again.event("attempt-ended")["newest_committed_step"] == 2
    assert again.summary["checkpoint_directory"] == found
    assert not again.has_event("checkpoints-found")


def test_whether_success_is_seen_is_doubted_until_the_directory_is_found(start: Start) -> None:
    config = job(sys.executable, "program.py", "finishes", restarts=0)
    config["trainer"]["command"]["success"] = {"step": 2}
    told = []
    for code in (76, 0, 0):
        result = start(config).result()
        assert result.code == code, result.log
        told.append(result.has_event("config-doubtful", code="success-unseen"))
    assert told == [True, False, False]


def test_a_directory_in_the_config_wins(start: Start, here: Path) -> None:
    config = job(sys.executable, "program.py", "dies-after-each", "--workdir", "out")
    config["trainer"]["init"]["checkpoint"] = {"directory": "elsewhere"}
    result = start(config).result()
    assert result.code == 76, result.log
    assert not result.has_event("checkpoints-found")


SHARES = """
import os, pickle, re, signal, sys, time
from pathlib import Path

me, last, dies, journal = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
name = f"ckpt_{me}_step_STEP.pkl" if me.startswith("seed") else f"ckpt_step_STEP_{me}.pkl"
out = Path("out")
out.mkdir(exist_ok=True)
steps = [re.search(r"step_([0-9]+)", each.name)[1] for each in out.glob(name.replace("STEP", "*"))]
done = [int(step) for step in steps]
for step in range(max(done, default=0) + 1, last + 1):
    time.sleep(0.1)
    print("step", step, flush=True)
    if step % 5 == 0:
        (out / name.replace("STEP", str(step))).write_bytes(pickle.dumps({"step": step}))
    if step % 5 == 0 and dies:  # go on when the save was seen
        seen = re.compile(f'"kind":"CheckpointCommitted".*"step":{step}')
        until = time.monotonic() + 30.0
        while time.monotonic() < until and not seen.search(Path(journal).read_text()):
            time.sleep(0.05)
    if step == dies or (dies < 0 and step % 5 == 0):
        os.kill(os.getpid(), signal.SIGKILL)
"""

JOURNAL = "a/journal.jsonl"
AHEAD = 1000
"""The step from which the neighbour goes on."""


@pytest.fixture(params=[("seed1", "seed2"), ("lr0.1", "lr0.2")], ids=["before", "after"])
def me(request: pytest.FixtureRequest) -> tuple[str, str]:
    """What stands in the names of a job and its neighbour, before or after the step."""
    both: tuple[str, str] = request.param
    return both


@pytest.fixture
def neighbour(start: Start, here: Path, me: tuple[str, str]) -> Iterator[Running]:
    """A healthy job that saves in the same folder, and is far ahead."""
    (here / "shares.py").write_text(SHARES)
    (here / "out").mkdir()
    name = "ckpt_{}_step_{}.pkl" if me[1].startswith("seed") else "ckpt_step_{1}_{0}.pkl"
    (here / "out" / name.format(me[1], AHEAD)).write_bytes(pickle.dumps({"step": AHEAD}))
    running = start(job(sys.executable, "shares.py", me[1], "3000", "0", "", model_dir="b"))
    running.wait_for_event("checkpoint-committed", step=AHEAD + 5)
    yield running
    running.signal(signal.SIGKILL)
    running.result()


@pytest.mark.parametrize("dies", [3, 7], ids=["before its first save", "after a save"])
def test_another_job_that_saves_in_the_same_folder_is_no_progress(
    start: Start, neighbour: Running, me: tuple[str, str], dies: int
) -> None:
    config = job(sys.executable, "shares.py", me[0], "1000", str(dies), JOURNAL, model_dir="a")
    result = start(config).result()
    assert result.code == 76, result.log
    own = None if dies < 5 else 5
    assert [each["newest_committed_step"] for each in result.events("attempt-ended")] == [own] * 3
    assert [each["step"] for each in result.events("attempt-started")] == [None, own, own]


def test_another_job_that_saves_in_the_same_folder_proves_no_success(
    start: Start, neighbour: Running, me: tuple[str, str]
) -> None:
    config = job(sys.executable, "shares.py", me[0], "12", "0", "", model_dir="a", restarts=0)
    config["trainer"]["command"]["success"] = {"step": 14}
    result = start(config).result()
    assert result.code == 76, result.log
    assert result.event("attempt-ended")["newest_committed_step"] == 10


def test_the_next_supervisor_knows_which_names_count(
    start: Start, neighbour: Running, me: tuple[str, str]
) -> None:
    config = job(sys.executable, "shares.py", me[0], "1000", "0", "", model_dir="a")
    running = start(config)
    running.wait_for_events("checkpoint-committed", 2)  # commits that come close together are one
    running.signal(signal.SIGKILL)
    running.result()
    again = start(config)
    began = again.wait_for_event("attempt-started")
    again.signal(signal.SIGKILL)
    again.result()
    assert 10 <= began["step"] < AHEAD


def test_higher_steps_that_another_job_has_left_in_the_folder_hide_no_progress(
    start: Start, here: Path
) -> None:
    (here / "shares.py").write_text(SHARES)
    (here / "out").mkdir()
    for step in range(5, 200, 5):
        left = here / "out" / f"ckpt_seed2_step_{step}.pkl"
        left.write_bytes(pickle.dumps({"step": step}))
        os.utime(left, (OLD, OLD))
    result = start(
        job(sys.executable, "shares.py", "seed1", "22", "-1", JOURNAL, model_dir="a", restarts=1)
    ).result()
    assert result.code == 0, result.log
    ended = [each["newest_committed_step"] for each in result.events("attempt-ended")]
    assert ended == [5, 10, 15, 20, 20]


EPOCHS = """
import os, pickle, signal, sys, time
from pathlib import Path

begins_anew, dies, pause = sys.argv[1] == "anew", int(sys.argv[2]), float(sys.argv[3])
epochs = sorted(Path("out").glob("epoch_*"))
epoch, done = len(epochs) if begins_anew else max(len(epochs) - 1, 0), 0
if epochs and not begins_anew:
    done = max(int(each.stem[5:]) for each in epochs[-1].glob("*.pkl"))
saves = 0
for number in range(epoch, 2 * dies):
    folder = Path("out", f"epoch_{number}")
    folder.mkdir(parents=True, exist_ok=True)
    for step in range(done + 1, 4):
        print("step", step, flush=True)
        (folder / f"step_{step}.pkl").write_bytes(pickle.dumps({"step": step}))
        time.sleep(pause)
        saves += 1
        if saves == dies:
            os.kill(os.getpid(), signal.SIGKILL)
    done = 0
"""


@pytest.mark.parametrize(
    ("begins", "dies", "pause", "code"),
    [("where it was", 2, 1.0, 0), ("anew", 2, 1.0, 76), ("where it was", 6, 0.6, 0)],
    ids=["within an epoch", "anew", "after two epochs"],
)
def test_steps_that_begin_again_in_the_folder_of_each_epoch(
    start: Start, here: Path, begins: str, dies: int, pause: float, code: int
) -> None:
    (here / "epochs.py").write_text(EPOCHS)
    config = job(sys.executable, "epochs.py", begins, str(dies), str(pause), restarts=2)
    result = start(config).result()
    assert result.code == code, result.log


EPOCHS_IN_NAMES = """
import os, pickle, re, signal, sys, time
from pathlib import Path

name, kept, begins_anew = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "anew"
out = Path(sys.argv[4])
out.mkdir(parents=True, exist_ok=True)

def numbers(path):
    return [int(each) for each in re.findall("[0-9]+", path.stem)]

old = sorted(out.glob("*.pkl"), key=numbers)
epoch, step = numbers(old[-1]) if old and not begins_anew else (0, 0)
saves = 0
while (epoch, step) < (2, 3):
    epoch, step = (epoch, step + 1) if step < 3 else (epoch + 1, 1)
    (out / name.format(epoch, step)).write_bytes(pickle.dumps({"step": step}))
    for each in sorted(out.glob("*.pkl"), key=numbers)[:-kept]:
        each.unlink()
    time.sleep(1.0)
    saves += 1
    if saves == 2:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("folder", "name", "kept"),
    [
        ("run/checkpoints", "epoch_{}_step_{}.pkl", 100),
        ("out", "ep{}-step{}.pkl", 100),
        ("out", "epoch_{}_step_{}.pkl", 1),
    ],
)
def test_steps_that_begin_again_in_the_names_of_each_epoch(
    start: Start, here: Path, folder: str, name: str, kept: int
) -> None:
    (here / "epochs.py").write_text(EPOCHS_IN_NAMES)
    argv = (sys.executable, "epochs.py", name, str(kept), "on", folder)
    result = start(job(*argv, restarts=1)).result()
    assert result.code == 0, result.log
    ended = [each["newest_committed_step"] for each in result.events("attempt-ended")]
    assert ended == [2, 1, 3, 2, 3]
    assert not result.has_event("checkpoints-gone")


def test_a_program_that_begins_anew_makes_no_progress_by_its_epochs(
    start: Start, here: Path
) -> None:
    (here / "epochs.py").write_text(EPOCHS_IN_NAMES)
    argv = (sys.executable, "epochs.py", "epoch_{}_step_{}.pkl", "100", "anew", "out")
    result = start(job(*argv)).result()
    assert result.code == 76, result.log
    assert result.attempts == 3


WORDS_BEHIND = """
import os, pickle, signal, sys, time
from pathlib import Path

done = [int(each.name.split("_")[1]) for each in Path().glob("model_*_best.pkl")]
step = max(done, default=0) + 1
if step < 5:
    Path(f"model_{step}_best.pkl").write_bytes(pickle.dumps({"step": step}))
    time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_word_behind_the_step_in_a_folder_that_others_share(start: Start, here: Path) -> None:
    (here / "best.py").write_text(WORDS_BEHIND)
    result = start(job(sys.executable, "best.py", restarts=1)).result()
    assert result.code == 0, result.log
    ended = [each["newest_committed_step"] for each in result.events("attempt-ended")]
    assert ended == [1, 2, 3, 4, 4]


ODD_FOLDERS = """
import os, pickle, signal, sys, time

out = os.path.join(bytes.fromhex(sys.argv[1]), b"checkpoints")
os.makedirs(out, exist_ok=True)
step = max([int(each[5:-4]) for each in os.listdir(out)], default=0) + 1
if step < 4:
    with open(os.path.join(out, b"step_%d.pkl" % step), "wb") as save:
        pickle.dump({"step": step}, save)
    time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("name", [b"a\nb", b"a\xffb", b"a\x1b[31mb"])
def test_a_folder_whose_name_cannot_be_printed_hides_no_progress(
    start: Start, here: Path, name: bytes
) -> None:
    (here / "odd.py").write_text(ODD_FOLDERS)
    config = job(sys.executable, "odd.py", name.hex(), restarts=1)
    result = start(config).result()
    assert result.code == 0, result.log
    ended = [each["newest_committed_step"] for each in result.events("attempt-ended")]
    assert ended == [1, 2, 3, 3]
    assert result.event("checkpoints-found")["place"].isprintable()
    assert start(config).result().code == 0


@pytest.mark.parametrize("folder", ["run/checkpoints", "out"])
@pytest.mark.parametrize("name", ["ckpt_%Y%m%d%H%M%S.pkl", "ckpt_%s.pkl"])
def test_a_time_in_a_name_is_no_step(start: Start, here: Path, folder: str, name: str) -> None:
    (here / "program.py").write_text(STAMPS)
    result = start(job(sys.executable, "program.py", folder, name)).result()
    assert result.code in (70, 76), result.log
    assert result.attempts <= 3
    assert not result.has_event("checkpoint-committed")


STAMPS = """
import pickle, sys, time
from pathlib import Path

saves = Path(sys.argv[1])
saves.mkdir(parents=True, exist_ok=True)
(saves / time.strftime(sys.argv[2])).write_bytes(pickle.dumps({"step": 1}))
time.sleep(1.1)
raise ConnectionError("the data service does not answer")
"""
