"""A FATAL that is a guess in real runs: one more attempt, and what a person reads of it."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.forked import forked
from tests.running import Result, Start, command_config

Supervise = Callable[..., Result]

MISSING = "open({path!r}).close()"
HEADER = "Traceback (most recent call last):\n"


def program(model_dir: Path, code: str, **restart: Any) -> dict[str, Any]:
    """A job whose command is `python -c CODE`."""
    given = {"max_num_restarts": 9, **restart}
    return command_config(model_dir, restart=given, argv=[sys.executable, "-S", "-E", "-c", code])


def failures(result: Result) -> list[tuple[str, bool]]:
    """The verdict on each attempt, and whether it is certain, as summary.json tells."""
    told = [attempt["failure"] for attempt in result.summary["attempts"]]
    return [(failure["verdict"], failure["certain"]) for failure in told]


def test_what_is_missing_each_time_is_tried_twice(supervise: Supervise, model_dir: Path) -> None:
    code = MISSING.format(path=f"{model_dir}/data")
    # With its jitter of 20% the wait of 0.05 s is told as 0.0 s in one job and as 0.1 s in another.
    result = supervise(program(model_dir, code, backoff={"first": 0.02}))
    assert (result.code, result.attempts) == (70, 2), result.log
    assert failures(result) == [("FATAL", False)] * 2
    signature = result.summary["attempts"][0]["failure"]["signature"]
    assert result.has_event("verdict", code="missing-file", verdict="FATAL", certain=False)
    first, second = result.events("verdict-grounds", level="error")
    assert first["reason"].startswith("a guess: ")
    again = rf"one more attempt in 0\.[01] s; the same failure again .* \(signature {signature}\)"
    assert re.search(again, first["text"])  # the jitter decides how it is rounded
    assert "one more attempt" not in second["text"]
    end = (
        f"the same failure came twice: a file is missing or may not be used (signature {signature})"
    )
    assert result.event("job-ended", status="FAILED", code=70)["reason"].startswith(end)
    todo = [told["advice"] for told in result.events("advice")]
    assert len(todo) == 2
    assert all("Correct what the message names" in each for each in todo)
    assert end in result.err
    told = [json.loads(line) for line in (model_dir / "journal.jsonl").read_text().splitlines()]
    ends = [each["event"] for each in told if each.get("event", {}).get("kind") == "WorkersGone"]
    assert [end["failure"]["certain"] for end in ends] == [False, False]
    assert all(end["failure"]["grounds"].startswith("a guess: ") for end in ends)
    shown = forked("status", model_dir).stdout
    assert shown.startswith("FAILED: a file is missing or may not be used: ")
    assert "\nbefore that, attempt 1: the same" in shown


def test_what_is_there_the_second_time_goes_on(supervise: Supervise, model_dir: Path) -> None:
    code = f"import os; there = os.path.exists({f'{model_dir}/tried'!r}); " + (
        f"open({f'{model_dir}/tried'!r}, 'w').close(); there or open('/no/such/file')"
    )
    result = supervise(program(model_dir, code))
    assert (result.code, result.attempts) == (0, 2), result.log
    assert "the same failure came" not in result.event("job-ended")["reason"]


def test_an_assertion_of_the_own_code_ends_the_job_at_once(
    supervise: Supervise, model_dir: Path, tmp_path: Path
) -> None:
    train = tmp_path / "train.py"
    train.write_text("assert 2 > 3, 'two is not more than three'\n")
    config = program(model_dir, "")
    config["trainer"]["command"]["argv"] = [sys.executable, str(train)]
    result = supervise(config)
    assert (result.code, result.attempts) == (70, 1), result.log
    assert failures(result) == [("FATAL", True)]
    assert result.has_event("verdict", code="own-assertion", verdict="FATAL", certain=True)
    grounds = result.event("verdict-grounds", level="error")
    assert grounds["reason"].startswith("certain: ")
    assert "one more attempt" not in grounds["text"]


def test_where_no_restart_is_left_a_guess_ends_the_job(
    supervise: Supervise, model_dir: Path
) -> None:
    code = MISSING.format(path=f"{model_dir}/data")
    result = supervise(program(model_dir, code, max_num_restarts=0))
    assert (result.code, result.attempts) == (70, 1), result.log
    why = "whether it would come again cannot be tried: the budget of 0 restarts"
    assert why in result.event("job-ended")["reason"]


@pytest.mark.parametrize(
    "script", ["exit 127", "./no-such-program", "echo 1 > made; chmod -x made; ./made"]
)
def test_a_shell_that_finds_no_program_is_tried_twice(
    supervise: Supervise, model_dir: Path, script: str
) -> None:
    config = command_config(model_dir, restart={"max_num_restarts": 9})
    config["trainer"]["command"]["argv"] = ["sh", "-c", f"cd {model_dir}; {script}"]
    result = supervise(config)
    assert (result.code, result.attempts) == (70, 2), result.log
    assert failures(result) == [("FATAL", False)] * 2


def test_two_guesses_that_differ_are_each_tried_again(
    supervise: Supervise, model_dir: Path
) -> None:
    code = (
        f"import os; path = {f'{model_dir}/tries'!r}; open(path, 'a').write('x')\n"
        "if os.path.getsize(path) == 1: raise FileNotFoundError('no such file: data')\n"
        "raise PermissionError('may not be read: data')"
    )
    result = supervise(program(model_dir, code))
    assert (result.code, result.attempts) == (70, 3), result.log


def test_a_supervisor_killed_while_it_waits_for_the_one_more_attempt(
    start: Start, model_dir: Path
) -> None:
    config = program(
        model_dir, MISSING.format(path=f"{model_dir}/data"), backoff={"first": 3600.0, "max": "1h"}
    )
    first = start(config)
    first.wait_for_event("backoff")
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    again = start(config)
    again.wait_for_event("backoff")
    again.signal(signal.SIGTERM)
    assert again.result().code == 75
    config["trainer"]["init"]["autorestart"]["backoff"] = {"first": 0.05}
    last = start(config).result()
    assert (last.code, last.attempts) == (70, 2), last.log
    assert "the same failure came twice" in last.event("job-ended")["reason"]


def test_half_a_character_in_a_json_log_stops_no_supervisor(
    supervise: Supervise, model_dir: Path
) -> None:
    """It is in a frame of the program, which the signature is made of."""
    lines = (HEADER, '  File "/app/\ud800.py", line 3, in f\n', "ValueError: bad \ud800\n")
    log = "".join(json.dumps({"log": line, "stream": "stderr"}) + "\n" for line in lines)
    result = supervise(
        program(model_dir, f"print({log!r}, end='', flush=True); raise SystemExit(1)")
    )
    assert (result.code, result.attempts) == (70, 2), result.log
    assert failures(result) == [("FATAL", False)] * 2
