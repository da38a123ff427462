"""The next attempt waits for who still has a chip open: real processes, and a file for a chip."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.adapters.accelerators import holders
from supervisor.adapters.clock import SystemClock
from supervisor.adapters.reactor import Reactor
from supervisor.core.events import Noticed
from supervisor.engines.releasing import Releasing

HOLD = "import sys; held = open(sys.argv[1]); print('open', flush=True); sys.stdin.read()"


class Chip:
    """A file that stands for a chip, and what waits for it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()
        self.clock = SystemClock()
        self.reactor = Reactor(self.clock)
        self.told: list[str] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        pattern = re.compile(re.escape(str(path)))
        self.releasing = Releasing(
            self.reactor, self.clock, lambda: holders(pattern), self.told.append, str
        )

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
        self.reactor.post(Noticed(self.clock.now(), "over"))


@pytest.fixture
def chip(tmp_path: Path) -> Iterator[Chip]:
    one = Chip(tmp_path / "accel0")
    yield one
    for process in one.processes:
        process.kill()
        process.communicate()


def test_who_still_has_a_chip_open_is_named_and_waited_for(chip: Chip) -> None:
    chip.releasing.begins()
    process = chip.held()
    chip.releasing.until_released(lambda: pytest.fail("another wait has taken its place"))
    chip.releasing.until_released(chip.over)
    assert not chip.reactor.wait(chip.clock.now() + 0.5)
    (line,) = chip.told
    assert line.startswith(f"pid {process.pid} (")
    assert line.endswith(f" has {chip.path} open: waiting until it is closed")
    process.kill()
    assert chip.reactor.wait(chip.clock.now() + 20)


def test_who_had_a_chip_open_before_is_not_waited_for(chip: Chip) -> None:
    chip.held()
    chip.releasing.begins()
    chip.releasing.until_released(chip.over)
    assert chip.reactor.wait(chip.clock.now())
    assert chip.told == []
