"""What a restart budget remembers of failures."""

from __future__ import annotations

import pytest

from supervisor.core.budget import Budget
from supervisor.core.policy import PhasePolicy
from supervisor.diagnosis.success import Success

LIMITED = PhasePolicy("p", 3, 3, Success())
UNLIMITED = PhasePolicy("p", 3, 3, Success(), repeated_failure_limit=0)


@pytest.mark.parametrize(("signature", "policy"), [(None, LIMITED), ("E-1", UNLIMITED)])
def test_what_can_never_end_the_job_is_not_remembered(
    signature: str | None, policy: PhasePolicy
) -> None:
    assert Budget().failed(signature, policy) == Budget()


def test_repetitions_are_counted_by_signature_until_there_is_progress() -> None:
    budget = Budget()
    for signature in ("E-1", "E-2", None, "E-1"):
        budget = budget.failed(signature, LIMITED)
    assert [budget.repetitions(one) for one in ("E-1", "E-2", "E-3", None)] == [2, 1, 0, 0]
    assert budget.committed(4).repetitions("E-1") == 0
