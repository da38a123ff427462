"""SIGTERM to the worker alone, which saves and exits as if all was done: a preemption."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.running import Result, Running, Start

Supervise = Callable[..., Result]

READY = "import os; os.write(1, b'ready\\n')\n"
HANDLERS = {
    "a handler that exits": f"""
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
{READY}
while True: time.sleep(0.01)
""",
    "a handler that leaves at once": f"""
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
{READY}
while True: time.sleep(0.01)
""",
    "a flag, and a main module that has ended": f"""
import signal, threading
stop = threading.Event()
threading.Thread(target=stop.wait).start()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
{READY}
""",
    "a thread that waits for it": f"""
import signal, threading
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
waiting = threading.Thread(target=signal.sigwait, args=([signal.SIGTERM],))
waiting.start()
{READY}
waiting.join()
""",
    "asyncio": f"""
import asyncio, signal
async def main():
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    {READY}
    await stop.wait()
asyncio.run(main())
""",
    "uvloop": f"""
import asyncio, signal
import uvloop
async def main():
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    {READY}
    await stop.wait()
uvloop.run(main())
""",
    "a loop that needs the wakeup fd for itself, as trio does": f"""
import signal, socket
woken, wakes = socket.socketpair()
wakes.setblocking(False)
assert signal.set_wakeup_fd(wakes.fileno()) == -1
signal.signal(signal.SIGTERM, lambda *_: None)
{READY}
assert woken.recv(1) == bytes([signal.SIGTERM])
assert signal.set_wakeup_fd(-1) == wakes.fileno()
""",
    "another exit code, without a word": f"""
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
{READY}
while True: time.sleep(0.01)
""",
    "an exception of its own": f"""
import signal, time
class Evicted(Exception): pass
def evict(*_): raise Evicted
signal.signal(signal.SIGTERM, evict)
{READY}
while True: time.sleep(0.01)
""",
}


def config(model_dir: Path, program: str, **command: Any) -> dict[str, Any]:
    first = "import sys\nif sys.argv[1] == '2': sys.exit(0)\n"
    return {
        "trainer": {
            "init": {"model_dir": str(model_dir), "autorestart": {"max_num_restarts": 0}},
            "command": {"argv": [sys.executable, "-c", first + program, "{attempt}"], **command},
        }
    }


def sigterm(running: Running) -> None:
    """Send it to the worker alone, which is ready."""
    running.wait_for("ready\n")
    (pid,) = running.wait_for_event("workers-started")["pids"]
    os.kill(pid, signal.SIGTERM)


@pytest.mark.parametrize("how", HANDLERS)
def test_it_is_a_preemption_however_the_program_hears_of_it(
    start: Start, model_dir: Path, how: str
) -> None:
    running = start(config(model_dir, HANDLERS[how]))
    sigterm(running)
    result = running.result()
    assert result.code == 0, result.out
    assert result.attempts == 2
    assert result.has_event("worker-told-to-stop", rank=0)
    assert result.has_event("attempt-failed", charge="preemptions")
    assert result.summary["attempts"][0]["failure"]["charge"] == "preemptions"
    assert result.summary["preemptions_used"] == 1
    assert result.summary["restarts_used"] == 0


@pytest.mark.parametrize("before", [("env", "A=1"), ("nohup", "nice", "-n", "1")], ids=" ".join)
def test_a_command_that_becomes_the_program_hides_nothing(
    start: Start, model_dir: Path, before: tuple[str, ...]
) -> None:
    job = config(model_dir, HANDLERS["a handler that exits"], env={"B": "2"})
    command = job["trainer"]["command"]
    command["argv"] = [*before, *command["argv"]]
    running = start(job)
    sigterm(running)
    result = running.result()
    assert result.code == 0, result.out
    assert result.attempts == 2
    assert result.has_event("attempt-failed", charge="preemptions")


def test_a_stop_that_a_program_behind_env_hears_of_first_is_a_stop(
    start: Start, model_dir: Path
) -> None:
    job = config(model_dir, HANDLERS["a handler that exits"])
    command = job["trainer"]["command"]
    command["argv"] = ["env", "A=1", *command["argv"]]
    running = start(job)
    sigterm(running)
    running.signal(signal.SIGTERM)
    result = running.result()
    assert result.code == 75, result.out


def test_its_budget_is_that_of_preemptions(start: Start, model_dir: Path) -> None:
    job = config(model_dir, HANDLERS["a handler that exits"])
    job["trainer"]["init"]["autorestart"]["max_num_preemptions"] = 0
    running = start(job)
    sigterm(running)
    result = running.result()
    assert result.code == 76
    why = "the budget of 0 preemptions without a new checkpoint is spent"
    assert why in result.event("job-ended")["reason"]


@pytest.mark.parametrize("proof", [True, False])
def test_a_declared_success_decides_where_there_is_one(
    start: Start, model_dir: Path, proof: bool
) -> None:
    says = "os.write(1, b'all done\\n')" if proof else "0"
    program = f"""
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: [{says}, sys.exit(0)])
{READY}
while True: time.sleep(0.01)
"""
    job = config(model_dir, program, success={"pattern": "all done"})
    job["trainer"]["init"]["autorestart"]["max_num_preemptions"] = 0
    running = start(job)
    sigterm(running)
    assert running.result().code == (0 if proof else 76)


def test_it_is_a_drain_where_the_supervisor_gets_one_too(start: Start, model_dir: Path) -> None:
    running = start(config(model_dir, HANDLERS["a handler that exits"]))
    sigterm(running)
    running.wait_for_event("rank-ended", rank=0, code=0)
    running.signal(signal.SIGTERM)
    result = running.result()
    assert result.code == 75
    assert result.attempts == 1


def test_the_supervisor_s_own_is_none(start: Start, model_dir: Path) -> None:
    running = start(config(model_dir, HANDLERS["a handler that exits"]))
    running.wait_for("ready")
    running.signal(signal.SIGTERM)
    result = running.result()
    assert result.code == 75
    assert not result.has_event("worker-told-to-stop")
    assert result.summary["preemptions_used"] == 0


def test_one_that_a_child_gets_is_none(supervise: Supervise, model_dir: Path) -> None:
    """A pool of processes ends its children so, and they have its handlers."""
    program = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
lives, says = os.pipe()
if (child := os.fork()) == 0:
    os.write(says, b"1")
    while True: time.sleep(0.01)
os.read(lives, 1)
os.kill(child, signal.SIGTERM)
assert os.waitpid(child, 0)[1] == 0
"""
    result = supervise(config(model_dir, program))
    assert result.code == 0
    assert result.attempts == 1
    assert not result.has_event("worker-told-to-stop")


def test_what_the_launcher_torchrun_makes_of_it(start: Start, model_dir: Path) -> None:
    program = f"""
import signal, time
class SignalException(Exception):
    __module__ = "torch.distributed.elastic.multiprocessing.api"
def stop(number, frame): raise SignalException("Process 7 got signal: 15")
signal.signal(signal.SIGTERM, stop)
{READY}
while True: time.sleep(0.01)
"""
    running = start(config(model_dir, program, bootstrap=False))
    sigterm(running)
    result = running.result()
    assert (result.code, result.attempts) == (0, 2)
    assert result.summary["attempts"][0]["failure"]["rule"] == "launcher-sigterm"
    assert result.summary["preemptions_used"] == 1


def test_a_shell_that_exits_with_0_leaves_no_sign_and_is_believed(
    start: Start, model_dir: Path
) -> None:
    """So exit code 0 alone is not final."""
    job = config(model_dir, "")
    script = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    job["trainer"]["command"]["argv"] = ["bash", "-c", script]
    running = start(job)
    sigterm(running)
    result = running.result()
    assert (result.code, result.attempts) == (0, 1)
    assert result.has_event("success-by-exit-code")


def test_who_keeps_the_sigterm_of_a_drain_is_told_once(start: Start, model_dir: Path) -> None:
    """With jax.distributed a process has a handler, which alone saves nothing."""
    line = "W1122 13:59:05.468181   29360 preemption_notifier.cc:90] SIGTERM caught at 2026-11-22"
    job = config(model_dir, "")
    trap = f"echo '{line}'; echo '{line}'; exit 0"
    script = f'trap "{trap}" TERM; echo ready; while :; do sleep 0.05; done'
    job["trainer"]["command"]["argv"] = ["bash", "-c", script]
    running = start(job)
    running.wait_for("ready")
    running.signal(signal.SIGTERM)
    result = running.result()
    assert result.code == 75, result.log
    told = [each for each in result.events("sigterm-reaction") if each["reason"] == "jax"]
    assert [each["ranks"] for each in told] == [[0]]
    assert "reached_preemption_sync_point" in told[0]["text"]
    assert told[0]["level"] == "info", "the program may ask"


def test_what_jax_says_of_it(start: Start, model_dir: Path) -> None:
    """jax takes SIGTERM for itself once it is distributed: a program of any language may use it."""
    line = "W1122 13:59:05.468181   29360 preemption_notifier.cc:90] SIGTERM caught at 2026-11-22"
    job = config(model_dir, "")
    script = f"[ $0 = 2 ] || echo '{line}'"
    job["trainer"]["command"]["argv"] = ["bash", "-c", script, "{attempt}"]
    result = start(job).result()
    assert (result.code, result.attempts) == (0, 2)
    assert result.summary["preemptions_used"] == 1
