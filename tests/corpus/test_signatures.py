"""Signatures of real failures: the same elsewhere, and another for each other cause."""

from __future__ import annotations

from collections import defaultdict

import pytest

from supervisor.diagnosis.rules import RULES
from supervisor.diagnosis.signature import normalised
from tests.corpus.cases import Judged, judge_together
from tests.corpus.precision import development
from tests.corpus.rewriting import elsewhere

TELLS_ITS_STEP = "composed-32"
"""Ends with exit code 1 after a line of a healthy job, which differs from step to step."""
READ_AS_CODES = {
    "curl-wrapper-503",
    "curl-wrapper-404",
    "gcs-429-object",
    "gcs-quota-429",
    "git-wrapper-dns",
    "timeout-wrapper-dump",
}
"""Their numbers and names are what they tell of the failure, though not in the form of a code: with
others they are other failures."""
MOVES_CODE = {"imp-circular", "abort-faulthandler-native"}
"""Name the path of their own code in words of their own."""
SLOW = pytest.mark.slow


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=SLOW), pytest.param(2, marks=SLOW)])
def test_on_other_hosts_with_other_paths_and_numbers_it_is_the_same(seed: int) -> None:
    passed_over = {TELLS_ITS_STEP, *READ_AS_CODES, *MOVES_CODE}
    other = {}
    for item in development():
        if item.case.incident is None and item.case.id not in passed_over:
            again = judge_together([elsewhere(item.case, seed)])
            told = (item.failure.rule, item.failure.signature)
            if (again.rule, again.signature) != told:
                other[item.case.id] = again
    assert other == {}


def test_another_cause_has_another_signature() -> None:
    """Of those with the same signature the rule that decides and the words are the same, too."""
    same: dict[str, list[Judged]] = defaultdict(list)
    for item in development():
        if item.failure.signature is not None and item.case.incident is None:
            same[item.failure.signature].append(item)
    for found in same.values():
        assert len({(item.failure.rule, item.failure.cause) for item in found}) == 1
        told = [each.failure for each in found if each.failure.root_cause != each.failure.exit]
        words = {normalised(failure.root_cause.partition(": ")[2]) for failure in told}
        assert len(words) <= 1
    assert len(same) > 0.9 * sum(map(len, same.values()))


def test_each_failure_with_a_text_has_a_signature() -> None:
    told = [
        item
        for item in development()
        if item.failure.root_cause != item.failure.exit and item.failure.rule != "hang"
    ]
    assert [item.case.id for item in told if item.failure.signature is None] == []


def test_those_that_are_transient_are_never_compared() -> None:
    rules = {rule.name: rule for rule in RULES}
    compared = {item.failure.rule for item in development() if item.failure.compared}
    assert not [name for name in compared if name in rules and rules[name].transient]
    certain = [item for item in development() if item.failure.is_certain]
    assert not any(item.failure.compared for item in certain)
