"""What the check of a machine that is taken away makes of what came when."""

from __future__ import annotations

import pytest

from deploy.acceptance.bench import CheckFailedError, CheckSkippedError
from deploy.acceptance.preempt import Course


@pytest.mark.parametrize(
    ("course", "code", "error", "why"),
    [
        (Course(None, 2.0, 3.0), 75, CheckSkippedError, "nothing announced"),
        (Course(None, 2.0, None), 75, CheckSkippedError, "nothing announced"),
        (Course(None, None, None), 75, CheckSkippedError, "nothing announced"),
        (Course(None, 2.0, 3.0), 76, CheckFailedError, "76 instead of 75"),
        (Course(2.0, 1.0, 3.0), 75, CheckFailedError, "SIGTERM came before"),
        (Course(2.0, 3.0, 1.0), 75, CheckFailedError, "no checkpoint was committed after"),
        (Course(2.0, None, None), 75, CheckFailedError, "no checkpoint was committed after"),
    ],
)
def test_it_passes_only_with_an_announcement_and_a_save_after_it(
    course: Course, code: int, error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        course.judge(code)


@pytest.mark.parametrize("signalled", [None, 2.0, 4.0])
def test_a_signal_after_the_announcement_need_not_come(signalled: float | None) -> None:
    Course(1.0, signalled, 3.0).judge(75)
