"""No orphans: whatever ends the supervisor, all that it started ends too, and nothing else does."""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from supervisor.adapters.processes.guard_client import GuardClient
from supervisor.adapters.processes.worker_process import WorkerProcess
from tests.running import Result, Running, Start, command_config, eventually, lives

Supervise = Callable[..., Result]
HIDES = """
import os, signal
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.write(1, b"%d\\n" % os.getpid())
signal.pause()
"""


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
    assert eventually(lambda: not lives(hidden.pid))
    assert eventually(lambda: not lives(guard.pid)), "the guard ends when its work is done"


def test_a_signal_to_the_process_group_spares_the_guard(start: Start, model_dir: Path) -> None:
    running, hidden = hiding(start, model_dir)
    guard = guard_of(running)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        guard.send_signal(number)
    assert os.getpgid(guard.pid) != os.getpgid(running.process.pid)
    running.signal(signal.SIGKILL)
    assert eventually(lambda: not lives(hidden.pid))


def test_a_killed_guard_takes_the_attempt_with_it_and_is_replaced(
    start: Start, model_dir: Path
) -> None:
    running = start(command_config(model_dir, "hide", "--once", success={"step": 6}))
    found = re.search(r"(\d+) is hidden", running.wait_for(" is hidden"))
    assert found
    hidden = psutil.Process(int(found[1]))
    guard_of(running).kill()
    running.wait_for_event("guard-lost", reason="killed")
    running.wait_for_event("attempt-started", attempt=2)
    assert not lives(hidden.pid)
    result = running.result()
    assert result.code == 0
    failure = result.summary["attempts"][0]["failure"]
    assert (failure["rule"], result.summary["restarts_used"]) == ("guard-lost", 0)


def test_the_guard_is_small(start: Start, model_dir: Path) -> None:
    running = start(command_config(model_dir, "wait"))
    running.wait_for("waiting")
    memory = guard_of(running).memory_full_info()
    assert memory.pss < 8 << 20
    assert memory.uss < 4 << 20


@pytest.fixture
def guard() -> Iterator[GuardClient]:
    one = GuardClient(print)
    try:
        yield one
    finally:
        one.dismiss()


def asleep(guard: GuardClient) -> WorkerProcess:
    """A process of the job that does nothing."""
    return WorkerProcess(guard, ["sleep", "60"], env=os.environ, output=2)


HOPS = """
import os, sys, time
os.write(1, b"hops\\n")
for hop in range(int(sys.argv[1])):
    if os.fork():
        os._exit(0)
os.write(1, b"rests\\n")
time.sleep(3600)
"""
"""A process that ends as soon as it has a child, which does the same, and so on: so does a chain of
shells around a trainer when each gets SIGTERM."""


def idle(guard: GuardClient) -> tuple[WorkerProcess, int]:
    """A process of the job and one that it has left in a session of its own, without a parent,
    with its environment overwritten."""
    reads, writes = os.pipe()
    with os.fdopen(reads) as output, os.fdopen(writes, "w") as theirs:
        argv = [sys.executable, "-S", "-c", HIDES]
        worker = WorkerProcess(guard, argv, env={}, output=theirs.fileno())
        theirs.close()  # so that there is an end to what is read, should it die first
        hidden = int(output.readline())
    return worker, hidden


def test_a_guard_kills_all_that_it_has_started_when_the_supervisor_is_gone(
    guard: GuardClient,
) -> None:
    other = GuardClient(print)
    worker, hidden = idle(other)
    spared, spared_too = idle(guard)
    other.dismiss()
    assert not lives(worker.pid)
    assert not lives(hidden)
    assert lives(spared.pid)
    assert lives(spared_too)


def test_a_guard_kills_when_the_lease_is_not_renewed(guard: GuardClient) -> None:
    worker = asleep(guard)
    guard.kill_unless_renewed(3600)
    guard.kill_unless_renewed(0.05)
    assert worker.wait().signal == "SIGKILL"
    late = asleep(guard)
    assert late.wait().signal == "SIGKILL", "until it is renewed"
    guard.kill_unless_renewed(3600)
    worker, hidden = idle(guard)
    guard.request_kill()
    assert worker.wait().signal == "SIGKILL"
    assert eventually(lambda: not lives(hidden))


def test_all_but_what_is_spared_is_killed_and_confirmed(guard: GuardClient) -> None:
    worker, hidden = idle(guard)
    standby, _ = idle(guard)
    while guard.kill([standby.pid]):
        pass
    assert not lives(worker.pid)
    assert not lives(hidden)
    assert lives(standby.pid)
    assert worker.wait().signal == "SIGKILL"


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
    assert guard_of(running) in supervisor.children(), "it is below it that they are left"

    def is_zombie(child: psutil.Process) -> bool:
        try:
            return child.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:  # reaped since it was listed
            return False

    def none_left() -> bool:
        return not any(is_zombie(child) for child in supervisor.children(recursive=True))

    assert eventually(none_left)


def test_an_orphan_whose_parent_has_just_ended_is_not_overlooked(guard: GuardClient) -> None:
    reads, writes = os.pipe()
    with os.fdopen(reads, "rb", 0) as output, os.fdopen(writes, "wb") as theirs:
        argv = [sys.executable, "-S", "-c", HOPS, "200"]
        worker = WorkerProcess(guard, argv, env={}, output=theirs.fileno())
        theirs.close()
        worker.wait()
        assert output.readline() == b"hops\n"
        while not select.select([output], [], [], 0)[0]:
            assert guard.orphans() != [], "one lives all the time"
        assert eventually(lambda: len(guard.orphans() or []) == 1)


def test_the_processes_of_the_job_are_stopped_and_go_on(guard: GuardClient) -> None:
    worker, hidden = idle(guard)
    both = [psutil.Process(worker.pid), psutil.Process(hidden)]
    assert guard.stop_workers()
    assert [one.status() for one in both] == [psutil.STATUS_STOPPED] * 2
    assert psutil.Process(guard.pid).status() != psutil.STATUS_STOPPED
    guard.continue_workers()
    assert eventually(lambda: all(one.status() != psutil.STATUS_STOPPED for one in both))
    assert guard.stop_workers()
    while guard.kill():
        pass
    assert worker.wait().signal == "SIGKILL", "what is stopped can be killed"


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        ("import os; os._exit(7)", "exit code 7"),
        ("import os; os.kill(os.getpid(), 11)", "killed by SIGSEGV"),
        ("import os; os.kill(os.getpid(), 40)", "killed by signal 40"),
    ],
)
def test_an_end_is_told_exactly(guard: GuardClient, ends: str, text: str) -> None:
    argv = [sys.executable, "-S", "-c", ends]
    assert str(WorkerProcess(guard, argv, env={}, output=2).wait()) == text


def test_hundreds_of_short_lives_are_told_and_reaped(guard: GuardClient) -> None:
    for code in range(200):
        argv = ["sh", "-c", f"(sleep 0 &) ; exit {code}"]
        assert WorkerProcess(guard, argv, env=os.environ, output=2).wait().code == code
    assert eventually(lambda: not psutil.Process(guard.pid).children())


def test_signals_are_as_a_program_expects_them(guard: GuardClient) -> None:
    """None is blocked, and those that Python ignores have their default."""
    reads, writes = os.pipe()
    with os.fdopen(reads) as output, os.fdopen(writes, "w") as theirs:
        argv = ["grep", "Sig", "/proc/self/status"]
        worker = WorkerProcess(guard, argv, env=os.environ, output=theirs.fileno())
        theirs.close()
        said = output.read()
    assert worker.wait().clean
    masks = dict(line.split(":") for line in said.splitlines())
    assert int(masks["SigBlk"], 16) == 0
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        assert not int(masks["SigIgn"], 16) & 1 << (number - 1)


def test_an_environment_and_a_command_line_may_be_large(guard: GuardClient) -> None:
    text = "x" * 100_000
    argv = ["sh", "-c", "test ${#BIG} = 100000 && test ${#1} = 100000 && exit 5", "sh", text]
    assert WorkerProcess(guard, argv, env={**os.environ, "BIG": text}, output=2).wait().code == 5
    env = {f"V{number}": text for number in range(5)}
    assert WorkerProcess(guard, ["/bin/true"], env=env, output=2).wait().clean


def test_descriptors_keep_their_numbers(guard: GuardClient) -> None:
    """Also where the guard has received them under the number of another one."""
    files = [tempfile.TemporaryFile() for _ in range(12)]  # noqa: SIM115
    numbers = [file.fileno() for file in files]
    program = "import os, sys\nfor n in sys.argv[1:]: os.write(int(n), n.encode())"
    argv = [sys.executable, "-S", "-c", program, *map(str, numbers)]
    for inherit in (numbers, numbers[::-1], numbers[5:] + numbers[:5]):
        assert WorkerProcess(guard, argv, env={}, output=2, inherit=inherit).wait().clean
        for file in files:
            file.seek(0)
            assert file.read() == str(file.fileno()).encode()
            file.truncate(0)
            file.seek(0)
    for file in files:
        file.close()


def test_a_process_inherits_no_descriptor_that_it_is_not_to(guard: GuardClient) -> None:
    program = "import os, sys; sys.exit(len(os.listdir('/proc/self/fd')) - 1)"
    argv = [sys.executable, "-S", "-c", program]
    assert WorkerProcess(guard, argv, env={}, output=2).wait().code == 3
