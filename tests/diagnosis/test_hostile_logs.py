"""Outputs that are meant to break the judgement: it answers, soon, with what can be written."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from supervisor.cli.explained import as_yaml
from supervisor.diagnosis.explanation import explain
from supervisor.diagnosis.failure import Evidence, RankEvidence, WorkerExit
from supervisor.diagnosis.hints import hints_of, is_wordless
from supervisor.diagnosis.rootcause import chain_of_record
from supervisor.diagnosis.rules import RULES
from supervisor.diagnosis.signature import signature
from supervisor.diagnosis.structured_codes import codes_of
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.survival import SignsOfWork
from supervisor.diagnosis.traceback_text import TracebackReader
from supervisor.diagnosis.verdicts import judge
from supervisor.protocol.failure_record import ExceptionInfo, FailureRecord

FRAME = '  File "/app/train.py", line 3, in f'
"""With what follows, an error of a program."""
_MAX_CPU = 12
"""Seconds of CPU time; an expression that is quadratic in a line needs several times as many."""
ENDLESS = {
    "a prefix of digits before a progress bar": "1" * 60_000 + "\r" + FRAME + "\n",
    "prefixes of digits": ("1" * 60_000 + "[" + FRAME + "\n") * 9,
}
LONG = 200_000
"""Characters: far more than a line may have, for a quadratic expression never to come to an end."""
CALLBACK = " callback" * (LONG // 18) + " error" * (LONG // 12)
RECORD = FailureRecord(0, 0.0, None, None, (ExceptionInfo("E", (), CALLBACK, "raised"),), "")
QUESTIONS: dict[str, Callable[[], object]] = {
    "an error of a callback": lambda: chain_of_record(RECORD),
    "an error of blanks": lambda: is_wordless(f"ValueError: {' ' * LONG}x"),
    "a line of marks": lambda: hints_of(["", "f()", "^" * LONG + "!", "E"], None, 3),
    "a clock of colons": lambda: SignsOfWork([f"2026-11-22 1{':' * LONG}"]),
    "a line of dashes": lambda: list(TracebackReader(["-" * LONG]).chains()),
    "an error of one name": lambda: codes_of("ValueError", "mysql" * (LONG // 5)),
}
HALVES = (
    "Traceback (most recent call last):\n",
    '  File "/app/tr\ud800ain.py", line 3, in ma\udc80in\n',
    "ValueError: bad \ud800 thing\n",
)


def evidence(output: str) -> Evidence:
    return Evidence((RankEvidence(WorkerExit(0, code=1), output=output),))


@pytest.mark.parametrize(
    "output",
    [
        "".join(json.dumps({"log": line, "stream": "stderr"}) + "\n" for line in HALVES),
        "".join(f'{{\n  "log": {json.dumps(line)}\n}}\n' for line in HALVES),
        "".join(
            json.dumps({"message": line, "pod": f"a\ud800{number % 2}"}) + "\n"
            for number, line in enumerate(HALVES * 9)
        ),
    ],
)
def test_half_a_character_in_json_is_replaced(output: str) -> None:
    known = evidence(output)
    failure = judge(known, Success())
    explanation = explain(known, Success(), RULES)
    assert failure is not None
    assert explanation is not None
    assert failure.root_cause == "ValueError: bad \ufffd thing"
    assert failure.signature is not None
    failure.where.encode()
    assert explanation.changes
    as_yaml(explanation.changes[0]).encode()


def test_a_signature_is_made_of_any_text() -> None:
    assert signature("ValueError", "bad \ud800", (("/app/a\udc80.py", "f"),), None, None)


def test_a_proposed_rule_has_only_what_a_config_may_have() -> None:
    line = "ValueError: bad record \x9b2J in the shard"
    explanation = explain(
        evidence(f'Traceback (most recent call last):\n  File "/a.py", line 3, in f\n{line}\n'),
        Success(),
        RULES,
    )
    assert explanation is not None
    assert explanation.changes
    assert explanation.changes[0]["regex"] == "bad record"


@pytest.mark.parametrize("output", ENDLESS.values(), ids=ENDLESS)
def test_no_output_takes_long(output: str) -> None:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (_MAX_CPU, _MAX_CPU))

    done = subprocess.run(
        [sys.executable, "-m", "supervisor", "classify", "-", "--exit-code", "1"],
        input=output,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        preexec_fn=limited,
    )
    assert done.returncode == 0
    assert "verdict:" in done.stdout


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_no_expression_is_quadratic_in_a_line(question: Callable[[], object]) -> None:
    def over(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, over)
    signal.setitimer(signal.ITIMER_VIRTUAL, _MAX_CPU)
    try:
        question()
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
