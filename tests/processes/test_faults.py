"""What a trainer can do wrong: right verdict, right exit code, a log that explains it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from supervisor.adapters.processes.output import MAX_OUTPUT
from tests.running import Result, command_config

Supervise = Callable[..., Result]


@pytest.mark.parametrize(
    ("misbehaviour", "rule", "root_cause"),
    [
        ("SIGKILL", "sigkill", "killed by SIGKILL"),
        ("SIGSEGV", "crash", "killed by SIGSEGV"),
        ("SIGABRT", "abort", "killed by SIGABRT"),
        ("exit9", "unknown", "exit code 9"),
        ("exit0", "early-exit", "exit code 0"),
        ("runtime-error", "plain-error", "RuntimeError: bad luck"),
        ("huge-message", "plain-error", "RuntimeError: mmmmmm"),
        ("not-utf8", "unknown", "exit code 4"),
        ("hundred-megabytes", "unknown", "exit code 3"),
        ("grandchildren", "unknown", "exit code 5"),
        ("lie", "unknown", "exit code 6"),
    ],
)
@pytest.mark.parametrize("at", [0, 3])
def test_worth_another_try(
    supervise: Supervise, model_dir: Path, misbehaviour: str, rule: str, root_cause: str, at: int
) -> None:
    """It strikes once, before the first line or after a checkpoint, and the job still finishes."""
    toy = (misbehaviour, "--once", "--at", str(at))
    result = supervise(command_config(model_dir, *toy, success={"step": 6}))
    assert result.code == 0, result.log
    assert result.attempts == 2
    failure = result.summary["attempts"][0]["failure"]
    assert failure["rule"] == ("no-step-told" if (misbehaviour, at) == ("exit0", 0) else rule)
    assert failure["root_cause"].startswith(root_cause)
    told = result.event("attempt-failed", cause=failure["cause"], place=failure["where"])
    assert told["root_cause"] == failure["root_cause"]
    assert result.has_event("budget-used", restarts=1, max_num_restarts=1)
    if misbehaviour in ("SIGSEGV", "SIGABRT") and at:
        called = "in misbehave" if misbehaviour == "SIGABRT" else "in <lambda>"
        assert re.fullmatch(rf".*/toy\.py:\d+ {called}", failure["where"])
        assert called in failure["traceback"].splitlines()[-2], "the most recent call is the last"
    resumed = b"starts after step 2" if at == 3 else b"starts after step 0"
    assert resumed in result.rank_log(2)


def test_the_same_crash_again_ends_the_job_although_nothing_was_said(
    supervise: Supervise, model_dir: Path, tmp_path: Path
) -> None:
    """The stack of Python that `faulthandler` left tells that it is the same."""
    program = tmp_path / "train.py"
    program.write_text("import os\ndef step():\n    os.kill(os.getpid(), 11)\nstep()\n")
    argv = [sys.executable, str(program)]
    result = supervise(command_config(model_dir, argv=argv, restart={"max_num_restarts": 9}))
    assert (result.code, result.attempts) == (70, 2), result.log
    failures = [attempt["failure"] for attempt in result.summary["attempts"]]
    assert {failure["rule"] for failure in failures} == {"crash"}
    (signature,) = {failure["signature"] for failure in failures}
    assert signature.startswith("SIGSEGV-")


def test_a_program_that_asks_a_person_is_told_that_nobody_answers(
    supervise: Supervise, model_dir: Path
) -> None:
    config = command_config(model_dir)
    config["trainer"]["command"] = {"argv": [sys.executable, "-c", "input('project? ')"]}
    result = supervise(config)
    assert (result.code, result.attempts) == (70, 2), result.log
    assert result.has_event("attempt-failed", attempt=2, cause="there is no standard input")


def test_a_crash_whose_stacks_go_to_standard_error_is_told_with_its_place(
    supervise: Supervise, model_dir: Path
) -> None:
    config = command_config(model_dir, "SIGABRT", restart={"max_num_restarts": 0})
    config["trainer"]["command"]["env"] = {"PYTHONFAULTHANDLER": "1"}
    result = supervise(config)
    assert result.code == 76, result.log
    where = result.summary["attempts"][0]["failure"]["where"]
    assert re.fullmatch(r"/.*/toy\.py:\d+ in misbehave", where), result.log
    assert result.has_event("attempt-failed", place=where)
    assert result.has_event("traceback", text="| Fatal Python error: Aborted")


def test_a_failed_assertion_ends_at_once(supervise: Supervise, model_dir: Path) -> None:
    result = supervise(command_config(model_dir, "assertion", restart={"max_num_restarts": 9}))
    assert result.code == 70
    assert result.attempts == 1
    failed = result.event("attempt-failed")
    assert failed["root_cause"].endswith("AssertionError: two is not three")
    assert result.has_event("verdict", code="own-assertion", verdict="FATAL", certain=True)
    assert result.event("advice")["advice"].startswith("Look at what it checks")
    failure = result.summary["attempts"][0]["failure"]
    assert "AssertionError: two is not three" in failure["traceback"]
    record = next(model_dir.glob("*_restartable/attempts/0001/rank0.failure.json"))
    assert "AssertionError" in record.read_text()


@pytest.mark.parametrize("budget", [0, 2])
def test_the_budget_is_spent_after_exactly_n_restarts(
    supervise: Supervise, model_dir: Path, budget: int
) -> None:
    restart = {"max_num_restarts": budget}
    result = supervise(command_config(model_dir, "SIGKILL", "--at", "1", restart=restart))
    assert result.code == 76
    assert result.attempts == budget + 1
    why = f"the budget of {budget} restarts without a new checkpoint is spent"
    assert why in result.event("job-ended")["reason"]


def test_progress_refills_the_budget(supervise: Supervise, model_dir: Path) -> None:
    """Every attempt gets one checkpoint further and dies: five deaths on a budget of one."""
    toy = ("SIGKILL", "--every", "1", "--at", "3", "--steps", "6")
    script = command_config(model_dir, *toy, success={"step": 6})
    argv = script["trainer"]["command"]["argv"]
    argv[:] = [
        argv[0],
        "-c",
        "import subprocess, sys; at = int(sys.argv[1]) + 2; "
        "sys.exit(subprocess.call([sys.executable, *sys.argv[2:], '--at', str(at)]))",
        "{resume_step}",
        *argv[1:],
    ]
    result = supervise(script)
    assert result.code == 0, result.log
    assert result.attempts == 6
    assert result.has_event("checkpoint-committed")


def test_a_preemption_does_not_touch_the_restart_budget(
    supervise: Supervise, model_dir: Path
) -> None:
    restart = {"max_num_restarts": 0, "max_num_preemptions": 2}
    result = supervise(command_config(model_dir, "SIGTERM", "--at", "1", restart=restart))
    assert result.code == 76
    assert result.attempts == 3
    assert result.has_event("budget-used", preemptions=2, max_num_preemptions=2)


def test_where_the_job_ends_nobody_is_told_that_it_is_restarted(
    supervise: Supervise, model_dir: Path
) -> None:
    restart = {"max_num_preemptions": 1}
    result = supervise(command_config(model_dir, "SIGTERM", "--at", "1", restart=restart))
    assert result.code == 76
    todo = (
        "The last failure was: preempted (SIGTERM that the supervisor did not send). Find out who "
        "sends SIGTERM. Run the same command again."
    )
    told = (
        f"{todo} If the program saves checkpoints, the warning about them says why none of them "
        "counts. If it names no reason, name their folder: "
        "--set trainer.init.checkpoint.directory=FOLDER."
    )
    assert result.events("advice")[-1]["advice"] == told
    assert f"what to do: {told.rstrip('.')}; more: " in result.err
    first, last = (attempt["failure"]["advice"] for attempt in result.summary["attempts"])
    assert first.startswith("None needed: it is restarted. If it comes back, find out")
    assert last == todo


def test_an_uncommitted_checkpoint_is_no_progress(supervise: Supervise, model_dir: Path) -> None:
    (model_dir / "checkpoints" / "9").mkdir(parents=True)
    (model_dir / "checkpoints" / "11.orbax-checkpoint-tmp").mkdir()
    result = supervise(command_config(model_dir, "SIGKILL", "--at", "1"))
    assert result.code == 76
    assert result.has_event("attempt-started", attempt=1, step=None)
    assert result.summary["highest_committed_step"] is None


@pytest.mark.parametrize(
    ("argv", "root_cause"),
    [
        (["{model_dir}/no-such-program"], "/no-such-program: No such file or directory"),
        (["{model_dir}"], ": Permission denied"),
    ],
)
def test_a_command_that_cannot_be_started(
    supervise: Supervise, model_dir: Path, argv: list[str], root_cause: str
) -> None:
    config = command_config(model_dir)
    config["trainer"]["command"] = argv
    result = supervise(config)
    assert result.code == 70
    assert root_cause in result.events("attempt-failed")[-1]["root_cause"]
    assert result.summary["attempts"][0]["status"] == "FAILED"


def test_of_hundred_megabytes_the_first_and_the_newest_are_kept(
    supervise: Supervise, model_dir: Path
) -> None:
    result = supervise(command_config(model_dir, "hundred-megabytes", "--once", "--at", "0"))
    (directory,) = model_dir.glob("*_restartable/attempts/0001")
    parts = {path.name: path.read_bytes() for path in directory.glob("*.log")}
    assert sorted(parts) == ["rank0.first.log", "rank0.log", "rank0.previous.log"]
    assert sum(map(len, parts.values())) <= MAX_OUTPUT
    head, _, newest = parts["rank0.log"].partition(b"\n")
    dropped = re.fullmatch(rb"\[supervise: .*previous.log; (\d+) bytes .* were dropped\]", head)
    assert dropped
    older = parts["rank0.previous.log"].partition(b"\n")[2]
    kept = (parts["rank0.first.log"], older, newest)
    assert sum(map(len, kept)) + int(dropped[1]) == 100_000_000
    assert all(part.endswith(b"\n") for part in kept), "cut between lines"
    assert result.code == 0
    assert b"starts after step 0" in result.rank_log(2)


def test_lies_on_the_progress_pipe_are_told(supervise: Supervise, model_dir: Path) -> None:
    result = supervise(command_config(model_dir, "lie", "--once"))
    assert result.has_event("message-refused", rank=0)
    assert result.has_event("evidence-unusable", rank=0)


@pytest.mark.parametrize(
    ("success", "toy", "code"),
    [
        ({"step": 6}, [], 0),
        ({"step": 7}, [], 76),
        ({"pattern": "^all done$"}, [], 0),
        ({"pattern": "^never$"}, [], 76),
        ({"file": "{model_dir}/checkpoints/6/commit_success.txt"}, [], 0),
        ({"file": "{model_dir}/nowhere"}, [], 76),
        ({"exit_code": 9}, ["exit9"], 0),
        (None, [], 0),
    ],
)
def test_success_criteria(
    supervise: Supervise, model_dir: Path, success: dict[str, Any] | None, toy: list[str], code: int
) -> None:
    command = {} if success is None else {"success": success}
    result = supervise(command_config(model_dir, *toy, restart={"max_num_restarts": 0}, **command))
    assert result.code == code, result.log
    assert result.has_event("success-by-exit-code") == (success is None)


def test_steps_are_read_from_the_output(supervise: Supervise, model_dir: Path) -> None:
    """By a program that knows nothing of the worker protocol and makes no checkpoints."""
    config = command_config(model_dir)
    script = "for step in range(1, 8): print('completed step:', step)"
    config["trainer"]["command"] = {
        "argv": ["python3", "-c", script],
        "progress": {"pattern": r"completed step: (\d+)"},
        "success": {"step": 7},
    }
    result = supervise(config)
    assert result.code == 0, result.log
    assert result.summary["attempts"][0]["ending_step"] == 7


def test_exit_codes_are_mapped(supervise: Supervise, model_dir: Path) -> None:
    config = {**command_config(model_dir, "assertion"), "exit_codes": {"70": 13}}
    assert supervise(config).code == 13


def test_a_template_sees_what_the_attempt_is_started_with(
    supervise: Supervise, model_dir: Path
) -> None:
    config = command_config(model_dir, "SIGKILL", "--once")
    config["trainer"]["init"]["devices"] = {"platform": "cpu", "count": 4}
    config["trainer"]["command"]["global_batch"] = 32
    seen = "{attempt}/{resume_step}/{num_devices}/{per_device_batch}/{{x}}"
    config["trainer"]["command"]["env"] = {"SEEN": seen}
    argv = config["trainer"]["command"]["argv"]
    config["trainer"]["command"]["argv"] = ["sh", "-c", 'echo "$SEEN"; exec "$@"', "sh", *argv]
    result = supervise(config)
    assert result.rank_log(2).splitlines()[0] == b"2/2/4/8/{x}"
