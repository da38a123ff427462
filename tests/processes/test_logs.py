"""`supervise logs`: what a worker has printed, of any attempt and rank, and while it prints."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from supervisor.adapters.processes.output import OutputFile
from supervisor.cli.main import main
from tests.forked import forked
from tests.running import PATIENCE, Result, Start, command_config

SAYS_AND_DIES = """
import os, pathlib, signal, sys
attempt, go_on = sys.argv[1], pathlib.Path(sys.argv[2])
print("attempt", attempt, "says \\N{SNOWMAN}", flush=True)
if attempt == "1":
    while not go_on.exists():
        signal.sigtimedwait([], 0.01)
    print("and dies", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""

Supervise = Callable[..., Result]


def job(model_dir: Path, go_on: Path) -> dict[str, Any]:
    config = command_config(model_dir)
    argv = [sys.executable, "-c", SAYS_AND_DIES, "{attempt}", str(go_on)]
    config["trainer"]["command"] = {"argv": argv}
    return config


@pytest.fixture
def done(supervise: Supervise, model_dir: Path) -> Path:
    """The model_dir of a job with two attempts."""
    (go_on := model_dir.with_name("go on")).touch()
    assert supervise(job(model_dir, go_on)).code == 0
    return model_dir


def test_the_newest_attempt_is_printed_or_the_one_that_is_named(done: Path) -> None:
    assert forked("logs", done).stdout == "attempt 2 says \N{SNOWMAN}\n"
    assert forked("logs", done, "--attempt", "1").stdout.endswith("\nand dies\n")
    assert forked("logs", "-f", done).stdout == "attempt 2 says \N{SNOWMAN}\n", "it has ended"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rank", "7"], "attempt 2 has no output of rank 7, only of rank 0"),
        (["--attempt", "9"], "attempt 9 has no folder, only attempts 1 to 2"),
        (["--grep", "step (\\d"], "supervise: --grep: 'step (\\\\d' is not a regular expression: "),
        (["--attempt", "x"], "argument --attempt: invalid int value: 'x'"),
    ],
)
def test_what_is_not_there_is_told_with_what_is(
    done: Path, options: list[str], message: str
) -> None:
    told = forked("logs", done, *options)
    assert told.returncode == 64
    assert message in told.stderr


def test_a_folder_without_a_job_is_told(tmp_path: Path) -> None:
    told = forked("logs", tmp_path)
    assert told.returncode == 64
    assert f"{tmp_path} has no attempt of a job" in told.stderr


def test_it_follows_a_job_over_its_attempts_until_it_ends(
    start: Start, model_dir: Path, tmp_path: Path
) -> None:
    go_on = tmp_path / "go on"
    running = start(job(model_dir, go_on))
    running.wait_for("attempt 1 says")
    following = subprocess.Popen(
        [sys.executable, "-m", "supervisor", "logs", "--follow", str(model_dir)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert following.stdout is not None
    assert following.stdout.readline() == "attempt 1 says \N{SNOWMAN}\n"
    go_on.touch()
    assert running.result().code == 0
    out, err = following.communicate(timeout=PATIENCE)
    assert following.returncode == 0
    assert out == "and dies\nattempt 2 says \N{SNOWMAN}\n"
    assert err == "--- attempt 2\n"


@pytest.mark.parametrize(
    ("text", "pattern", "found"),
    [
        ("step 1\nloss 2\nstep 3\n", r"^step \d", "step 1\nstep 3\n"),
        ("loss 2\nstep", "step", "step\n"),
        ("step" + "x" * (1 << 17), "step", "x\n"),
        ("nothing\n", "step", ""),
    ],
    ids=["some", "unfinished", "long", "none"],
)
def test_only_matching_lines_are_printed(
    text: str, pattern: str, found: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "20260101_000000_restartable" / "attempts" / "0001"
    folder.mkdir(parents=True)
    (folder / "rank0.log").write_text(text)
    assert main(["logs", str(tmp_path), "--grep", pattern]) == 0
    assert capsys.readouterr().out.endswith(found)


def test_a_pattern_that_takes_too_long_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "20260101_000000_restartable" / "attempts" / "0001"
    folder.mkdir(parents=True)
    (folder / "rank0.log").write_text("a" * 60)
    assert main(["logs", str(tmp_path), "--grep", "(?:a|aa)+b"]) == 64
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "takes too long" in err


def test_it_follows_what_matches(start: Start, model_dir: Path, tmp_path: Path) -> None:
    go_on = tmp_path / "go on"
    running = start(job(model_dir, go_on))
    running.wait_for("attempt 1 says")
    following = subprocess.Popen(
        [sys.executable, "-m", "supervisor", "logs", "-f", "--grep", "says|^and", str(model_dir)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert following.stdout is not None
    assert following.stdout.readline() == "attempt 1 says \N{SNOWMAN}\n"
    go_on.touch()
    assert running.result().code == 0
    out, _ = following.communicate(timeout=PATIENCE)
    assert out == "and dies\nattempt 2 says \N{SNOWMAN}\n"


def test_all_parts_of_a_long_output_are_printed_in_their_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "20260101_000000_restartable" / "attempts" / "0001"
    folder.mkdir(parents=True)
    output = OutputFile(folder / "rank3.log", print, limit=4000)
    for number in range(1000):
        output.write(b"line %d \xff\n" % number)
    output.close()
    assert main(["logs", str(tmp_path), "--rank", "3"]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("line")]
    numbers = [int(line.split()[1]) for line in said]
    assert numbers[0] == 0
    assert numbers[-1] == 999
    assert numbers == sorted(set(numbers))
    assert said[0] == "line 0 \N{REPLACEMENT CHARACTER}"


def test_a_reader_that_has_read_enough_is_no_error(done: Path) -> None:
    command = f"{sys.executable} -m supervisor logs '{done}' --attempt 1 | head -c 1"
    told = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert (told.returncode, told.stdout, told.stderr) == (0, "a", "")
