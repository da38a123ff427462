"""What is on record of the job's processes, while they live."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.adapters.processes.guard_client import GuardClient
from supervisor.host import cgroups
from supervisor.host.process_record import ProcessRecord, Recorded
from tests.processes.test_guard import asleep, idle
from tests.processes.test_guard_faults import HOST_HAS_CGROUPS, die, guard, record
from tests.running import lives

__all__ = ["guard", "record"]

DAEMON = """
import os, sys
sys.stdin.read()
read, write = os.pipe()
if os.fork() == 0:
    os.setsid()
    print(os.getpid(), flush=True)
    os.execvp("sleep", ["sleep", "60"])
"""


def on_record(record: ProcessRecord) -> set[int]:
    """The pids that the file has."""
    return set(Recorded.from_bytes(record.path.read_bytes()).processes)


def test_a_record_that_is_gone_is_written_again(guard: GuardClient, record: ProcessRecord) -> None:
    guard.contain(record, None)
    worker, hidden = idle(guard)
    guard.refresh()
    first = on_record(record)
    assert {worker.pid, hidden} <= first
    record.path.unlink()
    guard.refresh()
    assert on_record(record) == first
    record.path.write_bytes(b"")
    guard.refresh()
    assert on_record(record) == first
    other = record.path.with_name("other")
    other.write_bytes(record.path.read_bytes())
    other.replace(record.path)
    guard.refresh()
    assert on_record(record) == first
    assert record.path.stat().st_mode & 0o777 == 0o600
    assert asleep(guard).pid in on_record(record)


def test_a_record_does_not_follow_its_folder_away(
    guard: GuardClient, record: ProcessRecord
) -> None:
    guard.contain(record, None)
    asleep(guard)
    folder = record.path.parent
    folder.rename(folder.with_name("moved"))
    guard.refresh()
    assert not folder.exists()
    folder.mkdir()
    guard.refresh()
    assert not list(folder.iterdir())


@pytest.mark.skipif(not HOST_HAS_CGROUPS, reason="NOT TESTED: no cgroup can be made here")
def test_what_root_moves_out_of_its_cgroup_is_on_record(
    guard: GuardClient, record: ProcessRecord
) -> None:
    cgroup = cgroups.made(f"test-{os.getpid()}")
    assert cgroup is not None
    guard.contain(record, cgroup)
    _, hidden = idle(guard)
    (Path(cgroup).parent / "cgroup.procs").write_text(str(hidden))
    guard.refresh()
    assert hidden in on_record(record)
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as stranger:
        for _ in range(2):
            guard.refresh()
        die(guard)
        assert not lives(hidden)
        assert stranger.poll() is None
        stranger.kill()


def test_a_child_from_before_us_may_become_a_daemon(record: ProcessRecord) -> None:
    """It is in our session first, and a moment before the guard's death in one of its own."""
    argv = [sys.executable, "-S", "-c", DAEMON]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        guard = GuardClient(print)
        try:
            guard.contain(record, None)
            worker, hidden = idle(guard)
            guard.refresh()
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.close()
            daemon = int(child.stdout.readline())
            child.wait(10)
            die(guard)
            assert not lives(worker.pid)
            assert not lives(hidden)
            assert lives(daemon)
            os.kill(daemon, signal.SIGKILL)
            os.waitpid(daemon, 0)
        finally:
            guard.dismiss()
