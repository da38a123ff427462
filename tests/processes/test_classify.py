"""`supervise classify` and `supervise rules`, as a person calls them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.diagnosis.rules import RULES
from tests.config.files import with_restart
from tests.forked import forked

OWN = with_restart(
    "max_num_restarts: 3\n"
    "rules: [{name: flaky, type: '*Error', regex: bad record, verdict: RESTART, cause: the loader,"
    " reason: 'It passes.', advice: 'Wait.'}]"
)
LOG = (
    "I1121 08:55:30.936021 1405 trainer.py:65] step 12\n"
    "Traceback (most recent call last):\n"
    '  File "/app/train.py", line 141, in <module>\n'
    "ValueError: bad record 7\n"
)
LOST = LOG.replace("ValueError: bad record 7", "XlaRuntimeError: UNAVAILABLE: Socket closed")
KEYS = [
    "verdict",
    "certain",
    "grounds",
    "cause",
    "rule",
    "root_line",
    "where",
    "rank",
    "signature",
    "compared",
    "confidence",
    "reason",
    "advice",
]


def supervise(
    *argv: str | Path, given: str = "", cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return forked(*argv, given=given, cwd=cwd)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "rank0.log"
    path.write_text(LOG)
    return path


def test_the_json_form(log: Path) -> None:
    done = supervise("classify", "--exit-code", "1", "--stage", "TRAINING", "--json", log)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert list(found) == KEYS
    assert found["verdict"] == "FATAL"
    assert found["root_line"] == "ValueError: bad record 7"
    assert found["where"] == "/app/train.py:141"
    assert (found["rank"], found["confidence"]) == (0, "medium")
    assert found["signature"].startswith("ValueError-")


def test_the_text_form_says_what_happened_why_and_what_to_do(log: Path) -> None:
    done = supervise("classify", log)
    for part in (
        "what happened:",
        "bad record 7\n    at /app/train.py:141\n",
        "verdict:",
        "why:",
        "what to do:",
    ):
        assert part in done.stdout


def test_one_log_for_each_rank(log: Path, tmp_path: Path) -> None:
    lost = tmp_path / "lost.log"
    lost.write_text(LOST)
    done = supervise("classify", "--signal", "SIGABRT", "--json", lost, log)
    assert json.loads(done.stdout)["rank"] == 1
    assert str(log) in supervise("classify", lost, log).stdout


def test_standard_input(log: Path) -> None:
    done = supervise("classify", "--json", "-", given=log.read_text())
    assert json.loads(done.stdout)["root_line"] == "ValueError: bad record 7"


@pytest.mark.parametrize(
    ("argv", "rule"),
    [
        (("--signal", "kill"), "sigkill-or-memory"),
        (("--signal", "15"), "sigterm"),
        (("--exit-code", "139"), "crash"),
        ((), "unknown"),
    ],
)
def test_how_it_ended_counts_where_nothing_is_said(argv: tuple[str, ...], rule: str) -> None:
    done = supervise("classify", "--json", *argv, os.devnull)
    assert json.loads(done.stdout)["rule"] == rule


@pytest.mark.parametrize(("text", "doubt"), [("fine\n", None), (LOG, "ValueError: bad record 7")])
def test_exit_code_0_is_the_success_that_run_takes_it_for(text: str, doubt: str | None) -> None:
    done = supervise("classify", "--exit-code", "0", "--json", "-", given=text)
    expected = {"verdict": "SUCCESS", "cause": "exit code 0", "output_ends_in": doubt}
    assert json.loads(done.stdout) == expected
    told = supervise("classify", "--exit-code", "0", "-", given=text).stdout
    assert "what happened: nothing failed: exit code 0\nverdict:       SUCCESS, unless" in told
    assert (f"ends in a traceback: {doubt}" in told) == (doubt is not None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("EOFError: EOF when reading a line", ("FATAL", "there is no standard input")),
        ("EOFError", ("RESTART", "the other end of a pipe went away")),
    ],
)
def test_a_question_that_nobody_can_answer_is_no_broken_pipe(
    tmp_path: Path, text: str, expected: tuple[str, str]
) -> None:
    path = tmp_path / "log"
    path.write_text(LOG.replace("ValueError: bad record 7", text))
    found = json.loads(supervise("classify", "--exit-code", "1", "--json", path).stdout)
    assert (found["verdict"], found["cause"]) == expected


@pytest.mark.parametrize(("word", "verdict"), [("restore", "POLICY"), ("TRAINING", "FATAL")])
def test_the_stage_matters(tmp_path: Path, word: str, verdict: str) -> None:
    path = tmp_path / "log"
    path.write_text(LOG.replace("ValueError: bad record 7", "EOFError: Ran out of input"))
    done = supervise("classify", "--json", "--stage", word, path)
    assert json.loads(done.stdout)["verdict"] == verdict


@pytest.mark.parametrize(
    ("argv", "code", "complaint"),
    [
        (("nowhere.log",), 66, "nowhere.log: No such file or directory; give the path of a log"),
        (("/",), 66, "/: Is a directory"),
        ((), 64, "the following arguments are required: LOG"),
        (("--exit-code", "256", "x"), 64, "'256' is not an exit code from 0 to 255"),
        (("--exit-code", "1", "--signal", "KILL", "x"), 64, "not allowed with argument"),
        (("--signal", "SIGFOO", "x"), 64, "'SIGFOO' is not a signal such as SIGKILL"),
        (("--stage", "lunch", "x"), 64, "'lunch' is not a stage: STARTING"),
        (("--config", "nowhere.yaml", "x"), 78, "nowhere.yaml: no such file"),
    ],
)
def test_what_is_wrong_is_told(argv: tuple[str, ...], code: int, complaint: str) -> None:
    done = supervise("classify", *argv)
    assert (done.returncode, done.stdout) == (code, "")
    assert complaint in done.stderr


def test_the_explanation_names_every_rule_and_a_line_of_config_that_changes_it(
    tmp_path: Path, log: Path
) -> None:
    lost = tmp_path / "rank1.log"
    lost.write_text(LOST)
    argv = ("classify", "--explain", "--exit-code", "1", log, lost)
    told = supervise(*argv).stdout
    assert f"1. rank 0 ({log}): ValueError: bad record 7\n" in told
    assert "at /app/train.py:141; raised by your own code; nobody caught it" in told
    assert "-> program-error" in told
    assert f"rank 1 ({lost}): XlaRuntimeError: UNAVAILABLE: Socket closed" in told
    assert "not the root cause: it is an error that ranks get when another rank fails" in told
    config = tmp_path / "trainer.yaml"
    restart, _, surer = told.rstrip().splitlines()[-3:]
    config.write_text(with_restart(f"max_num_restarts: 3\nrules:\n{surer.strip(' #')}"))
    assert "FATAL (certain)" in supervise("classify", "--config", config, log).stdout
    config.write_text(with_restart(f"max_num_restarts: 3\nrules:\n{restart.strip()}"))
    changed = supervise("classify", "--explain", "--config", config, log)
    assert "verdict:       RESTART" in changed.stdout
    assert f"change it: {config}:7: trainer.init.autorestart.rules[0]\n" in changed.stdout
    body = json.loads(supervise(*argv, "--json").stdout)
    assert list(body) == [*KEYS, "explanation"]
    found = body["explanation"]
    assert [error["rank"] for error in found["errors"]] == [0, 1, 0, 1]
    assert found["errors"][0]["rules"][0]["name"] == body["rule"]
    assert [each["verdict"] for each in found["changes"]] == ["RESTART", "FATAL"]


def test_what_no_rule_knows_is_told_with_its_last_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("step 7\nERROR: --data-dir /data/c4 is not there, really\n")
    told = supervise("classify", "--exit-code", "1", path).stdout
    assert "    exit code 1; no rule matches an error in this log\n" in told
    assert "the log ends with: ERROR: --data-dir /data/c4 is not there, really\n" in told
    assert (
        "give the exit code (--exit-code N) or the signal (--signal NAME)"
        in supervise("classify", path).stdout
    )


def test_there_is_nothing_to_explain_about_a_success(log: Path) -> None:
    done = supervise("classify", "--explain", "--exit-code", "0", "--json", log)
    assert json.loads(done.stdout)["verdict"] == "SUCCESS"
    assert "errors found" not in supervise("classify", "--explain", "--exit-code", "0", log).stdout


def test_the_rules_in_order_ones_own_first(tmp_path: Path, log: Path) -> None:
    config = tmp_path / "trainer.yaml"
    config.write_text(OWN)
    plain, own = supervise("rules"), supervise("rules", "--config", config)
    row = rf" 1  flaky +RESTART +yes +{config}:\d: .*rules\[0\] +the loader\n"
    assert re.search(row, own.stdout)
    assert len(own.stdout.splitlines()) == 1 + len(plain.stdout.splitlines())
    found = json.loads(supervise("rules", "--json", "--config", config).stdout)
    assert [rule["name"] for rule in found] == ["flaky", *(rule.name for rule in RULES)]
    assert {rule["source"] for rule in found[1:]} == {"supervise"}
    judged = supervise("classify", "--config", config, log).stdout
    assert "RESTART" in judged
    assert "It passes." in judged


def test_all_about_one_rule() -> None:
    told = supervise("rules", "sigkill").stdout
    assert told.startswith(
        f"{[rule.name for rule in RULES].index('sigkill') + 1}. sigkill: POLICY: "
    )
    for part in (
        "   what it means:\n",
        "   an example (tests/",
        "   what supervise does:\n      Verdict: POLICY",
        "   what you do:\n",
        "      source:     supervise\n",
        "      compared:   no\n",
        "      signal:     SIGKILL\n",
        "   related:\n",
    ):
        assert part in told
    (body,) = json.loads(supervise("rules", "--json", "sigkill").stdout)
    assert (body["name"], body["signal"], body["certain"]) == ("sigkill", ["SIGKILL"], False)
    assert body["does"][0].startswith("Verdict: POLICY")
    assert body["example"]["ranks"][0]["ended"] == "killed by SIGKILL"
    done = supervise("rules", "sigkil")
    assert (done.returncode, done.stdout) == (64, "")
    assert "no rule is called 'sigkil'; did you mean 'sigkill'?" in done.stderr


def test_all_about_a_code_that_the_supervisor_itself_gives() -> None:
    told = supervise("rules", "hang").stdout
    assert told.startswith("hang: RESTART: a hang\n")
    assert "Read in the stacks (rank*stacks.txt) what it waits for" in told
    (body,) = json.loads(supervise("rules", "--json", "hang").stdout)
    assert (body["number"], body["failures"][0]["verdict"]) == (None, "RESTART")
    assert "did you mean 'hang'?" in supervise("rules", "hangs").stderr


def test_a_rule_of_a_config_has_no_example(tmp_path: Path) -> None:
    config = tmp_path / "trainer.yaml"
    config.write_text(OWN)
    told = supervise("rules", "--config", config, "flaky").stdout
    assert "1. flaky: RESTART: the loader\n" in told
    assert "an example" not in told
    assert "Wait." in told


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -m supervisor rules | head -n 1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_secret_in_a_log_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(
        LOG.replace("bad record 7", "bad token hf_abcdefghijklmnopqrstuvwxyz0123456789")
    )
    assert "hf_abcdef" not in supervise("classify", path).stdout
    assert "hf_abcdef" not in supervise("classify", "--json", path).stdout
    assert "hf_abcdef" not in supervise("classify", "--explain", path).stdout
    assert "hf_abcdef" not in supervise("classify", "--explain", "--json", path).stdout


def test_each_log_may_say_how_its_rank_ended(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("step 1\n")
    (tmp_path / "b.log").write_text("step 1\n")
    done = supervise("classify", "a.log:0", "b.log:SIGSEGV", "--json", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert (found["rule"], found["rank"], found["root_line"]) == ("crash", 1, "killed by SIGSEGV")
    found = json.loads(supervise("classify", "a.log:127", "--json", cwd=tmp_path).stdout)
    assert (found["rule"], found["root_line"]) == ("not-executable", "exit code 127")
    found = json.loads(supervise("classify", "a.log:0", "b.log:0", "--json", cwd=tmp_path).stdout)
    assert found["verdict"] == "SUCCESS"


def test_standard_input_may_say_how_it_ended() -> None:
    for argv in (["-:137"], ["--json", "-:SIGKILL"], ["-:9", "--stage", "train"]):
        assert supervise("classify", *argv, given="step 7\n").returncode == 0
    told = supervise("classify", "--json", "-:3", given="step 7\n")
    assert json.loads(told.stdout)["root_line"] == "exit code 3"


def test_the_options_are_for_logs_that_do_not_say_how_they_ended(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("")
    (tmp_path / "b.log").write_text("")
    done = supervise(
        "classify", "--exit-code", "0", "a.log", "b.log:sigsegv", "--json", cwd=tmp_path
    )
    assert json.loads(done.stdout)["root_line"] == "killed by SIGSEGV"


def test_a_file_whose_name_ends_like_an_exit_code_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "run:70").write_text(LOG)
    found = json.loads(supervise("classify", "run:70", "--json", cwd=tmp_path).stdout)
    assert found["root_line"] == "ValueError: bad record 7"


@pytest.mark.parametrize(
    ("log", "code", "complaint"),
    [
        ("a.log:300", 64, "a.log:300: there is no such file, and '300' is not an exit code from 0"),
        ("a.log:SIGFOO", 64, "there is no such file, and 'SIGFOO' is not a signal such as SIGKILL"),
        ("b.log:70", 66, "b.log: No such file or directory; give the path of a log (LOG:70 and"),
        ("a.log:bad", 66, "a.log:bad: No such file or directory; give the path of a log (LOG:70"),
    ],
)
def test_what_is_wrong_with_a_log_is_said(
    tmp_path: Path, log: str, code: int, complaint: str
) -> None:
    (tmp_path / "a.log").write_text(LOG)
    done = supervise("classify", log, cwd=tmp_path)
    assert done.returncode == code
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


def test_what_the_terminal_cannot_show_is_escaped(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(LOG.replace("bad", "b\u00e4d"), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "supervisor", "classify", str(log)],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "ValueError: b\\xe4d record 7" in done.stdout


def test_a_secret_at_the_end_of_the_last_line_told_is_taken_out(tmp_path: Path) -> None:
    """Half of it would not be known as one."""
    secret = "sEcReTzz99887766aabbccddeeff0011"
    log = tmp_path / "log"
    log.write_text(f"{'y' * 280} {secret}\n")
    done = subprocess.run(
        [sys.executable, "-m", "supervisor", "classify", str(log)],
        env={**os.environ, "WANDB_API_KEY": secret},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "the log ends with: yyy" in done.stdout
    assert "sEcR" not in done.stdout
