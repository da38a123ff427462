"""What is passed over by its plain strings is what the regular expression does not match."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.diagnosis import survival
from supervisor.diagnosis.rules import RULES
from supervisor.diagnosis.searching import Searched, needed
from tests.corpus.cases import PROBES, read_cases

PATTERNS = [
    *(pattern for rule in RULES for pattern in (*rule.patterns, *rule.frames)),
    *(each._source for each in vars(survival).values() if isinstance(each, Searched)),
]
TEXTS = [case.output[-600:] for case in read_cases(PROBES)[::2]]


@pytest.mark.parametrize(
    ("source", "strings"),
    [
        ("(?i)Out of (?:memory|space)", {"out of "}),
        ("(?i)no[wt] here|Later", {" here", "later"}),
        (r"[Cc]heck\d+", {"check"}),
        ("(?:lost|gone)+ for (?:good)?", {" for "}),
        (r"(?:abc)?d?|x", set()),
        (r"\d+", set()),
        ("\u00e9t\u00e9", {"t"}),
        ("(?<=abc)x(?!def)", {"x"}),
    ],
)
def test_the_strings_without_which_it_does_not_match(source: str, strings: set[str]) -> None:
    assert needed(source) == strings


def matched(source: str) -> st.SearchStrategy[tuple[str, str]]:
    return st.tuples(st.just(source), st.from_regex(source))


@given(st.sampled_from(PATTERNS).flatmap(matched))
def test_what_an_expression_matches_is_found(given: tuple[str, str]) -> None:
    source, text = given
    found = Searched(source).search(text)
    assert found is not None
    assert found.span() == re.search(source, text).span()  # type: ignore[union-attr]


def test_the_same_is_found_in_real_failures() -> None:
    for source in PATTERNS:
        searched = Searched(source)
        assert all(bool(searched.search(each)) == bool(re.search(source, each)) for each in TEXTS)


@pytest.mark.parametrize("letter", ["\u017f", "\u212a", "\u0130", "\u0131"])
def test_letters_that_are_none_of_ascii_match_as_ever(letter: str) -> None:
    for word in ("sad", "kind", "in"):
        source, text = f"(?i){word}", letter + word[1:]
        assert bool(Searched(source).search(text)) == bool(re.search(source, text))


def test_most_rules_are_not_searched_in_an_error_that_none_knows() -> None:
    """A search ignores the case and has many alternatives: time goes there."""
    searched = [Searched(pattern) for rule in RULES for pattern in rule.patterns]
    found = [each for each in searched if each.search("ValueError: a b c")]
    assert sum("_compiled" in vars(each) for each in searched) < len(found) + 0.2 * len(searched)
