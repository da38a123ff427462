"""The next attempt waits for who still has a chip open: real processes, and a file for a chip."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.adapters.kernel.clock import SystemClock
from supervisor.adapters.kernel.reactor import Reactor
from supervisor.adapters.platforms.accelerators import Holder, holders
from supervisor.core.events import Noticed
from supervisor.engines.clearing import Releasing
from supervisor.engines.holders import each_told
from supervisor.host.notice import Notice

HOLD = "import sys; held = open(sys.argv[1]); print('open', flush=True); sys.stdin.read()"


class Chip:
    """A file that stands for a chip, and what waits for it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.looks = 0
        path.touch()
        self.clock = SystemClock()
        self.reactor = Reactor(self.clock)
        self.told: list[str] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        self.pattern = re.compile(re.escape(str(path)))
        self.releasing = self.waiting()

    def waiting(self, **patience: float) -> Releasing:
        """What waits for it."""
        return Releasing(self.reactor, self.clock, self.holders, self.told.append, str, **patience)

    def holders(self) -> list[Holder]:
        """Who has it open; counts how often it was asked, and tells the test."""
        self.looks += 1
        self.reactor.post(Noticed(self.clock.now(), Notice("observer-failed", "looked")))
        return list(holders(self.pattern))

    def is_over(self) -> bool:
        """Look on until it is over, or has been looked at twice more."""
        until, wanted = self.clock.now() + 60, self.looks + 2
        while self.looks < wanted and self.clock.now() < until:
            told = self.reactor.wait(until)
            if any(isinstance(each, Noticed) and each.text == "over" for each in told):
                return True
        return False

    def held(self) -> subprocess.Popen[bytes]:
        """A process that has it open."""
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        return process

    def over(self) -> None:
        """The wait is over."""
        self.reactor.post(Noticed(self.clock.now(), Notice("observer-failed", "over")))


@pytest.fixture
def chip(tmp_path: Path) -> Iterator[Chip]:
    one = Chip(tmp_path / "accel0")
    yield one
    for process in one.processes:
        process.kill()
        process.communicate()


def test_who_still_has_a_chip_open_is_named_and_waited_for(chip: Chip) -> None:
    chip.releasing.note_earlier_holders()
    process = chip.held()
    chip.releasing.until_released(lambda: pytest.fail("another wait has taken its place"))
    chip.releasing.until_released(chip.over)
    assert not chip.is_over()
    (line,) = chip.told
    assert line.startswith(f"pid {process.pid} (")
    assert line.endswith(f" has {chip.path} open: waiting until it is closed")
    process.kill()
    process.wait()
    assert chip.is_over()


def test_who_does_not_close_a_chip_in_time_is_named_again_and_waited_for_no_longer(
    chip: Chip,
) -> None:
    process = chip.held()
    chip.waiting(patience=0.0).until_released(chip.over)
    assert chip.is_over()
    (line,) = chip.told
    assert line.startswith(f"pid {process.pid} (")
    assert line.endswith("not closed within 0 s, which the next attempt may meet")


def test_who_had_a_chip_open_before_is_not_waited_for(chip: Chip) -> None:
    chip.held()
    chip.releasing.note_earlier_holders()
    chip.releasing.until_released(chip.over)
    assert chip.is_over()
    assert chip.told == []


@pytest.mark.parametrize(("count", "more"), [(10, ""), (11, "1 more "), (156, "146 more ")])
def test_at_most_ten_processes_are_named(count: int, more: str) -> None:
    holder = Holder(os.getpid(), 0, ("/dev/accel0",))
    told = list(each_told([holder] * count, str))
    assert [line.startswith(f"pid {os.getpid()} (") for line in told[:10]] == [True] * 10
    assert len(told) == 10 + bool(more)
    assert not more or told[-1].startswith(more)
