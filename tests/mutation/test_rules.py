"""Whether the mutants of the rules are changes, and whether a missing test is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core.failure import Evidence, RankEvidence, WorkerExit
from supervisor.core.policy import Success
from supervisor.core.rules import RULES, Rule
from tests.core.test_rules_reached import EXAMPLES
from tests.mutation.rules import Known, RuleMutant, mutants, survivors

FULL = next(rule for rule in RULES if rule.name == "disk-full")
RULE = replace(FULL, patterns=("red", "green"), types=(), frames=(), codes=(), transient=False)


def known(line: str) -> Known:
    output = f'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n{line}\n'
    return Evidence((RankEvidence(WorkerExit(0, code=1), output=output),)), Success(step=10)


def test_each_mutant_changes_the_table_at_one_place() -> None:
    for mutant in mutants():
        changed = set(RULES) ^ set(mutant.of(RULES))
        assert {rule.name for rule in changed} == {mutant.name}
        assert len(changed) == (1 if mutant.rule is None else 2)


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


@pytest.mark.parametrize("rule", RULES[-1:], ids=lambda rule: rule.name)
def test_a_table_that_does_not_match_every_end_is_noticed(rule: Rule) -> None:
    without = RuleMutant(rule.name, "left out", None)
    assert not list(survivors([without], [(EXAMPLES[rule.name], Success(step=10))]))
