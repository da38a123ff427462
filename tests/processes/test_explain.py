"""`supervise explain`, as a person calls it after jobs that have failed."""

from __future__ import annotations

import json
import shutil
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from supervisor.cli.main import main
from tests.adapters.test_journal import STORY, tell
from tests.emulators import Emulator
from tests.forked import forked
from tests.running import Result, command_config

Supervise = Callable[..., Result]

JOURNALS = Path(__file__).parents[1] / "adapters" / "journals"
PARTS = (
    "EVIDENCE",
    "VERDICT",
    "RULES THAT MATCHED",
    "BUDGET",
    "DECIDED",
    "WHAT ELSE COULD HAVE BEEN",
)


def config(model_dir: Path, code: str, **restart: Any) -> dict[str, Any]:
    given = {"max_num_restarts": 2, "backoff": {"first": 0.01}, **restart}
    return command_config(model_dir, restart=given, argv=[sys.executable, "-c", code])


def explained(*argv: str | Path, cwd: Path | None = None) -> str:
    done = forked("explain", *argv, cwd=cwd)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_an_assertion(supervise: Supervise, model_dir: Path) -> None:
    program = model_dir.parent / "fails.py"
    program.write_text("print('begins')\nassert 3 == 4, 'three is not four'\n")
    given = config(model_dir, "")
    given["trainer"]["command"]["argv"] = [sys.executable, str(program)]
    assert supervise(given).code == 70
    told = explained(model_dir)
    lines = told.splitlines()
    assert [line for line in lines if line in PARTS] == list(PARTS)
    for part in (
        "attempt 1 (phase 'phase1'): FAILED, ended ",
        "  rank 0: exit code 1\n",
        f"AssertionError: three is not four, at {program}:2\n",
        "FATAL, certain: true (rule 'own-assertion')",
        "supervise rules own-assertion",
        "-> own-assertion ",
        "restarts: 0 used before it, 0 forgiven, 0 charged for it: 0 of 2 used, 2 left",
        "the job ends with exit code 70: ",
        "* if a rule of your config had said RESTART: attempt 2 starts at once, with 1 restart",
    ):
        assert part in told
    assert "max_num_restarts: 5" not in told, "it changes nothing"
    assert "not there" not in told
    stood = forked("status", model_dir).stdout
    assert f"more: supervise explain {model_dir}; supervise rules own-assertion\n" in stood


def test_a_spent_budget_and_any_attempt_as_data(supervise: Supervise, model_dir: Path) -> None:
    code = "import os, signal; print('step 1', flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    assert supervise(config(model_dir, code)).code == 76
    last = json.loads(explained("--json", model_dir))
    assert (last["attempt"], last["status"], last["failure"]["rule"]) == (3, "FAILED", "sigkill")
    assert last["evidence"]["exits"][0]["signal"] == "SIGKILL"
    assert (last["rules"]["from"], last["rules"]["agrees"]) == ("output", True)
    restarts = last["budget"]["restarts"]
    assert restarts == {
        "before": 2, "forgiven": 0, "charged": 0, "after": 2, "limit": 2, "left": 0
    }  # fmt: skip
    assert (last["decided"]["kind"], last["decided"]["exit_code"]) == ("end", 76)
    others = {each["name"]: each for each in last["alternatives"]}
    more = others["max_num_restarts"]
    assert (more["changes"], more["restarts_left"]) == ({"max_num_restarts": 5}, 2)
    assert more["outcome"]["attempt"] == 4
    first = json.loads(explained("--json", model_dir, "1"))
    assert (first["attempt"], first["decided"]["attempt"]) == (1, 2)
    (count,) = [each for each in first["alternatives"] if each["name"] == "count"]
    assert count["outcome"]["exit_code"] == 76
    refused = forked("explain", model_dir, "9")
    assert (refused.returncode, refused.stdout) == (64, "")
    assert "no end of attempt 9: attempts are 1 to 3" in refused.stderr


def test_a_config_that_changed_before_the_failure_is_told_with_it(
    supervise: Supervise, model_dir: Path
) -> None:
    fails = "import sys; assert not sys.argv[1:], 'one too many'"
    given = config(model_dir, fails)
    assert supervise(given).code == 0
    given["trainer"]["command"]["argv"] += ["--lr", "2"]
    assert supervise(given).code == 70
    changed = 'the config changed after attempt 1: trainer.command.argv: ["..."] -> '
    changed += '["...", "--lr", "2"]\n'
    assert f"  {changed}" in explained(model_dir)
    stood = forked("status", model_dir).stdout
    undo = (
        "if that is the cause, as where the checkpoints do not fit the new values: change it back"
    )
    assert f"\n{changed}{undo}" in stood, "beside the cause that it may be"
    assert "begin another job in another model_dir\nwhat to do: " in stood
    assert undo in explained(model_dir)
    for verb in ("status", "explain"):
        told = json.loads(forked(verb, "--json", model_dir).stdout)
        change = told.get("evidence", told)["config_change"]
        assert change["after_attempt"] == 1
    assert "the config changed" not in explained(model_dir, "1"), "it came after this one"


def test_the_advice_for_our_trainer_is_not_given_for_a_command(
    supervise: Supervise, model_dir: Path
) -> None:
    result = supervise(config(model_dir, "raise FloatingPointError('nan')"))
    assert result.code == 70
    told = [each["advice"] for each in result.events("advice")]
    assert len(told) == 2, "after the first attempt, and at the end"
    assert not [each for each in told if "supervise's own trainer" in each]
    (advice,) = [x for x in explained(model_dir).splitlines() if x.startswith("what to do: ")]
    assert "supervise replay" not in advice
    assert "Find the first step" in advice


def test_the_output_that_is_gone_is_said_and_the_journal_is_judged(
    supervise: Supervise, model_dir: Path
) -> None:
    assert supervise(config(model_dir, "import nosuchmodule")).code == 70
    for folder in model_dir.glob("*_restartable/attempts"):
        shutil.rmtree(folder)
    told = explained(model_dir)
    assert "the output of the attempt is not there any more" in told
    assert "-> missing-module" in told
    body = json.loads(explained("--json", model_dir))
    assert (body["rules"]["from"], body["rules"]["agrees"]) == ("journal", True)
    assert len(body["rules"]["missing"]) == 1


def test_a_rule_of_the_config_is_named(supervise: Supervise, model_dir: Path) -> None:
    rule = {"name": "locked", "regex": "shard is locked", "verdict": "FATAL", "advice": "Unlock."}
    assert supervise(config(model_dir, "exit('shard is locked')", rules=[rule])).code == 70
    told = explained(model_dir)
    assert "(rule 'locked')" in told
    assert "(yours: autorestart.rules[0] of the config in the journal)" in told
    assert "what to do: Unlock." in told


def test_a_hang_is_no_rule_of_the_table(supervise: Supervise, model_dir: Path) -> None:
    code = "import time\nfor i in range(9): print('step', i, flush=True)\ntime.sleep(999)"
    given = config(model_dir, code, max_num_restarts=0, deadlines={"TRAINING": "1s"})
    given["trainer"]["command"]["progress"] = {"pattern": "step (\\d+)"}
    assert supervise(given).code == 76
    told = explained(model_dir)
    for part in (
        "last stage: TRAINING\n",
        "last completed step: 8\n",
        "RESTART (rule 'hang'): hang in stage TRAINING",
        "by what it saw itself, so no rule decided",
        "with 4 restarts left",
    ):
        assert part in told
    assert "you do not agree?" not in told, "a rule about the end would not change a hang"
    assert json.loads(explained("--json", model_dir))["rules"]["explanation"]["changes"] == []


def test_the_error_of_a_later_rank_is_found_in_its_own_output(
    supervise: Supervise, model_dir: Path
) -> None:
    code = (
        "import os, time; rank = int(os.environ['SUPERVISE_RANK']); print('rank', rank)\n"
        "if rank: raise RuntimeError('bad luck')\n"
        "time.sleep(60)"
    )
    given = config(model_dir, code, max_num_restarts=0)
    given["trainer"]["init"] |= {"workers": 2, "devices": {"platform": "cpu", "count": 2}}
    assert supervise(given).code == 70
    told = explained(model_dir)
    assert "  rank 1: exit code 1\n  rank 0: killed by SIGKILL, after the supervisor" in told
    assert "root cause (rank 1): RuntimeError: bad luck" in told
    assert "1. rank 1 (rank1.log): RuntimeError: bad luck\n" in told
    body = json.loads(explained("--json", model_dir))
    assert [each["before_kill"] for each in body["evidence"]["exits"]] == [True, False]
    for output in model_dir.glob("*_restartable/attempts/0001/rank1.*"):
        output.unlink()
    told = explained(model_dir)
    assert "not there, or not readable: " in told
    assert "/attempts/0001/rank1.log\n" in told
    assert "The verdict in the journal counts ('plain-error')" in told


def test_the_job_here_is_found(supervise: Supervise, model_dir: Path) -> None:
    assert supervise(config(model_dir, "raise RuntimeError('bad luck')")).code == 70
    told = explained(cwd=model_dir.parent)
    assert "attempt 2 (phase 'phase1'): FAILED" in told
    assert "attempt 1 (phase 'phase1'): FAILED" in explained("1", cwd=model_dir.parent)
    nowhere = model_dir.parent / "nowhere"
    nowhere.mkdir()
    for verb in ("explain", "status", "logs"):
        done = forked(verb, cwd=nowhere)
        assert (done.returncode, done.stdout) == (64, "")
        assert "no job is here" in done.stderr
    assert forked("status", "--exit-code", cwd=nowhere).returncode == 66


def test_status_and_logs_find_the_job_that_was_written_last(
    supervise: Supervise, model_dir: Path
) -> None:
    older = model_dir.with_name("older")
    assert supervise(config(older, "print('the older one')")).code == 0
    assert supervise(config(model_dir, "print('the newer one')")).code == 0
    told = forked("status", "--exit-code", cwd=model_dir.parent)
    assert (told.returncode, told.stderr) == (0, "")
    assert f" in {model_dir.name}\n" in told.stdout
    assert forked("logs", cwd=model_dir.parent).stdout == "the newer one\n"


def test_a_job_that_did_not_fail(supervise: Supervise, model_dir: Path) -> None:
    assert supervise(config(model_dir, "pass")).code == 0
    done = forked("explain", model_dir)
    assert (done.returncode, done.stdout) == (64, "")
    assert "no attempt of this job has failed" in done.stderr
    told = explained(model_dir, "1")
    assert "attempt 1 (phase 'phase1'): SUCCEEDED" in told
    assert "WHAT ELSE" not in told
    assert "what to do" not in told


def test_what_is_in_the_journal_moves_no_cursor(tmp_path: Path) -> None:
    tell(tmp_path, *STORY[:6])
    journal = tmp_path / "journal.jsonl"
    hostile = json.dumps("\x1b[2J")
    journal.write_text(journal.read_text().replace('"advice":"what"', f'"advice":{hostile}'))
    told = explained(tmp_path)
    assert all(line.isprintable() for line in told.splitlines())
    assert "[2J" in told


@pytest.mark.parametrize("name", [path.stem for path in sorted(JOURNALS.glob("*.jsonl"))])
def test_a_journal_of_an_older_version_is_explained(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(JOURNALS / f"{name}.jsonl", tmp_path / "journal.jsonl")
    code = main(["explain", "--json", str(tmp_path)])
    told = capfd.readouterr()
    if code == 64:
        assert "no attempt of this job has failed" in told.err
        return
    body = json.loads(told.out)
    assert (code, body["status"], body["rules"]["from"]) == (0, "FAILED", "journal")
    assert body["alternatives_known"]


def test_a_command_that_cannot_be_started(supervise: Supervise, model_dir: Path) -> None:
    program = model_dir.parent / "program"
    program.write_bytes(b"no program")
    program.chmod(0o755)
    given = config(model_dir, "")
    given["trainer"]["command"]["argv"] = [str(program)]
    assert supervise(given).code == 70
    told = explained(model_dir)
    for part in (
        "  no rank was started\n",
        "(rule 'launch'): the command cannot be started",
        "no rank was started, so there is no output",
        "by what it saw itself, so no rule decided",
    ):
        assert part in told


@pytest.mark.parametrize("lost", [False, True])
def test_records_in_an_archived_segment_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lost: bool
) -> None:
    tell(tmp_path, *STORY[:9], after=7)
    if lost:
        shutil.rmtree(tmp_path / "journal")
        (tmp_path / "journal").mkdir()
    assert main(["explain", "--json", str(tmp_path)]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["attempt"] == 2
    assert (body["records_missing"] is not None) is lost
    code = main(["explain", "--json", str(tmp_path), "1"])
    told = capsys.readouterr()
    assert (code, told.out == "") == ((64, True) if lost else (0, False))


def test_a_job_in_a_bucket(
    supervise: Supervise, gcs: Emulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in gcs.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    place = gcs.root / uuid.uuid4().hex
    given = config(tmp_path, "raise RuntimeError('bad luck')")
    given["trainer"]["init"]["model_dir"] = str(place)
    assert supervise(given).code == 70
    body = json.loads(explained("--json", str(place)))
    assert (body["attempt"], body["failure"]["rule"]) == (2, "plain-error")
    assert (body["rules"]["from"], body["rules"]["agrees"]) == ("output", True)
