"""Stopping a job, running its command again, and who may run it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from supervisor.history.writer import writer
from tests.forked import forked
from tests.running import TEXT, Result, Running, Start, command_config

Supervise = Callable[..., Result]


def waiting(start: Start, model_dir: Path, kind: str, said: str, **restart: Any) -> Running:
    """A supervised toy that has arrived where it waits for a signal."""
    config = command_config(model_dir, kind, "--once", restart=restart, success={"step": 500})
    running = start(config)
    running.wait_for(said)
    return running


@pytest.mark.parametrize(
    ("number", "code", "who", "detail", "reason"),
    [
        (signal.SIGTERM, 75, "SIGTERM", "", "told to stop (SIGTERM)"),
        (signal.SIGINT, 79, "PERSON", "SIGINT", "stopped by a person"),
        (signal.SIGHUP, 75, "SIGHUP", "", "told to stop (SIGHUP)"),
    ],
)
def test_a_stop_lets_the_trainer_save(
    start: Start,
    supervise: Supervise,
    model_dir: Path,
    number: signal.Signals,
    code: int,
    who: str,
    detail: str,
    reason: str,
) -> None:
    running = waiting(start, model_dir, "save-on-sigterm", "ready to save")
    running.signal(number)
    result = running.result()
    assert result.code == code
    assert result.has_event("stop-requested", code=who, detail=detail)
    assert result.has_event("workers-told-to-stop", reason=reason)
    assert result.summary["attempts"][0]["status"] == "DRAINED"
    assert result.summary["highest_committed_step"] == 300
    config = command_config(model_dir, "none", "--steps", "302", success={"step": 302})
    again = supervise(config)
    assert again.code == 0
    assert b"starts after step 300" in again.rank_log(2)
    assert again.has_event("job-resumed", attempts=1, restarts=0, max_num_restarts=1)


def test_a_signal_that_asks_for_nothing_is_told_and_the_job_goes_on(
    start: Start, model_dir: Path, tmp_path: Path
) -> None:
    """As the warning of a batch system. The program finds the default action of each."""
    idle = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGRTMIN, signal.SIGRTMIN + 1)
    config = command_config(model_dir, "wait", success={"exit_code": 0})
    program = (
        "import signal, sys\n"
        f"assert all(signal.getsignal(each) is signal.SIG_DFL for each in {(*map(int, idle),)})\n"
        "print('waits', flush=True)\n"
        f"open({str(tmp_path / 'end')!r}).read()"
    )
    config["trainer"]["command"]["argv"] = [sys.executable, "-I", "-c", program]
    os.mkfifo(tmp_path / "end")
    running = start(config)
    running.wait_for("waits")
    for number in (*idle, *idle):
        running.process.send_signal(number)
    names = ("SIGUSR1", "SIGUSR2", "SIGALRM", "SIGRTMIN", "SIGRTMIN+1")
    for name in names:
        running.wait_for_event("signal-ignored", signal=name)
    (tmp_path / "end").write_text("")
    result = running.result()
    assert result.code == 0, result.log
    assert sorted(each["signal"] for each in result.events("signal-ignored")) == sorted(names)


SAVES_ON_CTRL_C = """
import pathlib, sys, time
try:
    print("ready to save", flush=True)
    while True:
        time.sleep(3600)
except KeyboardInterrupt:
    pathlib.Path(sys.argv[1], "saved").write_text("all")
"""


@pytest.mark.parametrize(("number", "saves"), [(signal.SIGINT, True), (signal.SIGTERM, False)])
def test_ctrl_c_reaches_a_program_that_saves_on_keyboard_interrupt(
    start: Start, model_dir: Path, number: signal.Signals, saves: bool
) -> None:
    config = command_config(model_dir)
    config["trainer"]["command"] = [sys.executable, "-c", SAVES_ON_CTRL_C, "{model_dir}"]
    running = start(config)
    running.wait_for("ready to save")
    running.signal(number)
    result = running.result()
    assert result.code == (79 if saves else 75)
    assert result.has_event("sigterm-reaction", reason="interrupt" if saves else "default")
    assert (model_dir / "saved").exists() == saves


def test_a_deaf_trainer_is_killed_after_the_grace_period(start: Start, model_dir: Path) -> None:
    running = waiting(start, model_dir, "ignore-sigterm", "deaf", grace_period=0.2)
    running.signal(signal.SIGTERM)
    result = running.result()
    assert result.code == 75
    assert result.has_event("workers-killed", reason="the grace period is over")


def test_data_loaders_live_until_the_trainer_has_saved(start: Start, model_dir: Path) -> None:
    running = waiting(start, model_dir, "save-with-loader", "ready to save")
    running.signal(signal.SIGTERM)
    result = running.result()
    assert result.code == 75
    assert result.summary["highest_committed_step"] == 300


def test_a_second_request_shortens_the_grace_period(start: Start, model_dir: Path) -> None:
    running = waiting(start, model_dir, "ignore-sigterm", "deaf", grace_period=3000)
    heard = False
    while not heard:
        running.signal(signal.SIGTERM)
        with suppress(AssertionError):
            running.wait_for_event("stop-hurried", timeout=0.5)
            heard = True
    result = running.result()
    assert result.code == 75
    assert result.has_event("workers-killed", reason="the grace period is over")


def test_sigquit_is_a_stop_of_the_impatient(start: Start, model_dir: Path) -> None:
    running = waiting(start, model_dir, "save-on-sigterm", "ready to save", grace_period=3000)
    running.signal(signal.SIGQUIT)
    result = running.result()
    assert result.code == 79
    assert result.has_event("stop-requested", code="PERSON", detail="SIGQUIT")
    assert result.has_event("workers-told-to-stop", seconds=5.0)
    assert result.summary["highest_committed_step"] == 300


def test_status_tells_of_a_supervisor_that_was_killed(start: Start, model_dir: Path) -> None:
    def status() -> str:
        return forked("status", model_dir).stdout

    running = waiting(start, model_dir, "wait", "waiting")
    assert "\nRUNNING" in status()
    running.signal(signal.SIGKILL)
    running.result()
    told = status()
    assert "supervisor: none runs here; the last supervisor ended before the job" in told
    assert "\nlast known: RUNNING" in told


def test_sigterm_before_the_job_is_known_is_a_drain_too(tmp_path: Path) -> None:
    """A service manager must not take it for a clean end: it would not start the job again."""
    config = tmp_path / "trainer.yaml"
    os.mkfifo(config)
    command = [sys.executable, "-m", "supervisor", "run", str(config)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    with config.open("w"):  # it has come to read it
        process.terminate()
        _, complaint = process.communicate(timeout=30)
    assert process.returncode == 75
    assert complaint == "supervise: stopped by SIGTERM or SIGHUP before anything was started\n"


def test_a_signal_before_python_runs_our_code_leaves_nothing_behind(
    start: Start, model_dir: Path
) -> None:
    """Nobody can be told then; the fixture sees that no process is left."""
    running = start(command_config(model_dir, "wait"))
    running.signal(signal.SIGTERM)
    result = running.result()
    assert (result.code, result.err) in (
        (-signal.SIGTERM, ""),
        (75, "supervise: stopped by SIGTERM or SIGHUP before anything was started\n"),
    )
    assert result.out == ""
    assert not model_dir.exists()


@pytest.mark.parametrize(
    ("name", "code"), [("SIGTERM", 75), ("SIGHUP", 75), ("SIGINT", 79), ("SIGQUIT", 79)]
)
def test_a_signal_while_our_modules_are_imported_is_told_too(name: str, code: int) -> None:
    program = f"""if True:
        import os, signal, sys

        class Meanwhile:
            def find_spec(self, name, path=None, target=None):
                if name == "supervisor.cli.rules":
                    os.kill(os.getpid(), signal.{name})

        sys.meta_path.insert(0, Meanwhile())
        from supervisor.__main__ import main
        main()
    """
    done = subprocess.run(
        [sys.executable, "-c", program, "rules"], capture_output=True, text=True, check=False
    )
    assert done.returncode == code
    assert done.stderr.endswith("before anything was started\n")
    assert len(done.stderr.splitlines()) == 1


def test_a_stop_during_backoff_ends_at_once(start: Start, model_dir: Path) -> None:
    restart = {"max_num_restarts": 5, "backoff": {"first": 3000, "max": 3000}}
    running = start(command_config(model_dir, "SIGKILL", "--at", "0", restart=restart))
    running.wait_for_event("attempt-failed", attempt=2)
    running.wait_for_event("backoff")
    running.signal(signal.SIGTERM)
    result = running.result()
    assert result.code == 75
    assert result.attempts == 2


def test_after_success_nothing_is_run_unless_the_target_grew(
    supervise: Supervise, model_dir: Path
) -> None:
    assert supervise(command_config(model_dir, success={"step": 6})).code == 0
    again = supervise(command_config(model_dir, success={"step": 6}))
    assert again.code == 0
    assert again.attempts == 1
    assert "has succeeded already" in again.raw, "a sentence alone: no job runs"
    other = supervise(command_config(model_dir, "--steps", "8", success={"step": 6}))
    assert other.code == 78, "another command for a completed phase is refused"
    grown = supervise(command_config(model_dir, "--steps", "8", success={"step": 8}))
    assert grown.code == 0, "but not with a higher target"
    assert grown.event("attempt-ended")["newest_committed_step"] == 8
    assert "the phase is complete" in other.err


def test_after_success_a_grown_target_goes_on(supervise: Supervise, model_dir: Path) -> None:
    def config(step: int) -> dict[str, Any]:
        config = command_config(model_dir, "--steps", "8", success={"step": step})
        config["trainer"]["command"]["success"]["step"] = step
        return config

    assert supervise(config(6)).code == 0
    journal = model_dir / "journal.jsonl"
    journal.write_text(journal.read_text().replace(writer(), "0.0.1+other"))
    grown = supervise(config(8))
    assert grown.code == 0
    assert grown.attempts == 2
    assert "the target grew from step 6 to 8" in grown.event("phase-starting")["reason"]
    assert [told["version"] for told in grown.events("supervisor-started")] == [writer()]
    assert grown.has_event("version-changed", version=writer(), before="0.0.1+other")
    order = ("supervisor-started", "version-changed", "config-changed", "job-resumed")
    assert grown.names(*order) == list(order)
    assert grown.has_event(
        "config-changed",
        changed="trainer.command.success.step: 6 -> 8",
        key="trainer.command.success.step",
        before="6",
        after="8",
    )


def test_after_a_failure_for_good_counts_start_at_zero(
    supervise: Supervise, model_dir: Path
) -> None:
    broken = command_config(model_dir, "SIGKILL", "--at", "3")
    assert supervise(broken).code == 76
    again = supervise(broken)
    assert again.code == 76
    assert again.attempts == 4
    assert again.has_event("counts-reset")
    assert not again.has_event("version-changed")
    assert len(list(model_dir.glob("*_restartable"))) == 2, "a new record"
    assert b"starts after step 2" in again.rank_log(4)


def test_checkpoints_without_a_journal_are_resumed_from(
    supervise: Supervise, model_dir: Path
) -> None:
    done = model_dir / "checkpoints" / "4"
    done.mkdir(parents=True)
    (done / "commit_success.txt").touch()
    result = supervise(command_config(model_dir, success={"step": 6}))
    assert result.code == 0
    assert result.has_event("checkpoint-without-journal", step=4)
    assert b"starts after step 4" in result.rank_log(1)


def test_a_second_supervisor_is_refused(
    start: Start, supervise: Supervise, model_dir: Path
) -> None:
    running = waiting(start, model_dir, "wait", "waiting", grace_period=0.1)
    second = supervise(command_config(model_dir))
    assert second.code == 73
    assert f"owned by supervisor {running.process.pid}" in second.err
    assert "stop it first" in second.err
    running.signal(signal.SIGTERM)
    assert running.result().code == 75


def test_a_killed_supervisor_takes_the_trainer_along_and_the_next_goes_on(
    start: Start, supervise: Supervise, model_dir: Path
) -> None:
    running = waiting(start, model_dir, "wait", "waiting")
    (owner,) = [json.loads((model_dir / ".supervisor.json").read_text())]
    assert owner["pid"] == running.process.pid
    running.signal(signal.SIGKILL)
    running.result()
    again = supervise(command_config(model_dir, "wait", "--once", success={"step": 6}))
    assert again.code == 0, again.log
    assert again.attempts == 2
    assert again.has_event("supervisor-lost")
    assert "nothing is charged" in again.event("attempt-started")["reason"]
    assert again.summary["attempts"][0]["status"] == "LOST"
    assert again.summary["attempts"][1]["status"] == "SUCCEEDED"


def test_two_phases_have_their_own_directories_and_steps(
    supervise: Supervise, model_dir: Path
) -> None:
    first = command_config(model_dir, success={"step": 6})["trainer"]
    second = command_config(model_dir, "--steps", "3", success={"step": 3})["trainer"]
    for phase, name in ((first, "warm"), (second, "main")):
        phase["name"] = name
        phase["init"]["checkpoint"] = {"directory": f"{{model_dir}}/{name}/checkpoints"}
        phase["command"]["argv"][2] = "{model_dir}/" + name
    result = supervise({"trainer": [{"trainer": first}, {"trainer": second}]})
    assert result.code == 0, result.log
    assert len(list(model_dir.glob("*_restartable"))) == 2
    assert result.has_event("phase-began", phase="main")
    assert result.summary["phase"] == "main"
    again = supervise({"trainer": [{"trainer": first}, {"trainer": second}]})
    assert again.code == 0
    assert again.attempts == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_model_dir_is_refused(supervise: Supervise, tmp_path: Path) -> None:
    (tmp_path / "ro").mkdir(mode=0o555)
    result = supervise(command_config(tmp_path / "ro" / "run"))
    assert result.code == 78


def test_a_model_dir_that_cannot_be_made_is_refused(supervise: Supervise, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = supervise(command_config(tmp_path / "file" / "run"))
    assert result.code == 78
    assert "trainer.yaml:" in result.err
    assert "trainer.init.model_dir: cannot be written: Not a directory" in result.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("[]", "is not a mapping"),
        ("trainer: []", "empty list"),
        ("trainer: {init: [", "not valid YAML"),
        ("trainer:\n  init: {}\n", "trainer.init.model_dir: is required"),
    ],
)
def test_nonsense_for_a_config_is_refused_without_a_traceback(
    supervise: Supervise, text: str, said: str
) -> None:
    result = supervise(text)
    assert result.code == 78
    assert said in result.err
    assert "Traceback" not in result.err


def test_log_lines_as_text(supervise: Supervise, model_dir: Path) -> None:
    result = supervise(command_config(model_dir), *TEXT)
    ours = [line for line in result.raw.splitlines(keepends=True) if " [" in line]
    assert "".join(ours) == result.log
    assert "all done\n" in result.raw


def test_log_lines_as_json(supervise: Supervise, model_dir: Path) -> None:
    result = supervise(command_config(model_dir))
    assert result.event("workers-started")["source"] == "attempt 1"
    said = result.log.splitlines()
    told = [each for each in result.events() if each["event"] != "output"]
    assert all(line.endswith(each["text"]) for line, each in zip(said, told, strict=True))


ODD = """
import os
import shutil
os.write(1, b"no text \\xff\\x00 \\x1b[31m 'quoted' \\"twice\\" \\xe2\\x82\\xac\\n{\\n")
os.write(2, b"10%\\r20%\\r\\n" + b"x" * 200_000 + b"\\nwithout an end")
"""


def test_each_line_of_json_is_json_whatever_the_program_prints(
    supervise: Supervise, model_dir: Path
) -> None:
    config = command_config(model_dir)
    config["trainer"]["command"]["argv"] = [sys.executable, "-c", ODD]
    result = supervise(config)
    output = result.events("output", attempt=1, rank=0, stream="output")
    lines = [event["text"] for event in output]
    assert lines[:3] == ["no text \\xff\x00 \x1b[31m 'quoted' \"twice\" \u20ac", "{", "10%\r20%"]
    assert "".join(lines[3:-1]) == "x" * 200_000
    assert lines[-1] == "without an end"
    assert result.event("job-ended")["code"] == 0


def test_a_step_that_is_not_there_any_more_is_not_told(
    start: Start, supervise: Supervise, model_dir: Path
) -> None:
    """The ordinary way to roll back is to remove the newest checkpoints."""
    broken = command_config(model_dir, "SIGKILL", "--at", "5", restart={"max_num_restarts": 0})
    assert supervise(broken).code == 76
    shutil.rmtree(model_dir / "checkpoints" / "4")
    again = supervise(broken)
    assert again.event("checkpoints-gone", step=2, highest=4)
    assert again.event("attempt-started")["step"] == 2
    assert b"starts after step 2" in again.rank_log(2)
    (committed,) = again.events("checkpoint-committed", step=4)
    assert "no progress, step 4 was committed before" in committed["text"]

    (model_dir / "checkpoints").rename(model_dir / "elsewhere")
    running = start(command_config(model_dir, "save-on-sigterm", "--at", "2"))
    running.wait_for("ready to save")
    running.signal(signal.SIGTERM)
    stopped = running.result()
    assert stopped.event("checkpoints-gone", step=None, highest=4)
    assert "starting attempt 3 from the beginning" in stopped.out
    assert stopped.event("attempt-stopped", saved=True, step=200)
    assert not stopped.has_event("checkpoints-unseen")
