"""What people are told of the stacks of a worker that hangs: just what is written."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from supervisor.adapters.kernel import inspection
from supervisor.engines.group import Member
from supervisor.engines.host_port import Host
from supervisor.engines.stack_dumps import dump_stacks
from supervisor.host.notice import Notice
from supervisor.protocol.stacks import STACK_SIGNAL
from tests.running import shared_guard


@dataclass
class FakeHost:
    """A host with py-spy, without it, or where it cannot be started."""

    native: bool | OSError
    handler: bool

    def state(self, pid: int) -> str:
        return "sleeping"

    def handles(self, pid: int, number: int) -> bool:
        return self.handler

    def dump_native_stacks(self, pid: int, path: Path) -> bool:
        if isinstance(self.native, OSError):
            raise self.native
        return self.native


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

    def file(self, rank: int, name: str) -> Path:
        return Path("/run", f"rank{rank}.{name}")


def dumped(host: FakeHost, worker: FakeWorker) -> list[Notice]:
    launch: Any = FakeLaunch()
    return list(dump_stacks(cast(Host, host), cast(Member, worker), launch, 9.0))


NO_ROOM = OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("native", "handler", "events"),
    [
        (True, True, ["stacks-dumped"]),
        (True, False, ["stacks-dumped"]),
        (False, True, ["stacks-dumped"]),
        (False, False, ["stacks-missing"]),
        (NO_ROOM, True, ["stacks-dumped", "stacks-missing"]),
        (NO_ROOM, False, ["stacks-missing"]),
    ],
)
def test_stacks_are_said_to_be_written_only_if_some_are(
    native: bool | OSError, handler: bool, events: list[str]
) -> None:
    worker = FakeWorker()
    notices = dumped(FakeHost(native, handler), worker)
    assert [notice.event for notice in notices] == events
    assert worker.signals == ([STACK_SIGNAL] if handler else [])
    assert "is sleeping; it used 0.5 s of CPU time in the last 9.0 s" in notices[0]


def test_why_there_are_none_is_told() -> None:
    (notice,) = dumped(FakeHost(native=False, handler=False), FakeWorker())
    reason = str(dict(notice.keys)["reason"])
    assert "no handler for SIGUSR2" in reason
    assert "py-spy" in reason


def test_without_py_spy_no_native_stacks_are_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shutil, "which", lambda *args, **options: None)
    path = tmp_path / "native-stacks.txt"
    assert not inspection.dump_native_stacks(shared_guard(), 1, path)
    assert not path.exists()


def test_a_worker_that_promised_nothing_gets_no_signal() -> None:
    """It may be a shell, which would die of it."""
    worker = FakeWorker(dumps_stacks=False)
    (notice,) = dumped(FakeHost(native=False, handler=True), worker)
    assert (notice.event, worker.signals) == ("stacks-missing", [])
