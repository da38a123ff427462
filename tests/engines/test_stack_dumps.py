"""What people are told of the stacks of a worker that hangs: just what is written."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from supervisor.adapters.kernel import inspection
from supervisor.adapters.kernel.reactor import Reactor
from supervisor.core.events import NativeStacks, WorkersGone, WorkersStarted
from supervisor.engines.group import Member
from supervisor.engines.host_port import Host
from supervisor.engines.stack_dumps import StackDumps
from supervisor.host import tree
from supervisor.host.notice import Notice
from supervisor.protocol.stacks import STACK_SIGNAL
from tests.adapters.test_reactor import HandClock
from tests.engines.benches import OnThisHost, launch_in
from tests.running import shared_guard


@dataclass
class FakeHost:
    """A host with py-spy, without it, or where it cannot be started."""

    native: int | OSError | None
    handler: bool
    """Whether the processes `handle` the signal for Python stacks."""
    handle: Sequence[int] = (7, 8, 9)
    programs: Sequence[int] = (7,)
    """The pids of which py-spy can take stacks."""
    written: bytes = b"Process 7: python train.py\n"
    """What py-spy has written once it has ended."""
    looked_at: list[tuple[int, str]] = field(default_factory=list)
    signals: list[tuple[int, int]] = field(default_factory=list)

    def python_programs(self, pid: int) -> list[tuple[int, tree.Stat]]:
        return [(each, tree.Stat("S", pid, pid, each)) for each in self.programs]

    def command_line(self, pid: int, redact: Callable[[str], str]) -> str:
        return redact(f"python train.py --token secret{pid}")

    def send(self, pid: int, seen: tree.Stat, number: int) -> bool:
        assert seen.started == pid
        self.signals.append((pid, number))
        return True

    def read(self, path: Path, limit: int, below: Path) -> bytes:
        assert path.is_relative_to(below)
        return self.written

    def state(self, pid: int) -> str:
        return "sleeping"

    def handles(self, pid: int, number: int) -> bool:
        return self.handler and pid in self.handle

    def dump_native_stacks(self, pid: int, path: Path) -> int | None:
        if isinstance(self.native, OSError):
            raise self.native
        self.looked_at.append((pid, path.name))
        return self.native if len(self.programs) == 1 or not self.native else os.dup(self.native)


@dataclass
class FakeWorker:
    """A worker that hangs. It is its own process handle."""

    dumps_stacks: bool = True
    rank: int = 1
    pid: int = 7
    signals: list[int] = field(default_factory=list)

    @property
    def process(self) -> FakeWorker:
        return self

    def signal(self, number: int) -> None:
        self.signals.append(number)

    def cpu_time_in_silence(self, now: float) -> tuple[float, float]:
        return 0.5, now


class FakeLaunch:
    attempt = 3
    model_dir = Path("/run")

    def file(self, rank: int, name: str) -> Path:
        return Path("/run", f"rank{rank}.{name}")


def dumped(host: FakeHost, worker: FakeWorker) -> list[Notice]:
    told, clock = list[Notice](), HandClock()
    clock.time = 9.0
    begin(stack_dumps(host, Reactor(clock), clock, told), worker)
    return told


def stack_dumps(
    host: FakeHost, reactor: Reactor, clock: HandClock, told: list[Notice]
) -> StackDumps:
    def redact(text: str) -> str:
        return text.replace("secret", "***")

    return StackDumps(cast(Host, host), reactor, clock, told.append, redact)


def begin(dumps: StackDumps, worker: FakeWorker) -> None:
    launch: Any = FakeLaunch()
    dumps.begin(cast(Member, worker), launch)


TOOL = -1
"""Stands for a pidfd of py-spy, which the test opens."""
NO_ROOM = OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("native", "handler", "events"),
    [
        (TOOL, True, ["stacks-dumped"]),
        (TOOL, False, ["stacks-dumped"]),
        (None, True, ["stacks-dumped"]),
        (None, False, ["stacks-missing"]),
        (NO_ROOM, True, ["stacks-dumped", "stacks-missing"]),
        (NO_ROOM, False, ["stacks-missing"]),
    ],
)
def test_stacks_are_said_to_be_written_only_if_some_are(
    native: int | OSError | None, handler: bool, events: list[str]
) -> None:
    worker = FakeWorker()
    native = os.eventfd(0) if native == TOOL else native
    notices = dumped(FakeHost(native, handler), worker)
    assert [notice.event for notice in notices] == events
    assert worker.signals == ([STACK_SIGNAL] if handler else [])
    assert "is sleeping; it used 0.5 s of CPU time in the last 9.0 s" in notices[0]


def test_why_there_are_none_is_told() -> None:
    (notice,) = dumped(FakeHost(native=None, handler=False), FakeWorker())
    reason = str(dict(notice.keys)["reason"])
    assert "no handler for SIGUSR2" in reason
    assert "py-spy" in reason


def test_of_a_wrapper_the_program_below_it_is_looked_at_and_named() -> None:
    host, worker = FakeHost(os.eventfd(0), handler=True, handle=(8,), programs=(8,)), FakeWorker()
    (notice,) = dumped(host, worker)
    assert host.looked_at == [(8, "rank1.below.native-stacks.txt")]
    assert (worker.signals, host.signals) == ([], [(8, STACK_SIGNAL)])
    assert notice.endswith(
        "; below it, pid 8 (python train.py --token ***8) is sleeping; "
        "the stacks of pid 8 are written to attempts/0003"
    )


def test_without_py_spy_a_wrapper_shows_its_own_stacks_alone() -> None:
    host, worker = FakeHost(None, handler=True, programs=(8,)), FakeWorker()
    (notice,) = dumped(host, worker)
    assert (worker.signals, host.signals) == ([STACK_SIGNAL], [])
    assert notice.endswith(" is sleeping; the stacks of pid 7 are written to attempts/0003")


def test_of_several_programs_below_a_wrapper_each_has_a_file_and_none_gets_the_signal() -> None:
    """It is not known which of them has promised to handle it."""
    host = FakeHost(os.eventfd(0), handler=True, handle=(8, 9), programs=(8, 9))
    (notice,) = dumped(host, FakeWorker())
    names = [f"rank1.{number}.below.native-stacks.txt" for number in (1, 2)]
    assert host.looked_at == list(zip((8, 9), names, strict=True))
    assert host.signals == []
    assert "pid 9 (python train.py --token ***9) is sleeping; the stacks of pid 8, 9 are" in notice


def test_of_what_runs_no_python_no_stacks_are_said_to_be_written() -> None:
    host = FakeHost(os.eventfd(0), handler=False, programs=())
    (notice,) = dumped(host, FakeWorker())
    assert (notice.event, host.looked_at) == ("stacks-missing", [])
    assert "it runs no Python, nor does a program below it" in notice


@pytest.mark.parametrize(
    ("written", "missing"),
    [
        (b"Process 7: python train.py\nThread 7 (idle)\n", []),
        (
            b"Error: Permission Denied\n\nStack backtrace:\n",
            ["the native stacks of pid 7 are not written: py-spy: Permission Denied"],
        ),
        (b"Error: ", ["the native stacks of pid 7 are not written: py-spy: "]),
    ],
)
def test_a_failure_of_py_spy_is_told(written: bytes, missing: list[str]) -> None:
    clock, told = HandClock(), list[Notice]()
    reactor = Reactor(clock)
    host = FakeHost(os.eventfd(1), handler=False, written=written)
    begin(stack_dumps(host, reactor, clock, told), FakeWorker())
    assert NativeStacks(0.0, 3, written=True) in [*reactor.wait(0.0), *reactor.wait(0.0)]
    assert told[1:] == missing
    assert {notice.event for notice in told[1:]} <= {"stacks-missing"}


def test_without_py_spy_no_native_stacks_are_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shutil, "which", lambda *args, **options: None)
    path = tmp_path / "native-stacks.txt"
    assert inspection.dump_native_stacks(shared_guard(), 1, path) is None
    assert not path.exists()


def test_a_worker_that_promised_nothing_gets_no_signal() -> None:
    """It may be a shell, which would die of it."""
    worker = FakeWorker(dumps_stacks=False)
    (notice,) = dumped(FakeHost(native=None, handler=True), worker)
    assert (notice.event, worker.signals) == ("stacks-missing", [])


def test_it_is_told_when_native_stacks_are_begun_and_when_all_are_written() -> None:
    clock = HandClock()
    reactor = Reactor(clock)
    host = FakeHost(native=None, handler=True)
    dumps = stack_dumps(host, reactor, clock, [])
    begin(dumps, FakeWorker())
    assert reactor.wait(0.0) == [], "no tool is there"
    tools, ends = [], []
    for _ in range(2):
        tool, end = os.pipe()  # can be read once the other end is closed, like a pidfd
        tools.append(tool)
        ends.append(end)
        host.native = tool
        begin(dumps, FakeWorker())
    assert reactor.wait(0.0) == [NativeStacks(0.0, 3, written=False)] * 2
    os.close(ends[0])
    assert reactor.wait(0.0) == []
    os.close(ends[1])
    clock.time = 1.0
    assert reactor.wait(1.0) == [NativeStacks(1.0, 3, written=True)]
    for tool in tools:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(tool)


def hanging(
    monkeypatch: pytest.MonkeyPatch, folder: Path, py_spy: str
) -> tuple[OnThisHost, int, Path]:
    """A worker that is looked at by such a tool; returns its pid too, and the file of the tool."""
    tool = folder / "py-spy"
    tool.write_text(f"#!/bin/sh\n{py_spy}\n")
    tool.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda *args, **options: str(tool))
    bench = OnThisHost(folder)
    argv = (sys.executable, "-c", "import time; time.sleep(1000)")
    bench.launch = launch_in(folder, argv, workers=1)
    bench.engine.start(bench.launch)
    (pid,) = bench.first(WorkersStarted).pids
    bench.engine.dump_stacks(bench.launch.attempt)
    assert not bench.first(NativeStacks).written
    return bench, pid, bench.launch.file(0, "native-stacks.txt")


def test_the_end_of_the_tool_is_told_once_its_file_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    looks = f'read line < {gate}\necho "looked at" /proc/$5/c*mdline'
    bench, pid, file = hanging(monkeypatch, tmp_path, looks)
    bench.turn(0.3)
    assert [event.written for event in bench.of(NativeStacks)] == [False]
    gate.write_text("go on\n")
    bench.first(NativeStacks, lambda event: event.written)
    assert file.read_text() == f"looked at /proc/{pid}/cmdline\n"
    bench.engine.kill(bench.launch, ())
    bench.first(WorkersGone)


def test_a_tool_that_hangs_is_ended_before_the_worker_is_asked_to_stop(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What it traces is stopped, and could not save."""
    bench, _, file = hanging(monkeypatch, tmp_path, "echo $$; exec sleep 1000")
    bench.until(lambda: file.exists() and file.read_text() != "")
    bench.engine.terminate(bench.launch.attempt)
    bench.first(NativeStacks, lambda event: event.written)
    tool = Path("/proc", file.read_text().strip())
    bench.until(lambda: bench.living() == 0 and not tool.exists())
    bench.engine.kill(bench.launch, ())
    bench.first(WorkersGone)
