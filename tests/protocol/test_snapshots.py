"""A worker finds the memory that it inherits, and nothing else under its number."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from supervisor.protocol import environment
from supervisor.protocol.environment import snapshot_memory, snapshot_variables


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = os.memfd_create("test")
    yield descriptor
    os.close(descriptor)


def test_the_memory_is_found_by_number_and_identity(memory: int) -> None:
    told = snapshot_variables(memory)
    assert snapshot_memory(told) == memory
    assert not os.get_inheritable(memory)
    assert snapshot_memory({}) is None
    assert snapshot_memory({**told, environment.SNAPSHOT_FD: "-1"}) is None
    assert snapshot_memory({**told, environment.SNAPSHOT_FD: "0"}) is None
    assert snapshot_memory({**told, environment.SNAPSHOT_MEMORY: "1:2"}) is None
    other = os.memfd_create("another")
    assert snapshot_memory({**told, environment.SNAPSHOT_FD: str(other)}) is None
    os.close(other)
    assert snapshot_memory({**told, environment.SNAPSHOT_FD: str(other)}) is None


def test_what_a_worker_starts_does_not_inherit_it(memory: int) -> None:
    program = (
        "import subprocess, sys\n"
        "from supervisor.protocol.environment import snapshot_memory\n"
        "assert snapshot_memory() is not None\n"
        "import os; pid = os.spawnv(os.P_WAIT, sys.executable, [sys.executable, '-c',\n"
        "'from supervisor.protocol.environment import snapshot_memory as m; assert m() is None'])\n"
        "sys.exit(pid)\n"
    )
    environ = {**os.environ, **snapshot_variables(memory)}
    done = subprocess.run([sys.executable, "-c", program], env=environ, pass_fds=(memory,))
    assert done.returncode == 0
