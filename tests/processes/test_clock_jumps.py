"""A host that slept or was frozen: its workers stand still until it is known whose model_dir is."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from supervisor.adapters.stores.lease_places import LEASE
from tests.processes.test_lease import foreign
from tests.running import eventually

HELD = str(Path(__file__).with_name("held.py"))


class Holding:
    """The program `held.py`, and its worker."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process = process
        self._folder = folder
        self.worker = psutil.Process(int(self.hears("worker ").split()[1]))

    def hears(self, text: str) -> str:
        """Its next line with `text`."""
        assert self.process.stdout is not None
        return next(line for line in self.process.stdout if text in line)

    def sleeps(self, seconds: float) -> None:
        """The machine has slept for so long."""
        (self._folder / "new").write_text(str(seconds))
        (self._folder / "new").replace(self._folder / "jump")

    def storage_hangs(self) -> None:
        (self._folder / "hang").touch()

    def storage_answers(self) -> None:
        (self._folder / "hang").unlink()

    def stands_still(self) -> bool:
        """Whether the worker soon does."""
        return eventually(lambda: self.worker.status() == psutil.STATUS_STOPPED)


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Callable[[float], Holding]]:
    """Starts the program with a lease that is renewed every so many seconds."""
    with contextmanager(_holding)(tmp_path) as begin:
        yield begin


def _holding(folder: Path) -> Iterator[Callable[[float], Holding]]:
    started: list[subprocess.Popen[str]] = []

    def begin(renew: float) -> Holding:
        command = [sys.executable, HELD, str(folder), str(renew)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return Holding(process, folder)

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def test_the_workers_stand_still_until_the_lease_is_renewed(
    hold: Callable[[float], Holding],
) -> None:
    holding = hold(30.0)
    holding.storage_hangs()
    holding.sleeps(100.0)
    assert holding.stands_still()
    holding.storage_answers()
    holding.hears("the machine slept for 100 s: the workers stand still until")
    holding.hears("model_dir is still ours: the workers go on after they stood still for ")
    assert eventually(lambda: holding.worker.status() == psutil.STATUS_SLEEPING)


def test_workers_of_a_lease_that_is_anothers_by_now_never_go_on(
    hold: Callable[[float], Holding], tmp_path: Path
) -> None:
    holding = hold(30.0)
    holding.storage_hangs()
    holding.sleeps(100.0)
    assert holding.stands_still()
    foreign(tmp_path)
    theirs = (tmp_path / LEASE).read_bytes()
    holding.storage_answers()
    assert "taken over by supervisor" in holding.hears("lost: ")
    assert holding.process.wait(30) == 9
    assert (tmp_path / LEASE).read_bytes() == theirs


def test_workers_are_killed_where_nobody_answers(hold: Callable[[float], Holding]) -> None:
    """Long before the lease runs out, after 59 s here."""
    holding = hold(1.0)
    holding.storage_hangs()
    holding.sleeps(100.0)
    began = time.monotonic()
    told = "the machine slept for 100 s, and the lease on model_dir could not be renewed within 1 s"
    assert told in holding.hears("lost: ")
    assert holding.process.wait(30) == 9
    assert time.monotonic() - began < 30
