"""What runs in the background rests while others want the CPU, and only then."""

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

from supervisor.adapters.clock import SystemClock
from supervisor.adapters.contention import ran_and_waited
from supervisor.adapters.processes import WorkerProcess
from supervisor.adapters.reactor import Reactor
from supervisor.engines.throttle import Throttle
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


def test_it_rests_most_of_the_time_while_others_want_the_cpu(begin: Begin) -> None:
    reactor, one = Reactor(SystemClock()), begin()
    begin()
    throttle = Throttle(reactor, one)
    assert spent(one, reactor, 5.0) < 1.0, "half of it is its share"
    assert 0 < throttle.ran < 1.0


@pytest.mark.parametrize(("waited", "is_in_the_way"), [(11, True), (9, False), (0, False)])
def test_it_rests_if_it_had_to_wait(begin: Begin, waited: int, is_in_the_way: bool) -> None:
    reactor, process = Reactor(SystemClock()), begin()
    measured = iter([(1000, 500), (1100, 500 + waited)])
    Throttle(reactor, process, lambda _: next(measured, (1100, 500)))
    reactor.wait(SystemClock().now() + 0.3)
    assert rests(process) == is_in_the_way


def test_where_the_kernel_does_not_count_it_rests(begin: Begin) -> None:
    reactor, process = Reactor(SystemClock()), begin()
    Throttle(reactor, process, lambda _: (0, 0))
    reactor.wait(SystemClock().now() + 0.3)
    assert rests(process)


def test_what_is_held_does_not_run_until_it_is_released(begin: Begin) -> None:
    reactor, process = Reactor(SystemClock()), begin()
    ran = count()
    throttle = Throttle(reactor, process, lambda _: (next(ran), 0))
    throttle.hold()
    throttle.hold()
    assert eventually(lambda: rests(process))
    assert spent(process, reactor, 3.0) == 0.0, "whatever was planned"
    throttle.release()
    assert spent(process, reactor, 0.5) > 0.0
    throttle.end()
    assert not rests(process)


def test_what_has_ended_is_left_alone(begin: Begin) -> None:
    reactor, process = Reactor(SystemClock()), begin()
    throttle = Throttle(reactor, process)
    throttle.end()
    reactor.wait(SystemClock().now() + 0.5)
    assert throttle.ran == 0.0
    assert not rests(process)
