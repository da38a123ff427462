"""What is told and done when the guard fails, the lease is lost, or workers do not stand still."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor import job, model_dir_ownership
from supervisor.adapters.kernel.clock import SystemClock
from supervisor.adapters.kernel.reactor import Reactor
from supervisor.adapters.processes.guard_client import GuardClient
from supervisor.adapters.processes.worker_process import WorkerProcess
from supervisor.adapters.stores.lease import LeaseTimes
from supervisor.adapters.stores.lease_places import LeaseFile
from supervisor.adapters.stores.lock import LockHeldError
from supervisor.adapters.stores.storage import LocalStorage
from supervisor.core.events import Noticed
from supervisor.core.exit_codes import ExitCode
from supervisor.engines.guard_watch import keep_guard
from supervisor.host import tree
from supervisor.host.guard_process import guard_command
from supervisor.host.waiting import has_ended
from supervisor.model_dir_ownership import Exclusion, ModelDir, own_model_dir
from supervisor.protocol.location import Uri
from tests.processes.test_lease import foreign
from tests.running import descriptors, eventually


@pytest.fixture
def guard() -> Iterator[GuardClient]:
    one = GuardClient(print)
    yield one
    one.dismiss()


def test_who_finds_a_bucket_owned_on_this_host_is_told_the_bucket(
    guard: GuardClient, tmp_path: Path
) -> None:
    place, files = Uri("gs", "my-bucket", "run"), LocalStorage(tmp_path)
    clock, means = SystemClock(), Exclusion()
    here = ModelDir(tmp_path, files, (place, LeaseFile(files, 0.0)))
    others = (clock, Reactor(clock), guard, means, print, lambda code, why: None)
    with (
        own_model_dir(ModelDir(tmp_path, files), "a" * 32, *others),
        pytest.raises(LockHeldError) as caught,
        own_model_dir(here, "b" * 32, *others),
    ):
        pass
    assert str(caught.value).startswith("gs://my-bucket/run is owned by supervisor ")
    assert str(tmp_path) not in str(caught.value)


def test_who_loses_the_lease_is_told_to_end_once(
    guard: GuardClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the main thread hangs."""
    monkeypatch.setattr(model_dir_ownership, "_MAIN_THREAD_TIMEOUT", 0.0)
    clock, lost = SystemClock(), threading.Event()
    ended: list[tuple[ExitCode, str]] = []

    def end(code: ExitCode, why: str) -> None:
        ended.append((code, why))
        lost.set()

    model_dir, means = ModelDir(tmp_path, LocalStorage(tmp_path)), LeaseTimes(60.0, 0.2, 0.01)
    leased = Exclusion(flock=False, lease=means)
    with own_model_dir(model_dir, "a" * 32, clock, Reactor(clock), guard, leased, print, end):
        foreign(tmp_path)
        assert lost.wait(30.0)
    ((code, why),) = ended
    assert code == ExitCode.OWNED
    assert "taken over by supervisor" in why
    assert "run the same command again" not in why


def test_a_guard_that_is_dead_is_no_loss_of_what_is_started_after_it(guard: GuardClient) -> None:
    os.kill(guard.pid, SIGKILL)
    assert has_ended(guard.pidfd, 30.0)
    lost = guard.losses()
    assert eventually(guard.replace_if_dead)
    assert lost() == 0
    os.kill(guard.pid, SIGKILL)
    assert eventually(lambda: lost() == 1)


def test_an_end_from_another_thread_has_the_code_that_the_config_says() -> None:
    prepared: Any = SimpleNamespace(job=SimpleNamespace(exit_codes={int(ExitCode.OWNED): 7}))
    pid = os.fork()
    if pid == 0:
        job._exit_process(prepared, lambda text: None, ExitCode.OWNED, "lost")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


VFORKS = """
import os, sys
then = [(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)]
os.posix_spawn("/bin/true", ["true"], {}, file_actions=then)
"""


def test_it_is_told_that_a_worker_does_not_stand_still(guard: GuardClient, tmp_path: Path) -> None:
    """It waits in the kernel for its child, which opens a FIFO before it becomes its program."""
    os.mkfifo(tmp_path / "fifo")
    argv = [sys.executable, "-S", "-c", VFORKS, str(tmp_path / "fifo")]
    worker = WorkerProcess(guard, argv, env={}, output=2)

    def waits() -> bool:
        seen = tree.stat(worker.pid)
        return seen is not None and seen.state == "D"

    assert eventually(waits)
    clock = SystemClock()
    reactor = Reactor(clock)
    lease: Any = None
    model_dir_ownership._ClockJumpReaction(guard, lease, LeaseTimes(), clock, reactor).stop(
        "the machine slept"
    )
    told = [event.text for event in reactor.wait(0.0) if isinstance(event, Noticed)]
    assert told == ["some of the workers wait in the kernel: they stand still once that is over"]


def test_a_guard_that_fails_does_not_wait_for_a_supervisor_that_is_frozen() -> None:
    ours, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, end:
        with suppress(BlockingIOError):  # until nothing more gets through
            while True:
                end.send(b"x" * 1000, socket.MSG_DONTWAIT)
        ours.send(b"no message")
        number = end.fileno()
        command = guard_command(number)
        started = subprocess.Popen(command, pass_fds=[number], stderr=subprocess.DEVNULL)
        assert started.wait(30.0) == 1


def test_no_descriptor_is_left_of_a_guard() -> None:
    clock = SystemClock()
    reactor = Reactor(clock)
    before = descriptors()
    with keep_guard(reactor, clock):
        pass
    assert descriptors() <= before
