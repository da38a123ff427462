"""Killing what is in a cgroup, also with a kernel that has no `cgroup.kill` (before 5.14)."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest

from supervisor.host import cgroups
from tests.running import may_mount

FORKS = r"""
import os, sys, time
from supervisor.host import cgroups
cgroups.join(sys.argv[1])
for _ in range(5):
    os.fork()
    os.setsid() if os.getpid() != os.getsid(0) else None
os.write(1, b"up\n")
time.sleep(60)
"""
MASKED = 'mount --bind /proc/version {0}/cgroup.kill && ! echo 1 > {0}/cgroup.kill && exec "$@"'
KILL = "import sys; from supervisor.host import cgroups; cgroups.kill(sys.argv[1])"


@pytest.fixture
def cgroup() -> Iterator[str]:
    made = cgroups.made(f"supervise-test-{uuid.uuid4().hex}")
    if made is None:
        pytest.skip("NOT TESTED: no cgroup can be made here")
    yield made
    cgroups.kill(made)
    while cgroups.populated(made):
        pass
    cgroups.remove(made)


def test_without_cgroup_kill_each_process_is_killed(cgroup: str) -> None:
    if not may_mount():
        pytest.skip("NOT TESTED: needs a mount namespace")
    with subprocess.Popen([sys.executable, "-c", FORKS, cgroup], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(32):
            assert process.stdout.readline() == b"up\n"
        assert len(cgroups.members(cgroup)) == 32
        masked = ["unshare", "-m", "sh", "-c", MASKED.format(cgroup), "sh"]
        subprocess.run([*masked, sys.executable, "-c", KILL, cgroup], check=True)
        assert process.wait(10) == -9
        process.stdout.read()  # until the last of them is gone
    assert cgroups.members(cgroup) == []
