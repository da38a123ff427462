"""Which host is named as the one that the others wait for."""

from __future__ import annotations

from supervisor.core.events import Straggler
from supervisor.engines.straggler_watch import StragglerWatch
from supervisor.protocol.messages import HostTimeMessage


def told(watch: StragglerWatch, *seconds: float, attempt: int = 1, step: float = 1.0) -> object:
    """Each rank tells its time once; returns what is found, if anything."""
    heard = [
        watch.hear(attempt, rank, HostTimeMessage(one, step)) for rank, one in enumerate(seconds)
    ]
    return next((found for found in heard if found is not None), None)


def test_a_host_that_stays_behind_its_peers_is_named_once() -> None:
    watch = StragglerWatch()
    found = [told(watch, 0.1, 0.12, 0.7, 0.08) for _ in range(9)]
    assert found.count(None) == 8
    assert found[4] == Straggler(2, 0.7, 0.1, 1.0)
    assert told(watch, 0.1, 0.12, 0.7, 0.08, attempt=2) is None, "counted anew"
    assert [told(watch, 0.1, 0.12, 0.7, 0.08, attempt=2) for _ in range(4)][-1] is not None


def test_a_host_that_is_slow_now_and_then_is_not_named() -> None:
    watch = StragglerWatch()
    for turn in range(30):
        assert told(watch, 0.1, 0.7 if turn % 5 else 0.1) is None


def test_slow_together_or_by_little_is_not_behind() -> None:
    for seconds in ((0.7, 0.7), (0.4, 0.7), (0.01, 0.15), (0.5,)):
        watch = StragglerWatch()
        assert not any(told(watch, *seconds) for _ in range(20)), seconds
