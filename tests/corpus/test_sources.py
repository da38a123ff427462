"""Each certain rule is earned: it was right about failures of at least two independent sources."""

from __future__ import annotations

import re

import pytest

from supervisor.diagnosis.rules import RULES, Rule
from supervisor.diagnosis.rules.sources import SOURCES
from tests.corpus.precision import PUBLISHED, development, rewritten

CERTAIN = [rule for rule in RULES if rule.certain]


def test_every_rule_says_where_its_words_come_from() -> None:
    assert sorted(SOURCES) == sorted(rule.name for rule in RULES)
    assert all(SOURCES.values())


def test_the_cases_that_a_source_names_are_there_and_decided_by_the_rule() -> None:
    decided = {
        (item.failure.rule, name)
        for item in development()
        for name in (item.case.id, item.case.incident)
    }
    for rule, source in SOURCES.items():
        for words in re.findall(r"\bcases? ([^;]+)", source):
            assert [name for name in words.split(", ") if (rule, name) not in decided] == []


@pytest.mark.parametrize("rule", CERTAIN, ids=lambda rule: rule.name)
def test_a_certain_rule_has_two_independent_examples_and_no_counterexample(rule: Rule) -> None:
    """But for the types that our own trainer raises: nothing else is called so, and its own tests
    raise them."""
    mine = [
        item for item in development() if item.failure.rule == rule.name and item.failure.is_certain
    ]
    assert all(item.right for item in mine)
    if not SOURCES[rule.name].startswith(("trainer/", "supervisor/config/training/")):
        assert len({item.failure.signature for item in mine}) >= 2


def test_the_published_precision_is_the_current_one() -> None:
    """`python -m tests.corpus.precision` writes it."""
    published = PUBLISHED.read_text(encoding="utf-8")
    assert rewritten(published, development()) == published
