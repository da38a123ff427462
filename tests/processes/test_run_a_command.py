"""`supervise run -- COMMAND`: a job without a config, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.forked import forked
from tests.running import JSON, Result, Running, leaving_nothing

SCRIPT = """\
import os, pathlib, signal, sys

saves, what = pathlib.Path(sys.argv[1]), sys.argv[2]
step = max((int(done.parent.name) for done in saves.glob("*/commit_success.txt")), default=0)
print("begins at", step)
while step < 6:
    step += 1
    (saves / str(step)).mkdir(parents=True)
    (saves / str(step) / "commit_success.txt").touch()
    if step == 3 and not os.path.exists("struck"):
        open("struck", "w").close()
        if what == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "waits":
            print("waits", flush=True)
            signal.pause()
        raise SystemExit(5)
print(f"words {sys.argv[3:]}")
"""
COMMAND = ("--", sys.executable, "train.py", "{model_dir}/checkpoints")
Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Runs `supervise run` in `tmp_path`, which has the script, until it ends."""
    (tmp_path / "train.py").write_text(SCRIPT)

    def run(*words: str) -> Result:
        done = forked("run", *JSON, *words, env={**os.environ, **mark}, cwd=tmp_path)
        (*_, place) = sorted((tmp_path / "runs").glob("*")) or [tmp_path / "run"]
        return Result(done.returncode, done.stdout, done.stderr, place)

    with leaving_nothing() as mark:
        yield run


def test_a_killed_program_goes_on_in_the_directory_that_is_told(run: Run, tmp_path: Path) -> None:
    done = run(*COMMAND, "killed", '{"a": {"b": 1}}', "{x}")
    assert done.code == 0, done.err
    (place,) = (tmp_path / "runs").iterdir()
    assert place.name.startswith("train-")
    told = done.event("defaults-chosen", max_num_restarts=3)
    assert told["place"] == str(place)
    assert [each["step"] for each in done.events("attempt-started")] == [None, 3]
    assert "words ['{\"a\": {\"b\": 1}}', '{x}']\n" in done.out


def test_the_same_command_goes_on_and_another_argument_begins_anew(
    run: Run, tmp_path: Path
) -> None:
    first = run("--max-restarts", "0", *COMMAND, "fails")
    assert first.code == 76
    told = first.event("defaults-chosen")
    assert told["max_num_restarts"] is None
    second = run("--max-restarts", "0", *COMMAND, "fails")
    assert second.code == 0, second.err
    assert second.event("defaults-chosen")["place"] == told["place"]
    assert second.event("attempt-started")["step"] == 3
    third = run(*COMMAND, "other")
    assert third.code == 0, third.err
    assert third.event("attempt-started")["step"] is None
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_a_killed_supervisor_is_followed_by_the_same_command(run: Run, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "supervisor", "run", *JSON, *COMMAND, "waits"]
    with (
        leaving_nothing() as mark,
        subprocess.Popen(
            command, cwd=tmp_path, env={**os.environ, **mark}, stdout=subprocess.PIPE
        ) as process,
    ):
        first = Running(process, tmp_path)
        first.wait_for("waits\n")
        process.kill()
    done = run(*COMMAND, "waits")
    assert done.code == 0, done.err
    assert done.has_event("supervisor-lost", attempt=1)
    assert done.event("attempt-started")["step"] == 3
    assert len(list((tmp_path / "runs").iterdir())) == 1


def test_the_options_are_used(run: Run, tmp_path: Path) -> None:
    (tmp_path / "struck").touch()
    options = ("--model-dir", "run", "--max-restarts", "1", "--devices", "cpu:2")
    done = run(*options, "--success-step", "7", "--set", "trainer.command.env.A=b", *COMMAND, "x")
    assert done.code == 76  # it never gets to step 7
    assert not done.has_event("defaults-chosen")
    assert done.event("phase-began")["max_num_restarts"] == 1
    (params,) = (tmp_path / "run").glob("*/params.yaml")
    trainer = yaml.safe_load(params.read_text())["trainer"]
    devices = trainer["init"]["devices"]
    assert (devices["platform"], devices["count"]) == ("cpu", 2)
    assert trainer["command"]["success"]["step"] == 7
    assert trainer["command"]["env"]["A"] == "b"


LEAVES_A_PROCESS = """\
import subprocess, time
for step in range(1, 31):
    print("step", step, flush=True)
    time.sleep(0.02)
subprocess.Popen(["setsid", "sleep", "3600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
"""


def test_who_follows_the_advice_about_what_is_left_over_succeeds(run: Run, tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text(LEAVES_A_PROCESS)
    command = ("--", sys.executable, "leaves.py")
    failure = run("--max-restarts", "0", *command).summary["attempts"][-1]["failure"]
    assert failure["rule"] == "background"
    by_step = ("--success-step", "30", "--set", r"trainer.command.progress.pattern=step (\d+)")
    by_line = ("--set", "trainer.command.success.pattern=step 30")
    for place, options in (("by_step", by_step), ("by_line", by_line)):
        named = [each.partition("=")[0] for each in options if each[0] in "-t"]
        assert all(option in failure["advice"] for option in named)
        done = run("--model-dir", place, *options, *command)
        assert done.code == 0, done.err


def test_the_saved_config_is_the_same_job(run: Run, tmp_path: Path) -> None:
    words = (*COMMAND, "fails", '{"a": {"b": 1}}')
    options = ("--max-restarts", "0", "--set", "trainer.command.env.A=b")
    saved = forked("run", *options, "--save-config", "c.yaml", *words, cwd=tmp_path)
    assert (saved.returncode, saved.stderr) == (0, "")
    assert "supervise run c.yaml" in saved.stdout
    assert "note: command.progress is not set: " in saved.stdout
    assert not (tmp_path / "runs").exists(), "nothing was started"
    assert forked("validate", "c.yaml", cwd=tmp_path).returncode == 0
    assert run(*options, *words).code == 76
    done = run("c.yaml")
    assert done.code == 0, done.err
    assert done.event("attempt-started")["step"] == 3
    assert not done.has_event("config-changed")
    assert not done.has_event("defaults-chosen")
    assert 'words [\'{"a": {"b": 1}}\']\n' in done.out


def test_the_examples_in_a_saved_config_belong_to_the_command(run: Run, tmp_path: Path) -> None:
    options = ("--set", "trainer.name=first", "--save-config", "c.yaml")
    assert forked("run", *options, *COMMAND, cwd=tmp_path).returncode == 0
    config = tmp_path / "c.yaml"
    config.write_text(config.read_text().replace("# success: ", "success: "))
    trainer = yaml.safe_load(config.read_text())["trainer"]
    assert trainer["name"] == "first"
    assert trainer["command"]["success"] == {"step": 1000}


def test_a_config_is_never_overwritten(run: Run, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("mine")
    saved = forked("run", "--save-config", "c.yaml", *COMMAND, cwd=tmp_path)
    assert saved.returncode == 64
    assert "c.yaml exists, and is not overwritten" in saved.stderr
    assert (tmp_path / "c.yaml").read_text() == "mine"
    saved = forked("run", "--save-config", "no/c.yaml", *COMMAND, cwd=tmp_path)
    assert saved.returncode == 74
    assert "no/c.yaml cannot be written: No such file or directory" in saved.stderr


def test_a_secret_in_a_saved_config_is_told_and_kept_private(run: Run, tmp_path: Path) -> None:
    words = (*COMMAND, "--token", "hf_abcdefghijklmnopqrstuvwxyz012345")
    saved = forked("run", "--save-config", "c.yaml", *words, cwd=tmp_path)
    assert saved.returncode == 0
    assert "c.yaml holds what looks like a secret" in saved.stdout
    assert (tmp_path / "c.yaml").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ([], 64, "give a config, or -- and a command: supervise run -- python train.py"),
        (["--"], 64, "there is no command behind --"),
        (["c.yaml", "--", "python", "x.py"], 64, "give a config (c.yaml) or a command behind --, "),
        (["python", "train.py"], 64, "write -- before it: supervise run -- python ..."),
        (["python", "train.py", "--lr", "1"], 64, "arguments: --lr 1; to run a command, write --"),
        (
            ["--config", "c.yaml"],
            64,
            "--config; the config stands without an option: supervise run c.yaml\n",
        ),
        (["--config=c.yaml"], 64, "without an option: supervise run c.yaml\n"),
        (["--config"], 64, "without an option: supervise run trainer.yaml\n"),
        (["python", "x.py", "--config", "c"], 64, "write -- before it: supervise run -- python"),
        (["train.py", "--out", "x"], 64, "-- before it: supervise run -- python train.py ..."),
        (["train.py"], 64, "is a program, not a config: supervise run -- python train.py"),
        (["--model-dir", "x", "c.yaml"], 64, "write --set 'trainer.init.model_dir=...'"),
        (["--save-config", "x", "c.yaml"], 64, "--save-config is for a command"),
        (["--devices", "8", "--", "python"], 64, "--devices: '8' is none of cpu:4 (simulated), "),
        (["--max-restarts", "-1", "--", "a"], 64, "--max-restarts: '-1' is not a whole number"),
        (["--success-step", "0", "--", "a"], 78, "supervise: --success-step: input should be"),
        (["--", "python", "gone.py"], 78, "supervise: the command: no such file: gone.py; a rel"),
        (["--", "./{x}"], 78, "no such file: ./{x};"),
        (["--", "STEPS=6", "python"], 78, "as in env STEPS=6 PROGRAM"),
        (["--", "no-such-program"], 78, "the command: no such program in PATH: no-such-program"),
        (["--save-config", "", "--", "true"], 64, "--save-config: the name of the file is empty"),
        (["--model-dir", "train.py", "--", "true"], 78, "supervise: --model-dir: cannot be writ"),
    ],
)
def test_a_wrong_command_line_is_told_in_words(
    run: Run, words: list[str], code: int, told: str, tmp_path: Path
) -> None:
    done = forked("run", *words, cwd=tmp_path)
    assert done.returncode == code
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["train.py"], "it left something behind"


def test_braces_in_the_name_of_a_script_are_no_placeholder(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a{x}.py").write_text("print('runs')")
    done = run("--", sys.executable, "a{x}.py")
    assert done.code == 0, done.err
    assert done.rank_log(1) == b"runs\n"
    told = forked("run", "--", sys.executable, "no{x}.py", cwd=tmp_path)
    assert told.returncode == 78
    assert "no such file: no{x}.py;" in told.stderr


def test_validate_tells_how_the_config_is_named(tmp_path: Path) -> None:
    done = forked("validate", "--config=c.yaml", cwd=tmp_path)
    assert done.returncode == 64
    told = "the config stands without an option: supervise validate c.yaml\n"
    assert done.stderr.endswith(f"arguments are required: trainer.yaml; {told}")


def test_a_config_and_an_unknown_option_get_no_hint_about_commands(tmp_path: Path) -> None:
    done = forked("run", "c.yaml", "--onec", "x", cwd=tmp_path)
    assert done.returncode == 64
    assert "to run a command" not in done.stderr


@pytest.mark.parametrize("words", [(), ("--model-dir", "/tmp/somewhere")])
def test_a_working_directory_that_was_removed_is_told(words: tuple[str, ...]) -> None:
    script = 'cd "$(mktemp -d)" && rmdir "$PWD" && exec "$@"'
    command = (sys.executable, "-P", "-m", "supervisor", "run", *words, "--", "python", "-c", "1")
    done = subprocess.run(("bash", "-c", script, "-", *command), capture_output=True, text=True)
    assert done.returncode == 64
    assert done.stderr.startswith("supervise: no working directory (No such file or directory)")
    assert done.stderr.count("\n") == 1


def test_sigchld_that_is_ignored_breaks_no_job(model_dir: Path) -> None:
    """Who starts a command may have it ignore SIGCHLD: then the kernel keeps no exit codes."""
    done = subprocess.run(
        [sys.executable, "-m", "supervisor", "run", "--model-dir", model_dir, "--", "/bin/true"],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
    )
    assert (done.returncode, done.stderr) == (0, "")


HELPER_RAISES = """\
import multiprocessing

def load():
    raise ValueError("corrupt record 4711 in shard-00003.rec")

if __name__ == "__main__":
    helper = multiprocessing.get_context("spawn").Process(target=load)
    helper.start()
    helper.join()
    raise RuntimeError(f"worker {helper.pid} exited unexpectedly with exit code {helper.exitcode}")
"""


def test_what_a_helper_raised_is_the_root_cause(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HELPER_RAISES)
    done = run("--max-restarts", "0", "--", sys.executable, "train.py")
    assert done.code == 70, done.err
    assert "root cause: ValueError: corrupt record 4711 in shard-00003.rec" in done.err
