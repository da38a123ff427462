"""Tests that the mutants of the rules are changes, and that a missing test is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.diagnosis.failure import Evidence, RankEvidence, WorkerExit
from supervisor.diagnosis.rules import RULES, Rule
from supervisor.diagnosis.success import Success
from tests.diagnosis.test_rules_reached import EXAMPLES
from tests.mutation.rules import Known, RuleMutant, mutants, survivors

FULL = next(rule for rule in RULES if rule.name == "disk-full")
RULE = replace(FULL, patterns=("red", "green"), types=(), frames=(), codes=(), transient=False)


def known(line: str) -> Known:
    output = f'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n{line}\n'
    return Evidence((RankEvidence(WorkerExit(0, code=1), output=output),)), Success(step=10)


def test_each_mutant_changes_the_rules_that_it_names() -> None:
    for mutant in mutants():
        changed = set(RULES) - set(mutant.of(RULES))
        assert {rule.name for rule in changed} == set(mutant.changed)


def test_a_list_that_rules_share_is_changed_for_all_of_them() -> None:
    twin = replace(RULE, name="twin")
    [mutant] = [each for each in mutants([RULE, twin]) if each.what == "patterns without 'red'"]
    assert [rule.patterns for rule in mutant.of([RULE, twin])] == [("green",), ("green",)]


def test_a_rule_whose_only_pattern_is_left_out_would_match_anything() -> None:
    found = [mutant.what for mutant in mutants([replace(RULE, patterns=("red",))])]
    assert not [what for what in found if what.startswith("patterns")]


@pytest.mark.parametrize(
    ("lines", "missed"),
    [
        ([], {"left out", "patterns without 'red'", "patterns without 'green'"}),
        (["RuntimeError: red"], {"patterns without 'green'"}),
        (["RuntimeError: red", "RuntimeError: green"], set()),
    ],
)
def test_what_no_failure_shows_survives(lines: list[str], missed: set[str]) -> None:
    table = tuple(replace(rule, name=f"other {rule.name}") for rule in RULES)
    found: list[RuleMutant] = [m for m in mutants([RULE]) if "=" not in m.what]
    left = survivors(found, [known(line) for line in lines], (RULE, *table))
    assert {mutant.what for mutant in left} == missed


def test_a_flag_that_no_failure_needs_survives() -> None:
    table = tuple(replace(rule, name=f"other {rule.name}") for rule in RULES)
    rule = replace(RULE, hardware=True)
    found = [m for m in mutants([rule]) if m.what == "hardware=False"]
    assert list(survivors(found, [known("RuntimeError: blue")], (rule, *table))) == found
    assert not list(survivors(found, [known("RuntimeError: red")], (rule, *table)))


@pytest.mark.parametrize("rule", RULES[-1:], ids=lambda rule: rule.name)
def test_a_table_that_does_not_match_every_end_is_noticed(rule: Rule) -> None:
    without = RuleMutant("left out", {rule.name: None})
    assert not list(survivors([without], [(EXAMPLES[rule.name], Success(step=10))]))
