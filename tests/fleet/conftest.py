"""The Ray that the tests of this folder share."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.fleet.ray_nodes import TOKEN, RayNodes, ray_nodes
from tests.running import child_pids, children


@pytest.fixture(scope="session")
def _ray() -> Iterator[RayNodes]:
    with ray_nodes() as nodes:
        for _ in range(3):
            nodes.start()
        yield nodes


@pytest.fixture
def ray(_ray: RayNodes, monkeypatch: pytest.MonkeyPatch) -> RayNodes:
    """A head and two more nodes; this process has the token."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    _ray.settle()  # what an earlier test has killed is no host of this one
    return _ray


@pytest.fixture
def own_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[RayNodes]:
    """A cluster without nodes for one test, after which nothing of it is left."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    before = child_pids()
    with ray_nodes() as nodes:
        yield nodes
    # Ray's agents overwrite their environment, so no mark finds them. Where orphans become children
    # of this process, they take it for their node, and live on. What forks for `start` stays.
    for pid, command in children().items():
        if pid not in before and "tests.forked" not in command:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
