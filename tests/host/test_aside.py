"""What never answers holds up nobody for longer than a deadline, and costs one thread."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.host.aside import Aside


class Stuck:
    """A file system that hangs until it is released."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.asked = 0

    def look(self) -> int:
        self.asked += 1
        self.released.wait()
        return self.asked


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    found = Stuck()
    yield found
    found.released.set()


def test_an_answer_is_passed_on_and_so_is_an_error(tmp_path: Path) -> None:
    place = Aside("disk")
    assert place.ask(lambda: 7) == 7
    with pytest.raises(FileNotFoundError):
        place.ask((tmp_path / "none").read_bytes)
    assert place.ask(lambda: None) is None


def test_silence_ends_with_the_deadline_and_is_told(stuck: Stuck) -> None:
    place = Aside("/mnt/checkpoints", deadline=0.05)
    with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s.*/mnt/checkpoints"):
        place.ask(stuck.look)


def test_a_place_that_is_stuck_is_not_asked_again_until_it_answers(stuck: Stuck) -> None:
    place = Aside("disk", deadline=0.05)
    with pytest.raises(TimeoutError):
        place.ask(stuck.look)
    before = set(threading.enumerate())
    began = time.monotonic()
    for _ in range(100):
        with pytest.raises(TimeoutError):
            place.ask(stuck.look)
    assert time.monotonic() - began < 2, "only the first question waits"
    assert stuck.asked == 1
    assert set(threading.enumerate()) <= before
    stuck.released.set()
    while any(thread.name == "aside: disk" for thread in threading.enumerate()):
        time.sleep(0.001)
    assert Aside("disk").ask(lambda: 8) == 8
    assert place.ask(lambda: 9) == 9


def test_a_signal_is_heard_meanwhile(stuck: Stuck) -> None:
    heard: list[int] = []

    def handle(number: int, frame: object) -> None:
        heard.append(number)
        stuck.released.set()

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        assert Aside("disk", deadline=60.0).ask(stuck.look) == 1
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert heard == [signal.SIGUSR1]


def test_where_no_thread_can_be_started_there_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the container's pids.max is reached: the job goes on, as with any silence."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    place = Aside("place")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(TimeoutError, match="can't start new thread"):
            place.ask(lambda: 7)
    assert place.ask(lambda: 7) == 7
