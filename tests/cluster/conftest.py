"""The cluster that the tests of this folder share, and the bounds that they measure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.hosts import network
from tests.running import child_pids, children, eventually

_NOWHERE = Path("/nowhere")
_SHARED: list[Cluster] = []
"""The cluster that tests share, once there is one."""


_BOUND = "bound of the cluster"
"""The property of a test's report that says what took how long."""


@dataclass
class Bounds:
    """Records in the report of a test what took how long."""

    record: Callable[[str, object], None]

    def measured(self, what: str, seconds: float, bound: float | None = None) -> None:
        """Keep a measurement for the end of the output; `bound` is what the design promises, if it
        does. A test allows much more: it may run on a machine that is busy."""
        promised = f" (bound {bound:g} s)" if bound is not None else ""
        self.record(_BOUND, f"{what}: {seconds:.2f} s{promised}")


@pytest.fixture
def bounds(record_property: Callable[[str, object], None]) -> Bounds:
    return Bounds(record_property)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was measured, in whichever worker process."""
    ran = terminalreporter.stats.get("passed", []) + terminalreporter.stats.get("failed", [])
    properties = [each for report in ran for each in report.user_properties]
    if lines := [str(value) for name, value in properties if name == _BOUND]:
        terminalreporter.section("bounds of the cluster")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture(autouse=True)
def _no_child_is_left() -> Iterator[None]:
    """Fail a test that leaves a child process, but for those of the hosts that tests share."""
    before = child_pids()
    yield
    stays = before | {pid for shared in _SHARED for pid in shared.children}

    def left() -> dict[int, str]:
        return {pid: command for pid, command in children().items() if pid not in stays}

    assert eventually(lambda: not left()), f"the test leaves child processes behind: {left()}"


@pytest.fixture(scope="package")
def _cluster() -> Iterator[Cluster]:
    with network() as hosts:
        shared = Cluster(hosts, _NOWHERE)
        _SHARED.append(shared)
        yield shared


@pytest.fixture
def cluster(_cluster: Cluster, tmp_path: Path) -> Iterator[Cluster]:
    """The cluster that most tests share; its head may train."""
    with _cluster.of_a_test(tmp_path / "run"):
        yield _cluster


@pytest.fixture
def cluster_beside_its_head(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of a test's own, whose head trains nothing, as that of KubeRay."""
    with network() as hosts:
        yield Cluster(hosts, tmp_path / "run", head_trains=False)
