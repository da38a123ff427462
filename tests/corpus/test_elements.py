"""Each word, type and code of a rule is there for a failure that it decides about."""

from __future__ import annotations

import pytest

from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import judge
from tests.corpus.elements import Element, elements


@pytest.mark.parametrize("element", list(elements()), ids=lambda element: element.line[:60])
def test_a_rule_decides_about_each_of_its_elements(element: Element) -> None:
    failure = judge(element.evidence, Success(step=10**9))
    assert failure is not None
    assert failure.rule == element.rule
