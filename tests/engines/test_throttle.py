"""What runs in the background has a tenth of a core while others want the CPU, else all of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import count
from signal import SIGKILL

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.adapters.kernel.capacity import ran_and_waited
from supervisor.adapters.kernel.clock import SystemClock
from supervisor.adapters.kernel.reactor import Reactor
from supervisor.adapters.processes.worker_process import WorkerProcess
from supervisor.engines.ahead.throttle import Throttle, rest_after
from tests.running import eventually, shared_guard

Begin = Callable[[], WorkerProcess]


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Starts a program that always wants to run, and may on one CPU alone."""
    with ExitStack() as stack:

        def begun() -> WorkerProcess:
            argv = (sys.executable, "-c", "while True: pass")
            process = WorkerProcess(shared_guard(), argv, env=os.environ, output=2)
            stack.callback(process.close)
            stack.callback(process.wait)
            stack.callback(process.signal, SIGKILL)
            os.sched_setaffinity(process.pid, {min(os.sched_getaffinity(0))})
            return process

        yield begun


def rests(process: WorkerProcess) -> bool:
    return bool(psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)


def has_run(pid: int) -> bool:
    return ran_and_waited(pid)[0] > 100_000_000


def spent(process: WorkerProcess, reactor: Reactor, seconds: float) -> float:
    """For how long it runs in so many seconds."""
    before = ran_and_waited(process.pid)[0]
    reactor.wait(SystemClock().now() + seconds)
    return (ran_and_waited(process.pid)[0] - before) / 1e9


def test_of_two_that_share_a_cpu_each_waits_for_the_other(begin: Begin) -> None:
    one, other = begin(), begin()
    for process in (one, other):
        assert eventually(partial(has_run, process.pid))
        ran, waited = ran_and_waited(process.pid)
        assert waited > ran / 4


def test_nobody_is_gone_for_nothing() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert ran_and_waited(ended.pid) == (0, 0)


SECONDS = st.floats(0.001, 100.0)


@given(SECONDS, st.floats(0.0, 8.0))
def test_while_others_want_the_cpu_it_has_a_tenth_of_a_core_or_what_it_gets(
    wall: float, cores: float
) -> None:
    passed = wall + rest_after(wall, ran=wall * cores, waited=wall)
    assert wall * cores / passed == pytest.approx(min(cores, 0.1))


@given(SECONDS, SECONDS)
def test_it_rests_only_if_it_had_to_wait_and_had_more_than_its_share(
    wall: float, ran: float
) -> None:
    assert rest_after(wall, ran, waited=0.0) == 0.0
    assert rest_after(wall, ran, waited=0.09 * ran) == 0.0
    assert (rest_after(wall, ran, waited=0.11 * ran) > 0.0) == (ran / 0.1 > wall)


def test_beside_a_busy_process_it_rests_and_goes_on(begin: Begin) -> None:
    reactor, one = Reactor(SystemClock()), begin()
    begin()
    throttle = Throttle(reactor, SystemClock(), one, ran_and_waited)

    def turn(state: bool) -> bool:
        return eventually(lambda: waited(reactor) or rests(one) == state, 30.0)

    for _ in range(3):
        assert turn(True), "half of the core is its share, and more than a tenth"
        assert turn(False), "it is not left there"
    throttle.end()


def waited(reactor: Reactor) -> bool:
    """Let its timers run."""
    reactor.wait(SystemClock().now() + 0.01)
    return False


def test_where_the_kernel_does_not_count_it_rests(begin: Begin) -> None:
    reactor, process = Reactor(SystemClock()), begin()
    Throttle(reactor, SystemClock(), process, lambda _: (0, 0))
    reactor.wait(SystemClock().now() + 0.3)
    assert rests(process)


def test_what_is_held_does_not_run_until_it_is_released(begin: Begin) -> None:
    reactor, process = Reactor(SystemClock()), begin()
    ran = count()
    throttle = Throttle(reactor, SystemClock(), process, lambda _: (next(ran), 0))
    throttle.pause()
    throttle.pause()
    assert eventually(lambda: rests(process))
    assert spent(process, reactor, 3.0) == 0.0, "whatever was planned"
    throttle.resume()
    assert spent(process, reactor, 0.5) > 0.0
    throttle.end()
    assert not rests(process)


def test_what_has_ended_is_left_alone(begin: Begin) -> None:
    reactor, process = Reactor(SystemClock()), begin()
    throttle = Throttle(reactor, SystemClock(), process, ran_and_waited)
    throttle.end()
    reactor.wait(SystemClock().now() + 0.5)
    assert throttle.ran == 0.0
    assert not rests(process)
