"""The examples that `supervise rules` and the cookbook show are parts of real logs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from supervisor.diagnosis.failure import Evidence
from supervisor.diagnosis.rules import RULES
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import judge
from tests.corpus import rule_examples
from tests.corpus.cases import DEVELOPMENT, Case, read_cases
from tests.corpus.rule_examples import CUT, FILE, MARK
from tests.diagnosis.test_rules_reached import EXAMPLES as TESTED

SHOWN: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
OF_THE_CORPUS = [name for name, each in SHOWN.items() if ".jsonl" in each["source"]]


def cases() -> dict[str, Case]:
    return {
        f"tests/corpus/{path.name}, {case.id}": case
        for path in DEVELOPMENT
        for case in read_cases(path)
    }


CASES = cases()


def test_each_rule_has_one_and_most_are_of_the_corpus() -> None:
    assert list(SHOWN) == [rule.name for rule in RULES]
    assert len(OF_THE_CORPUS) > 90


@pytest.mark.parametrize("rule", OF_THE_CORPUS)
def test_its_lines_are_in_the_log_in_their_order(rule: str) -> None:
    case = CASES[SHOWN[rule]["source"]]
    (rank,) = SHOWN[rule]["ranks"]
    left = iter(case.output.splitlines())
    for line in rank["lines"]:
        if line != MARK:
            assert any(said.rstrip().startswith(line.removesuffix(CUT)) for said in left), line
    assert rank["ended"] == str(case.ended)


@pytest.mark.parametrize("rule", OF_THE_CORPUS)
def test_its_rule_decides_about_what_is_shown(rule: str) -> None:
    case, (rank,) = CASES[SHOWN[rule]["source"]], SHOWN[rule]["ranks"]
    assert rule_examples.is_judged_by(rule, rule_examples.evidence_of(case, rank["lines"]))


@pytest.mark.parametrize("rule", sorted(SHOWN.keys() - set(OF_THE_CORPUS)))
def test_else_it_is_the_example_of_the_test_of_its_rule(rule: str) -> None:
    evidence: Evidence = TESTED[rule]
    told = [(str(rank.exit), rank.output.splitlines()) for rank in evidence.ranks]
    assert told == [(rank["ended"], rank["lines"]) for rank in SHOWN[rule]["ranks"]]
    failure = judge(evidence, Success(step=10))
    assert failure is not None
    assert failure.rule == rule


def test_the_file_is_what_would_be_written_now() -> None:
    assert rule_examples.examples() == SHOWN, "write it: python -m tests.corpus.rule_examples"
