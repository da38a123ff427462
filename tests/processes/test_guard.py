"""No orphans: whatever ends the supervisor, all that it started ends too, and nothing else does."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from supervisor.adapters.guard import Guard
from supervisor.adapters.processes import sweep
from tests.running import Result, Running, Start, command_config, eventually

Supervise = Callable[..., Result]
IDLE = [sys.executable, "-S", "-c", "import signal; print(flush=True); signal.pause()"]


@contextmanager
def idle(**env: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process with only these variables in its environment, once it has them."""
    with subprocess.Popen(IDLE, env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def guard_of(running: Running) -> psutil.Process:
    """The guard process beside a supervisor."""
    children = psutil.Process(running.process.pid).children()
    (guard,) = [child for child in children if child.cmdline()[-1].endswith("guard.py")]
    return guard


def hiding(start: Start, model_dir: Path) -> tuple[Running, psutil.Process]:
    """A supervised toy with a hidden process, and that process."""
    running = start(command_config(model_dir, "hide"))
    found = re.search(r"(\d+) is hidden", running.wait_for(" is hidden"))
    assert found
    return running, psutil.Process(int(found[1]))


def test_what_changed_session_dies_with_a_killed_supervisor(start: Start, model_dir: Path) -> None:
    running, hidden = hiding(start, model_dir)
    guard = guard_of(running)
    running.signal(signal.SIGKILL)
    assert running.process.wait(10) == -signal.SIGKILL
    assert eventually(lambda: not hidden.is_running())
    assert eventually(lambda: not guard.is_running()), "the guard ends when its work is done"


def test_a_signal_to_the_process_group_spares_the_guard(start: Start, model_dir: Path) -> None:
    running, hidden = hiding(start, model_dir)
    guard = guard_of(running)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        guard.send_signal(number)
    assert os.getpgid(guard.pid) != os.getpgid(running.process.pid)
    running.signal(signal.SIGKILL)
    assert eventually(lambda: not hidden.is_running())


def test_a_killed_guard_is_replaced(start: Start, model_dir: Path) -> None:
    running, hidden = hiding(start, model_dir)
    guard_of(running).kill()
    running.wait_for("the guard process was killed")
    running.signal(signal.SIGKILL)
    assert eventually(lambda: not hidden.is_running())


def test_the_guard_is_small(start: Start, model_dir: Path) -> None:
    running = start(command_config(model_dir, "wait"))
    running.wait_for("waiting")
    memory = guard_of(running).memory_full_info()
    assert memory.pss < 8 << 20
    assert memory.uss < 4 << 20


def test_a_guard_kills_what_its_own_instance_started_and_nothing_else() -> None:
    """The next supervisor of the same job may be at work already."""
    with (
        idle(SUPERVISE_JOB="j", SUPERVISE_LINEAGE="j@one") as first,
        idle(SUPERVISE_JOB="j", SUPERVISE_LINEAGE="o@zero/j@one/k@x") as nested,
        idle(SUPERVISE_JOB="j", SUPERVISE_LINEAGE="j@two") as second,
    ):
        Guard("@one").dismiss()
        assert first.wait(10) == -signal.SIGKILL
        assert nested.wait(10) == -signal.SIGKILL
        assert second.poll() is None


def test_a_guard_kills_when_the_lease_is_not_renewed() -> None:
    guard = Guard("@one")
    try:
        with idle(SUPERVISE_LINEAGE="j@one") as process:
            guard.kill_unless_renewed(3600)
            guard.kill_unless_renewed(0.05)
            assert process.wait(10) == -signal.SIGKILL
        with idle(SUPERVISE_LINEAGE="j@one") as late:
            assert late.wait(10) == -signal.SIGKILL, "until it is renewed"
        guard.kill_unless_renewed(3600)
        with idle(SUPERVISE_LINEAGE="j@one") as process:
            guard.kill_now()
            assert process.wait(10) == -signal.SIGKILL
    finally:
        guard.dismiss()


def test_a_sweep_confirms_that_all_of_the_job_is_gone() -> None:
    with (
        idle(SUPERVISE_JOB="0123456789ab") as worker,
        idle(SUPERVISE_JOB="x", SUPERVISE_LINEAGE="0123456789ab@i/x@j") as nested,
        idle(SUPERVISE_JOB="0123456789abc") as other,
    ):
        assert sorted(sweep("0123456789ab")) == sorted([worker.pid, nested.pid])
        for process in (worker, nested):
            assert psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE
        assert other.poll() is None
    assert sweep("0123456789ab") == []


def test_the_next_supervisor_sweeps_before_it_starts_anything(
    supervise: Supervise, model_dir: Path
) -> None:
    assert supervise(command_config(model_dir, success={"step": 6})).code == 0
    journal = (model_dir / "journal.jsonl").read_text()
    job = journal.partition('"job":"')[2].partition('"')[0]
    with idle(SUPERVISE_JOB=job) as left:
        again = supervise(command_config(model_dir, success={"step": 6}))
        assert again.code == 0
        assert f"killed what an earlier supervisor left behind: pid {left.pid}" in again.log


@pytest.mark.parametrize("attempts", [2])
def test_what_ran_beside_us_before_we_began_is_left_alone(
    start: Start, model_dir: Path, attempts: int
) -> None:
    """A shell with a background job that became the supervisor by `exec`."""
    config = command_config(model_dir, "exit9", "--once", success={"step": 6})
    shell = ("sh", "-c", 'sleep 3600 >/dev/null 2>&1 & echo "beside $!"; exec "$@"', "sh")
    running = start(config, prefix=shell)
    out = running.wait_for("beside ")
    beside = psutil.Process(int(out.partition("beside ")[2].split()[0]))
    result = running.result()
    try:
        assert result.code == 0
        assert result.attempts == attempts
        assert beside.is_running()
        assert beside.status() != psutil.STATUS_ZOMBIE
    finally:
        beside.kill()


def test_orphans_of_a_worker_are_reaped_while_it_runs(start: Start, model_dir: Path) -> None:
    running = start(command_config(model_dir, "zombies"))
    running.wait_for("waiting")
    supervisor = psutil.Process(running.process.pid)

    def is_zombie(child: psutil.Process) -> bool:
        try:
            return child.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:  # reaped since it was listed
            return False

    def none_left() -> bool:
        return not any(is_zombie(child) for child in supervisor.children())

    assert eventually(none_left)
