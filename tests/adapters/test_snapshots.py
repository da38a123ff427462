"""The memory for snapshots: lent to one attempt after another, emptied, and not ours to hold."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.core.snapshot_use import distrust
from supervisor.engines.handles import Memory
from supervisor.engines.snapshot_keeper import SnapshotKeeper
from supervisor.engines.this_host import _Channels
from tests.core.history import RETRY

CRASHED = replace(RETRY, rule="crash", cause="crashed")


class Kept:
    """A keeper, and what it says."""

    def __init__(self) -> None:
        self.warned: list[str] = []
        self.told: list[str] = []
        self.keeper = SnapshotKeeper(_Channels(), self.warned.append, self.told.append)
        self.memories: set[Memory] = set()

    def lend(self, phase: int = 0, *, crashed: bool = False, newest: int | None = None) -> bytes:
        """What the next attempt finds in memory, after one that was killed or `crashed`."""
        failure = CRASHED if crashed else RETRY
        (memory,) = self.keeper.lend(phase, 1, distrust(failure), newest)
        self.memories.add(memory)
        self.memory = memory
        return os.pread(memory.descriptor, 100, 0)

    def write(self, data: bytes) -> None:
        os.pwrite(self.memory.descriptor, data, 0)


@pytest.fixture
def kept() -> Iterator[Kept]:
    kept = Kept()
    yield kept
    kept.memory.close()


def test_what_one_attempt_leaves_the_next_may_find(kept: Kept) -> None:
    assert kept.lend() == b""
    kept.write(b"one")
    assert kept.lend() == b"one"
    kept.keeper.restored(snapshot=True)
    kept.write(b"two")
    assert kept.lend(newest=10) == b"two", "a checkpoint was committed since"
    assert not kept.warned
    kept.keeper.restored(snapshot=True)
    assert kept.lend(newest=10) == b"", "none was"
    kept.write(b"three")
    assert kept.lend(crashed=True, newest=20) == b""
    assert kept.lend(crashed=True, newest=20) == b""
    assert kept.warned == [
        "the snapshots in memory are dropped: the last attempt had them and failed before a new "
        "checkpoint",
        "the snapshots in memory are dropped: after this failure (crashed) the state in memory is "
        "not trusted",
    ]


def test_who_began_from_a_checkpoint_has_not_had_its_try(kept: Kept) -> None:
    kept.lend()
    kept.write(b"one")
    kept.lend()
    kept.keeper.restored(snapshot=False)
    kept.write(b"two")
    assert kept.lend() == b"two"


def test_another_phase_has_other_memory(kept: Kept) -> None:
    kept.lend(0)
    kept.write(b"one")
    assert kept.lend(1) == b""
    assert len(kept.memories) == 2
    assert not kept.warned


def test_each_rank_has_its_own_and_a_group_of_another_size_new_ones(kept: Kept) -> None:
    one, other = kept.keeper.lend(0, 2, "", None)
    os.pwrite(other.descriptor, bytes(3_000_000), 0)
    kept.keeper.tell_size()
    assert kept.told == ["snapshots in memory: two of them take 3.0 MB of this host's memory"]
    assert list(kept.keeper.lend(0, 2, "", None)) == [one, other]
    assert os.fstat(other.descriptor).st_size == 3_000_000
    assert kept.lend() == b""
    (warning,) = kept.warned
    assert warning.endswith("they are of 2 workers, and the attempt has 1")


def test_the_size_is_told_once_in_a_phase(kept: Kept) -> None:
    kept.lend()
    kept.keeper.tell_size()
    kept.write(bytes(3_000_000))
    for _ in range(2):
        kept.keeper.tell_size()
    assert kept.told == ["snapshots in memory: two of them take 3.0 MB of this host's memory"]


def test_what_is_in_it_is_not_held_by_the_supervisor(kept: Kept) -> None:
    def held() -> int:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

    kept.lend()
    before = held()
    descriptor, size = kept.memory.descriptor, 100 << 20
    program = f"import os; os.posix_fallocate({descriptor}, 0, {size})"
    subprocess.run([sys.executable, "-c", program], pass_fds=(descriptor,), check=True)
    assert kept.memory.size == size
    assert held() - before < size / 10
    kept.memory.empty()
    assert kept.memory.size == 0


def test_without_room_for_a_descriptor_there_are_none(kept: Kept) -> None:
    kept.lend()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        assert not kept.keeper.lend(1, 1, "", None)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    (told,) = kept.warned
    assert told.startswith("snapshots in memory are off: cannot create memory for them: [Errno 24]")
    kept.lend(2)
