"""A main loop that hangs is left alone until somebody asks it to stop, and then ended in time."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from supervisor.adapters.kernel.stall import watched

TICK = 0.02


@dataclass
class FakeLoop:
    """See `ports.MainLoopView`."""

    busy_since: float | None = None
    is_stop_requested: bool = False


@dataclass
class Seen:
    """What was done."""

    terminated: int = 0
    ended: list[str] = field(default_factory=list)
    is_over: threading.Event = field(default_factory=threading.Event)

    def terminate(self) -> None:
        self.terminated += 1

    def end(self, why: str) -> None:
        self.ended.append(why)
        self.is_over.set()


@pytest.fixture(autouse=True)
def deaf() -> Iterator[None]:
    """SIGTERM does nothing here."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    yield
    signal.signal(signal.SIGTERM, before)


def hang(loop: FakeLoop, seen: Seen, seconds: float, *, told: bool) -> None:
    with watched(loop, 5 * TICK, seen.terminate, seen.end, TICK):
        if told:
            os.kill(os.getpid(), signal.SIGTERM)
        seen.is_over.wait(seconds)


def test_a_loop_that_hangs_when_it_is_told_to_stop_is_ended() -> None:
    seen = Seen()
    hang(FakeLoop(busy_since=1.0), seen, 30.0, told=True)
    assert seen.terminated == 1
    assert "the main loop hangs in wait (threading.py), and was told to stop" in seen.ended[0]


def test_workers_that_were_told_are_not_told_again() -> None:
    seen = Seen()
    hang(FakeLoop(busy_since=1.0, is_stop_requested=True), seen, 30.0, told=False)
    assert (seen.terminated, len(seen.ended) > 0) == (0, True)


@pytest.mark.parametrize("loop", [FakeLoop(None, True), FakeLoop(1.0, False)])
def test_a_loop_that_waits_or_is_not_told_to_stop_is_left_alone(loop: FakeLoop) -> None:
    seen = Seen()
    hang(loop, seen, 40 * TICK, told=False)
    assert (seen.terminated, seen.ended) == (0, [])


def test_a_loop_that_is_busy_with_one_thing_after_the_other_does_not_hang() -> None:
    loop, seen = FakeLoop(busy_since=0.0), Seen()
    with watched(loop, TICK, seen.terminate, seen.end, 0.2):
        os.kill(os.getpid(), signal.SIGTERM)
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            loop.busy_since = time.monotonic()
            time.sleep(0.01)
    assert (seen.terminated, seen.ended) == (0, [])
