"""What the values of a policy say of themselves."""

from __future__ import annotations

import pytest

from supervisor.core.exit_codes import ExitCode
from supervisor.diagnosis.success import Success


@pytest.mark.parametrize(
    ("success", "is_proof"),
    [
        (Success(), False),
        (Success(exit_code=3), False),
        (Success(step=10), True),
        (Success(pattern="done"), True),
        (Success(file="done"), True),
    ],
)
def test_what_proves_that_the_work_is_done(success: Success, is_proof: bool) -> None:
    assert success.is_proof is is_proof


def test_which_ends_a_service_manager_makes_good() -> None:
    assert {code for code in ExitCode if code.run_again} == {
        ExitCode.INTERNAL,
        ExitCode.NO_CAPACITY,
        ExitCode.CANNOT_WRITE,
        ExitCode.DRAINED,
    }
