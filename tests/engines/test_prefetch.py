"""Compiles for other rungs: which, one at a time, within bounds, and what becomes of their ends."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from supervisor.adapters.kernel import capacity
from supervisor.adapters.kernel.clock import SystemClock
from supervisor.adapters.kernel.reactor import Reactor
from supervisor.core.events import Noticed, RungCompileFailed
from supervisor.diagnosis.rules import RULES
from supervisor.diagnosis.success import Success
from supervisor.engines.ahead.prefetching import Prefetcher, wanted
from supervisor.engines.launch import Launch, Start
from supervisor.engines.this_host import ThisHost
from supervisor.host.notice import Notice
from tests.engines.test_devices import PLAN
from tests.running import shared_guard

ROOT = Path(__file__).parents[2]
COMPILES = """
import os, sys
print(os.environ["SUPERVISE_NUM_DEVICES"], os.environ["JAX_NUM_CPU_DEVICES"], *sys.argv[1:])
assert "SUPERVISE_PROGRESS_FD" not in os.environ
"""
DOES_NOT_COMPILE = """
from supervisor.protocol.failure_record import write_failure_record
error = RuntimeError("INTERNAL: Mosaic failed to compile TPU kernel: unsupported shape")
write_failure_record(error, stage=None, step=None)
raise error
"""
SEEMS_NOT_TO_COMPILE = """
from supervisor.protocol.failure_record import write_failure_record
class JaxRuntimeError(RuntimeError): pass
def backend_compile(): raise JaxRuntimeError("INTERNAL: it does not fit")
try:
    backend_compile()
except JaxRuntimeError as error:
    write_failure_record(error, stage=None, step=None)
    raise
"""
CRASHES = "import os; os.abort()"
TAKES_ITS_TIME = "import time; time.sleep(600)"
TAKES_MEMORY = "held = b'x' * (600 << 20); import time; time.sleep(600)"


class Prefetching:
    """A prefetcher of a job on 8 devices, whose program to compile is `program`."""

    def __init__(self, directory: Path, program: str) -> None:
        self.reactor = Reactor(SystemClock())
        self.told: list[str] = []
        self.prefetcher = Prefetcher(
            self.reactor,
            SystemClock(),
            ThisHost(shared_guard(), directory),
            self._notice,
            self._notice,
            str,
        )
        package = directory / "site" / "trainer"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "prefetch.py").write_text(program)
        environ = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{package.parent}:{ROOT}"}
        told = {"SUPERVISE_PROGRESS_FD": "7", "JAX_NUM_CPU_DEVICES": "8"}
        self.start = Start(("x",), environ | told)
        (directory / "x_restartable" / "attempts").mkdir(parents=True)
        self.launch = Launch(
            job="job",
            lineage="job@1",
            attempt=1,
            phase=0,
            plan=replace(PLAN, num_devices=8, rungs=(8, 4, 2, 1)),
            success=Success(step=9),
            rules=RULES,
            model_dir=directory,
            directory=directory / "x_restartable" / "attempts" / "0001",
            params=directory / "params.yaml",
        )

    def _notice(self, text: str) -> None:
        self.told.append(text)
        self.reactor.post(Noticed(0.0, Notice("observer-failed", text)))

    def look(self) -> None:
        self.prefetcher.look(self.launch, self.start)

    def let_pass(self, seconds: float) -> None:
        end = SystemClock().now() + seconds
        while SystemClock().now() < end:
            self.reactor.wait(end)

    def until(self, *ends: str) -> list[str]:
        """Go on until something is told with one of these ends, looking all the while; all that
        was told."""
        while not (self.told and self.told[-1].endswith(ends)):
            self.look()
            self.reactor.wait(SystemClock().now() + 30)
        told, self.told = self.told, []
        return told


Prefetch = Callable[[str], Prefetching]


@pytest.fixture
def prefetching(tmp_path: Path) -> Prefetch:
    return lambda program: Prefetching(tmp_path, program)


@pytest.mark.parametrize(
    ("num_devices", "rungs"),
    [(8, (4, 2)), (4, (2, 1, 8)), (2, (1, 4)), (1, (2,)), (3, (2, 1, 4))],
)
def test_the_next_rungs_are_wanted(num_devices: int, rungs: tuple[int, ...]) -> None:
    assert wanted((8, 4, 2, 1), num_devices) == rungs


@pytest.mark.slow
def test_one_after_the_other_each_with_its_devices(prefetching: Prefetch, tmp_path: Path) -> None:
    one = prefetching(COMPILES)
    done = "Prefetching compile for num_devices={} completed successfully."
    told = one.until(done.format(2))
    assert [text for text in told if "pid" not in text] == [done.format(4), done.format(2)]
    log = (tmp_path / "x_restartable" / "attempts" / "prefetch4" / "rank0.log").read_text()
    assert log == f"4 4 {tmp_path / 'params.yaml'}\n"
    one.look()
    assert one.prefetcher.pids == (), "what is done is done"
    one.launch = replace(one.launch, num_devices=4)
    told = one.until(done.format(8))
    assert [text for text in told if "pid" not in text] == [done.format(1), done.format(8)]


def status(pid: int) -> str:
    return str(psutil.Process(pid).status())


def test_it_is_never_starved_and_holds_still_at_once(prefetching: Prefetch) -> None:
    one = prefetching(TAKES_ITS_TIME)
    one.look()
    (pid,) = one.prefetcher.pids
    assert os.sched_getscheduler(pid) == os.SCHED_OTHER
    assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, 0)
    assert psutil.Process(pid).ionice().ioclass == psutil.IOPRIO_CLASS_IDLE
    for _ in range(3):
        one.prefetcher.pause()
        one.let_pass(0.5)
        assert status(pid) == psutil.STATUS_STOPPED, "whatever was planned before"
        one.look()  # the same rung is wanted after the restart: it goes on where it was
        assert one.prefetcher.pids == (pid,)
        assert status(pid) != psutil.STATUS_STOPPED
    assert one.told == [f"Prefetching compile for num_devices=4 begins, pid {pid}"]


def test_what_is_not_wanted_after_a_restart_ends(prefetching: Prefetch) -> None:
    one = prefetching(TAKES_ITS_TIME)
    one.look()
    (pid,) = one.prefetcher.pids
    one.prefetcher.pause()
    one.launch = replace(one.launch, num_devices=4)
    one.look()
    assert pid in one.prefetcher.pids, "it is known until it is gone"
    while pid in one.prefetcher.pids:
        one.reactor.wait(SystemClock().now() + 0.01)
    assert len(one.prefetcher.pids) == 1
    assert one.told[-1].startswith("Prefetching compile for num_devices=2 begins")


def test_what_cannot_be_compiled_is_told_to_the_core(prefetching: Prefetch) -> None:
    one = prefetching(DOES_NOT_COMPILE)
    failed: list[RungCompileFailed] = []
    while len(failed) < 2:
        one.look()
        events = one.reactor.wait(SystemClock().now() + 30)
        failed += [event for event in events if isinstance(event, RungCompileFailed)]
    assert [(event.phase, event.num_devices) for event in failed] == [(0, 4), (0, 2)]
    assert "Mosaic failed to compile" in failed[0].reason
    one.look()
    assert one.prefetcher.pids == ()


def test_what_seems_not_to_compile_is_tried_once_more_before_it_costs_the_rung(
    prefetching: Prefetch,
) -> None:
    one = prefetching(SEEMS_NOT_TO_COMPILE)
    failed: list[RungCompileFailed] = []
    while not failed:
        one.look()
        events = one.reactor.wait(SystemClock().now() + 30)
        failed += [event for event in events if isinstance(event, RungCompileFailed)]
    assert failed[0].num_devices == 4
    begun = [text for text in one.told if "num_devices=4 begins" in text]
    assert len(begun) == 2
    assert [text for text in one.told if "it is tried once more" in text]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "why"),
    [(CRASHES, "killed by SIGABRT"), (TAKES_MEMORY, r"took \d+ MiB of memory")],
)
def test_any_other_end_is_told_and_tried_once_more(
    prefetching: Prefetch, program: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "available_memory", lambda: 1 << 30)
    one = prefetching(program)
    (first,) = [text for text in one.until("once more") if "pid" not in text]
    (second,) = [text for text in one.until("compiles it") if "pid" not in text]
    for text in (first, second):
        assert re.match(f"Prefetching compile for num_devices=4 failed: .*{why}", text)


def test_where_it_cannot_be_it_is_told_once(
    prefetching: Prefetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = prefetching(COMPILES)
    whole = one.launch
    for plan in (
        replace(whole.plan, prefetch=False),
        replace(whole.plan, is_command=True),
        replace(whole.plan, rungs=()),
    ):
        one.launch = replace(whole, plan=plan)
        one.look()
    assert one.told == []
    one.launch = replace(whole, plan=replace(whole.plan, platform="gpu"))
    one.look()
    one.look()
    assert one.told == [
        "compiles for other rungs are not prefetched: the gpu belongs to the worker, and nobody "
        "else can compile for it"
    ]
    one.launch = whole
    monkeypatch.setattr(capacity, "available_memory", lambda: 1 << 29)
    one.look()
    one.look()
    assert one.told[1:] == [
        "Prefetching compile for num_devices=4 waits until 1024 MiB of memory are free"
    ]
    assert one.prefetcher.pids == ()
