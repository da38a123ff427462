"""Whether a program has trained as far as a committed step."""

from __future__ import annotations

import pytest

from supervisor.core.trained import trained_to


@pytest.mark.parametrize(
    ("saved", "step", "heard_after", "expected"),
    [
        (None, None, None, None),
        (None, 12, None, None),  # in a bucket nothing says when
        (None, 12, 3.0, False),  # a base model was copied, and the training began
        (None, 12, -60.0, True),  # the checkpoint counts examples
        (None, 12, 0.5, True),  # the output was read late
        (None, 999, 3.0, True),  # counted from 0
        (None, 990, 3.0, True),
        (None, 989, 3.0, False),
        (None, 1000, 3.0, True),
        (1000, 12, 3.0, True),
        (1000, None, None, True),
        (10, 12, 3.0, False),
    ],
)
def test_after_its_last_save_a_program_tells_no_lower_steps(
    saved: int | None, step: int | None, heard_after: float | None, *, expected: bool | None
) -> None:
    assert trained_to(1000, saved, step, heard_after) is expected
