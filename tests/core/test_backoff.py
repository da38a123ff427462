"""The wait before a restart: how long, and the same for ever."""

from __future__ import annotations

import pytest

from supervisor.core.transitions import backoff_delay
from tests.core.history import policy


@pytest.mark.parametrize(
    ("failures", "salt", "seconds"),
    [
        (0, "job/1", 0.0),
        (1, "job/1", 0.0),
        (2, "job/1", 9.975851),
        (2, "job/2", 11.617007),
        (4, "job/7", 41.443357),
    ],
)
def test_a_replay_waits_as_long_as_was_waited(failures: int, salt: str, seconds: float) -> None:
    """The journal does not hold the length: whoever changes the jitter changes old histories."""
    assert backoff_delay(failures, policy(), salt=salt) == pytest.approx(seconds, abs=1e-6)


def test_it_is_bounded_whatever_the_count() -> None:
    given = policy()
    assert backoff_delay(10_000, given, salt="x") <= given.backoff_max * (1 + given.backoff_jitter)
