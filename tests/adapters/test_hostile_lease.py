"""A lease that somebody else wrote, or that is none: nobody renews it, and it is taken over."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.adapters.stores.lease import Lease, LeaseTimes, owner_of
from supervisor.adapters.stores.lease_places import LEASE, LeaseFile
from supervisor.adapters.stores.storage import LocalStorage

TIMES = LeaseTimes(duration=0.3, renew=0.1, settle=0.01)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def deep(path: Path) -> None:
    path.write_bytes(b"[" * 200_000)


def digits(path: Path) -> None:
    path.write_bytes(b'{"token": "x", "epoch": ' + b"9" * 5000 + b"}")


def no_owner(path: Path) -> None:
    path.write_bytes(b'{"token": "x", "epoch": 1e999, "owner": {"host": [], "pid": -1}}')


@pytest.mark.parametrize("plant", [fifo, zeros, deep, digits, no_owner])
def test_what_is_no_lease_is_waited_out_and_replaced(
    tmp_path: Path, plant: Callable[[Path], None]
) -> None:
    plant(tmp_path / LEASE)
    place = LeaseFile(LocalStorage(tmp_path), TIMES.settle)
    assert owner_of(place.read().data) == "another supervisor"
    said: list[str] = []
    lease = Lease(
        place,
        TIMES,
        "0" * 32,
        on_renewed=lambda seconds: None,
        on_lost=lambda error: None,
        say=said.append,
    )
    lease.acquire()
    assert len(said) == 1
    assert lease.epoch > 1000, "above that of the owner that nobody knows"
    lease.release()
    assert owner_of((tmp_path / LEASE).read_bytes()) is None


@pytest.mark.parametrize("content", ['{"token', "[]", "null", '{"token": 5}', ""])
def test_the_owner_takes_a_damaged_lease_back(tmp_path: Path, content: str) -> None:
    lost: list[Exception] = []
    renewed = threading.Semaphore(0)
    lease = Lease(
        LeaseFile(LocalStorage(tmp_path), TIMES.settle),
        LeaseTimes(duration=60.0, renew=0.1, settle=0.01),
        "0" * 32,
        on_renewed=lambda seconds: renewed.release(),
        on_lost=lost.append,
        say=lambda text: None,
    )
    lease.acquire()
    (tmp_path / LEASE).write_text(content)
    for _ in range(3):  # taken; renewed at least once after the damage
        assert renewed.acquire(timeout=10)
    lease.check()
    assert (lost, lease.epoch) == ([], 1)
    lease.release()


def test_a_folder_in_place_of_the_lease_is_told(tmp_path: Path) -> None:
    lost: queue.SimpleQueue[Exception] = queue.SimpleQueue()
    lease = Lease(
        LeaseFile(LocalStorage(tmp_path), TIMES.settle),
        TIMES,
        "0" * 32,
        on_renewed=lambda seconds: None,
        on_lost=lost.put,
        say=lambda text: None,
    )
    lease.acquire()
    (tmp_path / LEASE).unlink()
    (tmp_path / LEASE).mkdir()
    error = str(lost.get(timeout=10))
    assert "could not be renewed" in error
    assert "directory" in error
