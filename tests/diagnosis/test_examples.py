"""The examples of the config's rules: what passes, and what is told of what does not."""

from __future__ import annotations

import json

import pytest

from supervisor.diagnosis.examples import failed
from supervisor.diagnosis.failure import Evidence, Failure, RankEvidence, WorkerExit
from supervisor.diagnosis.rules import RULES
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import judge
from supervisor.prepare import config_rules
from tests.config.files import load, problems, with_restart

LOCKED = '{type: "mylib.*Error", regex: "shard \\\\d+ is locked", verdict: RESTART'
RAISED = '"Traceback (most recent call last):\\nmylib.LockError: shard 7 is locked"'
OTHER = '"Traceback (most recent call last):\\nmylib.LockError: it is locked"'
CODED = "{exit_code: [3, 4], stage: RESTORING, verdict: FATAL"
SLOW = "{regex: '(?:a|aa)+ (\\d+)', verdict: RESTART"
ENDLESS = "a" * 60 + "!"


def why(*rules: str) -> list[tuple[int, int, str]]:
    """The examples of these rules that fail."""
    text = with_restart("max_num_restarts: 3\nrules:\n" + "".join(f"- {rule}\n" for rule in rules))
    phase = load(text).phases[0]
    examples = [rule.examples for rule in phase.init.autorestart.rules]
    return list(failed(examples, (*config_rules(phase), *RULES), Success()))


@pytest.mark.parametrize(
    "rule",
    [
        f"{LOCKED}, examples: [{RAISED}]}}",
        f"{LOCKED}, examples: [{{text: {RAISED}, exit_code: 4, stage: SAVING}}]}}",
        f"{LOCKED}, examples: [{{text: {OTHER}, decides: false}}]}}",
        f"{LOCKED}, examples: [{{text: {OTHER}, decides: false, expect: RESTART}}]}}",
        f"{LOCKED}, examples: [{{text: {RAISED}, expect: RESTART}}]}}",
        f"{LOCKED}, examples: [{{text: 'KeyError: 7', decides: false, expect: FATAL}}]}}",
        f"{LOCKED}, examples: ['mylib.LockError: shard 7 is locked']}}",
        f"{CODED}, examples: [{{exit_code: 4, stage: RESTORING}}]}}",
        f"{CODED}, examples: [{{exit_code: 0, stage: RESTORING, decides: false}}]}}",
        "{signal: SIGKILL, verdict: FATAL, examples: [{signal: SIGKILL}]}",
        "{regex: locked, verdict: FATAL, examples: ['it is locked']}",
    ],
)
def test_an_example_that_is_judged_as_it_should_be(rule: str) -> None:
    assert why(rule) == []


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (f"{LOCKED}, examples: [{OTHER}]}}", "no error in it has that text (regex)"),
        (f"{LOCKED}, examples: ['shard 7 is locked']}}", "where a line begins with it"),
        (f"{LOCKED}, examples: [{{text: {RAISED}, decides: false}}]}}", "by another rule, but"),
        (f"{LOCKED}, examples: [{{text: {RAISED}, expect: FATAL}}]}}", "should be FATAL, but rule"),
        (f"{LOCKED}, examples: [{{text: {RAISED}, signal: SIGKILL}}]}}", "does not count: it was"),
        (
            f"{CODED}, examples: [{{exit_code: 3}}]}}",
            "(RESTART, on 'exit code 3'): its stage is not",
        ),
        (f"{CODED}, examples: [{{stage: RESTORING, text: x}}]}}", "it ends with exit code 1"),
        (f"{CODED}, examples: [{{stage: RESTORING, exit_code: 0}}]}}", "exit code of success"),
        (
            f'{LOCKED}, examples: ["Traceback (most recent call last):\\nmylib.LockError: x\\n'
            'Traceback (most recent call last):\\nValueError: shard 7 is locked"]}',
            "no error meets all conditions of this rule together",
        ),
    ],
)
def test_an_example_that_is_not_is_told_with_the_reason(rule: str, reason: str) -> None:
    ((number, index, told),) = why(rule)
    assert (number, index) == (0, 0)
    assert reason in told


def test_a_rule_that_comes_before_is_named() -> None:
    first = "{name: first, regex: shard, verdict: FATAL}"
    ((number, index, told),) = why(first, f"{LOCKED}, examples: [{RAISED}]}}")
    assert (number, index) == (1, 0)
    assert "rule 'first' decides (FATAL, on 'mylib.LockError: shard 7 is locked')" in told
    assert told.endswith(": that rule comes before this one")


def test_an_error_that_is_not_the_root_cause_is_told() -> None:
    head = 'Traceback (most recent call last):\n  File "a.py", line 1, in'
    text = f"{head} load\nRuntimeError: bad pipe\ngoing on\n{head} <module>\nValueError: b is 3\n"
    ((_, _, told),) = why(f"{{regex: bad pipe, verdict: RESTART, examples: [{json.dumps(text)}]}}")
    assert "about 'RuntimeError: bad pipe', which is not the root cause: it was printed" in told


def test_a_slow_pattern_is_asked_once() -> None:
    slow = f"{SLOW}, examples: ['{ENDLESS}', '{ENDLESS}', '{ENDLESS}']}}"
    found = why(slow, f"{LOCKED}, examples: ['{ENDLESS}', {RAISED}]}}")
    assert [(number, index) for number, index, _ in found] == [(0, 0), (1, 0)]
    assert "takes too long in text that begins 'aaa" in found[0][2]


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        (
            "{regex: x, verdict: RESTART, certain: true}",
            "c.yaml:7: trainer.init.autorestart.rules[0].certain: is only for verdict FATAL, not "
            "RESTART: take it out, or make the verdict FATAL (value true)",
        ),
        (
            "{regex: x, verdict: POLICY, certain: false}",
            "rules[0].certain: is only for verdict FAT",
        ),
        (
            "{regex: x, verdict: FATAL, transient: true}",
            "rules[0].transient: is not for verdict FATAL: take it out, or make the verdict REST",
        ),
        (
            "{regex: x, verdict: FATAL, certain: yes}",
            "rules[0].certain: input should be a valid bo",
        ),
        ("{regex: x, verdict: FATAL, examples: x}", "rules[0].examples: is not a list (value"),
        (
            "{regex: x, verdict: FATAL, examples: [{}]}",
            "examples[0]: give the text of a log, an ex",
        ),
        (
            "{regex: x, verdict: FATAL, examples: ['']}",
            "examples[0]: string should have at least 1",
        ),
        ("{regex: x, verdict: FATAL, examples: [{txt: x}]}", 'unknown key (value "x"); did you me'),
        (
            "{regex: x, verdict: FATAL, examples: [{exit_code: 1, signal: SIGKILL}]}",
            "give exit_code or signal: a process ends by one of them",
        ),
        (
            "{regex: x, verdict: FATAL, examples: [{signal: KILL}]}",
            "'KILL' is not a signal such as",
        ),
    ],
)
def test_what_is_wrong_with_a_rule_is_told(rule: str, complaint: str) -> None:
    (told,) = problems(with_restart(f"max_num_restarts: 3\nrules:\n- {rule}"))
    assert complaint in told


def judged_by(rule: str, output: str) -> Failure:
    phase = load(with_restart(f"max_num_restarts: 3\nrules:\n- {rule}")).phases[0]
    evidence = Evidence((RankEvidence(WorkerExit(0, code=1), output=output),))
    failure = judge(evidence, Success(), (*config_rules(phase), *RULES))
    assert failure is not None
    return failure


@pytest.mark.parametrize(
    "output", ["the shard is gone", json.loads(RAISED) + "\nthe shard is gone"]
)
@pytest.mark.parametrize(
    ("certain", "expected"), [("", True), (", certain: true", True), (", certain: false", False)]
)
def test_a_fatal_rule_of_ones_own_is_certain_unless_it_says_otherwise(
    output: str, certain: str, expected: bool
) -> None:
    failure = judged_by(f"{{regex: 'shard', verdict: FATAL{certain}}}", output)
    assert (failure.rule, failure.certain) == ("own-1", expected)
    assert failure.is_guess is not expected
    assert failure.grounds.startswith("certain: your rule" if expected else "a guess: your rule")


def test_a_rule_with_another_verdict_is_never_certain() -> None:
    failure = judged_by("{regex: shard, verdict: RESTART}", "the shard is gone")
    assert (failure.certain, failure.grounds) == (False, "")
