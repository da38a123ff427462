"""A source that is broken for a day is still heard when it announces a preemption."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from supervisor.adapters.platforms.preemption import PreemptionWatch
from supervisor.ports import Announcement

BOUND = 60.0


class BrokenSource:
    """Fails as often as it is told to, and then announces a preemption."""

    pause = 0.0
    quick = True

    def __init__(self, error: Exception, failures: int) -> None:
        self._error = error
        self._left = failures

    def __str__(self) -> str:
        return "the broken source"

    def look(self) -> Announcement | None:
        if self._left == 0:
            return Announcement("outbid")
        self._left -= 1
        raise self._error


class Heard:
    """What a watch said, and whether the announcement came."""

    def __init__(self) -> None:
        self.doomed: list[str] = []
        self.told: list[str] = []
        self.came = threading.Event()

    def on_doomed(self, text: str, notice: float | None) -> None:
        self.doomed.append(text)
        self.came.set()

    @contextmanager
    def watching(self, source: BrokenSource) -> Iterator[PreemptionWatch]:
        watch = PreemptionWatch([source], self.on_doomed, self.told.append, self.told.append, str)
        try:
            yield watch
        finally:
            watch.close()


def test_a_source_that_failed_more_than_a_thousand_times_is_still_heard() -> None:
    """2.0 ** 1024 is more than a float holds."""
    heard = Heard()
    with heard.watching(BrokenSource(OSError("status 503"), 1100)) as watch:
        assert heard.came.wait(BOUND), heard.told
        assert watch.announced_machine_end(BOUND) == "outbid"
    assert heard.doomed == ["outbid"]
    again = "we keep asking it"
    assert heard.told == [f"the broken source does not answer (status 503); {again}"]


@pytest.mark.parametrize(
    ("error", "why"),
    [(ValueError("no number"), "ValueError: no number"), (RuntimeError(), "RuntimeError: ")],
)
def test_any_error_of_a_source_is_told_and_the_source_is_asked_again(
    error: Exception, why: str
) -> None:
    heard = Heard()
    with heard.watching(BrokenSource(error, 3)):
        assert heard.came.wait(BOUND), heard.told
    assert heard.told == [f"the broken source does not answer ({why}); we keep asking it"]


def test_a_source_that_fails_once_or_twice_is_nobody_s_concern() -> None:
    heard = Heard()
    with heard.watching(BrokenSource(OSError("status 503"), 2)):
        assert heard.came.wait(BOUND)
    assert not heard.told
