"""A guard that is silent, late or dies at a bad moment: nobody else is hit, nothing stays."""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from supervisor.adapters.processes.guard_client import GuardClient
from supervisor.adapters.processes.leftovers import (
    UntrustedRecordError,
    environment_names_run,
    read_record,
)
from supervisor.adapters.processes.worker_process import WorkerProcess
from supervisor.host import cgroups, guard_socket, tree
from supervisor.host.identity import Identity
from supervisor.host.notice import Notice
from supervisor.host.process_record import NAME, Entry, ProcessRecord, RecordOrigin, folder
from supervisor.host.waiting import end_child, has_ended
from tests.processes.test_guard import asleep, idle
from tests.processes.test_pid_one import CONTAINER
from tests.running import descriptors, eventually, lives, may_mount, runs

HOST_HAS_CGROUPS = any(os.access(place, os.W_OK) for place in cgroups.own())
LAST_PID = Path("/proc/sys/kernel/ns_last_pid")


def empty(model_dir: Path, kind: type[ProcessRecord] = ProcessRecord) -> ProcessRecord:
    """A record in which nothing is written yet."""
    us, path = Identity.of_this_process(), model_dir / NAME
    origin = RecordOrigin("0123456789ab", "0" * 32, us, folder(model_dir))

    def replace(data: bytes) -> None:
        path.with_suffix(".new").write_bytes(data)
        path.with_suffix(".new").replace(path)

    return kind(path, origin, replace, partial(environment_names_run, origin.run))


def written(model_dir: Path) -> Path:
    record = empty(model_dir)
    record.close()
    return record.path


@pytest.fixture
def record(tmp_path: Path) -> ProcessRecord:
    return empty(tmp_path)


@pytest.fixture
def guard() -> Iterator[GuardClient]:
    one = GuardClient(print)
    yield one
    one.dismiss()


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A child of ours that is not the job's."""
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        yield process
        process.kill()


def die(guard: GuardClient) -> None:
    """The guard is killed, and there is another one."""
    os.kill(guard.pid, signal.SIGKILL)
    assert has_ended(guard.pidfd, 30.0)
    while not guard.replace_if_dead():
        pass


def lines(record: ProcessRecord) -> list[bytes]:
    """What is on record."""
    return [text for text in record.path.read_bytes().split(b"\n")[1:] if text.strip()]


def noted(guard: GuardClient, record: ProcessRecord) -> tuple[WorkerProcess, int]:
    """Two processes (see `idle`) on record. By that they are the job's, even where we have children
    that others have left here, as a run of many tests in one process may."""
    guard.contain(record, None)
    worker, hidden = idle(guard)

    def is_noted() -> bool:
        guard.refresh()
        return {worker.pid, hidden} <= record.processes.keys()

    assert eventually(is_noted)
    return worker, hidden


def test_a_dead_guard_is_replaced(
    stranger: subprocess.Popen[bytes], guard: GuardClient, record: ProcessRecord
) -> None:
    worker, hidden = noted(guard, record)
    os.kill(guard.pid, signal.SIGKILL)
    assert worker.wait().signal == "SIGKILL", "it dies with the guard, and is seen to"
    while guard.kill():
        pass
    assert not runs(hidden)
    assert runs(stranger.pid)
    again, _ = idle(guard)
    assert lives(again.pid)


def test_a_silent_guard_is_killed_and_replaced(
    stranger: subprocess.Popen[bytes],
    guard: GuardClient,
    record: ProcessRecord,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker, hidden = noted(guard, record)
    first = guard.pid
    monkeypatch.setattr(guard_socket, "PATIENCE", {"end": 0.05, "exited": 3.0})
    os.kill(first, signal.SIGSTOP)
    while guard.kill():
        pass
    assert guard.pid != first
    assert worker.wait().signal == "SIGKILL"
    assert not runs(hidden)
    assert runs(stranger.pid)


def test_a_guard_that_is_silent_for_long_is_given_up(
    record: ProcessRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Notice] = []
    guard = GuardClient(told.append)
    try:
        monkeypatch.setattr(
            guard_socket, "PATIENCE", {"spawn": 10.0, "orphans": 0.05, "exited": 0.05}
        )
        worker, hidden = noted(guard, record)
        first = guard.pid
        os.kill(first, signal.SIGSTOP)
        assert guard.orphans() is None, "nobody knows"
        worker.signal(signal.SIGKILL)
        assert has_ended(worker.pidfd, 30.0)
        assert worker.poll(0) is None
        assert runs(hidden)
        assert not told
        assert worker.wait().signal == "SIGKILL"
        assert eventually(lambda: not runs(hidden)), "it was killed, and may need a moment"
        assert [(each.event, each.keys) for each in told] == [("guard-lost", {"reason": "unheard"})]
        assert asleep(guard).poll(0) is None, "there is another guard"
    finally:
        guard.dismiss()


def test_what_a_guard_starts_too_late_is_ended(
    guard: GuardClient, record: ProcessRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard.contain(record, None)
    open_before = descriptors()
    with monkeypatch.context() as patched:
        patched.setattr(guard_socket, "PATIENCE", {"spawn": 0.05})
        os.kill(guard.pid, signal.SIGSTOP)
        with pytest.raises(OSError, match="which starts it, does not answer"):
            asleep(guard)
    os.kill(guard.pid, signal.SIGCONT)
    other = asleep(guard)

    def is_alone() -> bool:
        guard.refresh()
        on_record = [f'"session":{other.pid},'.encode() in text for text in lines(record)]
        below = [one for one, _ in tree.descendants(guard.pid, set())]
        return (below, on_record) == ([other.pid], [True])

    assert eventually(is_alone)
    other.close()
    assert descriptors() <= open_before


def test_a_process_that_nobody_can_watch_is_killed(guard: GuardClient) -> None:
    """Its pidfd did not arrive, because no descriptor was free."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    reads, writes = os.pipe()
    free = os.dup(reads)
    os.close(free)
    with os.fdopen(reads, "rb") as output:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, limits[1]))
            with pytest.raises(OSError, match="Too many open files"):
                guard.start(["sleep", "60"], os.environ, writes, writes)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            os.close(writes)
        ready, _, _ = select.select([output], [], [], 30.0)
        assert ready, "it holds its output as long as it lives"
        assert output.read() == b""
    assert asleep(guard).poll(0) is None, "the guard goes on"


def test_an_exit_code_that_was_returned_is_not_asked_of_the_guard_again(guard: GuardClient) -> None:
    process = guard.start(["true"], os.environ, 2, 2)
    assert has_ended(process.pidfd, 30.0)
    while (code := guard.exit_code(process)) is None:
        pass
    assert code == 0
    first = guard.pid
    for _ in range(100):
        with pytest.raises(ChildProcessError):
            guard.exit_code(process)
    os.close(process.pidfd)
    assert guard.orphans() == []
    assert guard.pid == first


class Unwritable(ProcessRecord):
    """A record on a disk that fails."""

    def written(self, place: int, pid: int, entry: Entry) -> None:
        raise OSError(5, os.strerror(5))


def test_a_process_that_cannot_be_noted_is_not_lost(guard: GuardClient, tmp_path: Path) -> None:
    guard.contain(empty(tmp_path, Unwritable), None)
    worker = asleep(guard)
    while guard.kill():
        pass
    assert worker.wait().signal == "SIGKILL"


def test_the_end_of_a_process_is_nobodys_to_tell_after_the_dismissal() -> None:
    guard = GuardClient(print)
    worker = asleep(guard)
    guard.dismiss()
    assert worker.poll(0) is not None


def test_a_number_that_was_a_watchers_may_be_anothers(stranger: subprocess.Popen[bytes]) -> None:
    seen = tree.stat(stranger.pid)
    assert seen is not None
    end_child(stranger.pid, seen.started - 1)
    assert stranger.poll() is None
    end_child(stranger.pid, seen.started)
    assert not lives(stranger.pid)


def test_a_session_that_one_look_does_not_see_stays_on_record(
    guard: GuardClient, record: ProcessRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard.contain(record, None)
    worker, hidden = idle(guard)
    guard.refresh()
    assert {worker.pid, hidden} <= record.processes.keys()
    for _ in range(2):
        with monkeypatch.context() as patched:  # as the kernel's list may be
            patched.setattr(tree, "children", lambda pid: [])
            guard.refresh()
        assert {worker.pid, hidden} <= record.processes.keys()
        guard.refresh()
    while guard.kill([worker.pid]):
        pass
    assert record.processes.keys() == {worker.pid}


def same_number(model_dir: Path) -> None:
    """After the guard's death: a number is given again once nobody has it."""
    stranger = subprocess.Popen(["sleep", "60"], start_new_session=True)
    guard = GuardClient(print)
    guard.contain(empty(model_dir), None)
    stranger.kill()
    stranger.wait()
    LAST_PID.write_text(str(stranger.pid - 1))
    worker = leader(guard)
    assert worker.pid == stranger.pid
    orphan = int(Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text())
    guard.refresh()  # so that it is on record
    die(guard)
    assert not lives(orphan)
    guard.dismiss()


@pytest.mark.skipif(
    not os.access(LAST_PID, os.W_OK) or not may_mount(), reason="NOT TESTED: needs root"
)
def test_a_session_of_the_job_with_the_number_of_a_foreign_one_is_killed(tmp_path: Path) -> None:
    """Among numbers of its own: elsewhere, who waits for an end may find another's process."""
    program = "import pathlib, sys; from tests.processes import test_guard_faults as here; "
    program += "here.same_number(pathlib.Path(sys.argv[1]))"
    argv = [*CONTAINER, sys.executable, "-c", program, str(tmp_path)]
    subprocess.run(argv, cwd=Path(__file__).parents[2], check=True)


def leader(guard: GuardClient) -> WorkerProcess:
    """A process of the job with a child in its session."""
    reads, writes = os.pipe()
    with os.fdopen(reads, "rb") as output, os.fdopen(writes, "wb") as theirs:
        argv = ["sh", "-c", "sleep 60 >/dev/null & echo; wait"]
        worker = WorkerProcess(guard, argv, env=os.environ, output=theirs.fileno())
        theirs.close()
        output.readline()
    return worker


@pytest.mark.skipif(not HOST_HAS_CGROUPS, reason="NOT TESTED: no cgroup can be made here")
def test_what_is_in_a_cgroup_dies_by_it_when_no_other_can_be_made(
    record: ProcessRecord, stranger: subprocess.Popen[bytes]
) -> None:
    """Where we have a foreign child, nothing else tells that it is the job's."""
    told: list[Notice] = []
    guard = GuardClient(told.append)
    cgroup = cgroups.made(f"test-{os.getpid()}")
    assert cgroup is not None
    try:
        guard.contain(record, cgroup)
        _, hidden = idle(guard)
        (Path(cgroup) / "2").mkdir()
        asleep(guard)
        assert "without cgroups from now on" in told[0]
        die(guard)
        assert not lives(hidden)
        assert eventually(lambda: bool(tree.children(guard.pid))), "it has a watcher"
        assert stranger.poll() is None
        guard.refresh()  # reaps what was in the cgroup
        asleep(guard)
        assert not list(Path(cgroup).glob("*/"))
    finally:
        guard.dismiss()
        cgroups.remove(cgroup)


def test_a_record_of_another_version_is_told_as_such(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_bytes(path.read_bytes().replace(b'"v": 1', b'"v": 2'))
    with pytest.raises(
        UntrustedRecordError, match="written by another version: its format is not 1"
    ):
        read_record(tmp_path)


def test_the_record_that_is_read_is_the_one_that_was_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one, which everybody may write, takes its place in between."""
    path = written(tmp_path)
    theirs = tmp_path / "theirs"
    theirs.write_bytes(path.read_bytes() + b'{"session":4711,"started":1}\n')
    theirs.chmod(0o666)
    user = os.geteuid()

    def asked() -> int:
        if theirs.exists():
            theirs.replace(path)
        return user

    monkeypatch.setattr(os, "geteuid", asked)
    found = read_record(tmp_path)
    assert not theirs.exists()
    assert found is not None
    assert not found.processes
