"""The file that health checks look at is touched, and what goes wrong with it harms nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from supervisor.adapters.telling.alive_file import PERIOD, AliveFile
from supervisor.host.notice import Notice


@dataclass
class Loop:
    """A main loop that turns when the test says so."""

    timers: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    told: list[Notice] = field(default_factory=list)

    def call_later(self, delay: float, callback: Callable[[], None]) -> None:
        self.timers.append((delay, callback))

    def turn(self) -> None:
        ((delay, callback),) = self.timers
        assert delay == PERIOD
        self.timers.clear()
        callback()


def watched(path: Path) -> Loop:
    loop = Loop()
    AliveFile(path, loop.call_later, loop.told.append)
    return loop


def test_it_is_touched_at_once_and_in_each_period(tmp_path: Path) -> None:
    path, before = tmp_path / "alive", time.time() - 1.0
    loop = watched(path)
    for _ in range(3):
        assert path.stat().st_mtime > before
        os.utime(path, (0, 0))
        loop.turn()
    assert not loop.told


def test_a_trouble_is_told_once_and_may_pass(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "alive"
    loop = watched(path)
    loop.turn()
    (notice,) = loop.told
    assert notice.event == "file-unwritable"
    assert notice.keys == {"place": str(path), "reason": "No such file or directory"}
    path.parent.mkdir()
    loop.turn()
    assert path.exists()
    path.unlink()
    path.parent.rmdir()
    loop.turn()
    assert len(loop.told) == 2


def test_no_link_is_followed(tmp_path: Path) -> None:
    """It is in /tmp, where everybody may make a link to a file of ours."""
    target = tmp_path / "precious"
    target.write_text("")
    os.utime(target, (0, 0))
    path = tmp_path / "alive"
    path.symlink_to(target)
    loop = watched(path)
    assert target.stat().st_mtime == 0.0
    assert len(loop.told) == 1
