"""The guard's part of the fence: it kills at a time, also after it stood still itself."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from supervisor.adapters.processes.guard_client import GuardClient
from supervisor.host.guard_socket import Started
from supervisor.host.waiting import has_ended

_LATER = 1000.0


@pytest.fixture
def guard() -> Iterator[GuardClient]:
    made = GuardClient(print)
    yield made
    made.dismiss()


def started(guard: GuardClient) -> Started:
    null = os.open(os.devnull, os.O_RDWR)
    try:
        return guard.start(["sleep", "1000"], dict(os.environ), null, null)
    finally:
        os.close(null)


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def test_it_kills_at_the_deadline_and_not_before(guard: GuardClient) -> None:
    process = started(guard)
    deadline = boottime() + 0.3
    guard.kill_at(deadline)
    assert has_ended(process.pidfd, 10.0)
    assert 0.0 <= boottime() - deadline < 1.0


def test_a_later_deadline_spares(guard: GuardClient) -> None:
    process = started(guard)
    guard.kill_at(boottime() + 0.3)
    guard.kill_at(boottime() + _LATER)
    assert not has_ended(process.pidfd, 0.6)


def test_a_guard_that_was_frozen_beyond_the_deadline_kills_whatever_it_is_told_next(
    guard: GuardClient,
) -> None:
    """The later deadline waits in its socket when it thaws: it must not count."""
    process = started(guard)
    deadline = boottime() + 0.3
    guard.kill_at(deadline)
    os.kill(guard.pid, signal.SIGSTOP)
    guard.kill_at(boottime() + _LATER)
    assert not has_ended(process.pidfd, deadline - boottime() + 0.1)
    os.kill(guard.pid, signal.SIGCONT)
    assert has_ended(process.pidfd, 1.0)


def test_the_deadline_holds_for_the_next_guard_too(guard: GuardClient) -> None:
    guard.kill_at(boottime() + 1.0)
    os.kill(guard.pid, signal.SIGKILL)
    assert has_ended(guard.pidfd, 10.0)
    process = started(guard)
    assert has_ended(process.pidfd, 10.0)
