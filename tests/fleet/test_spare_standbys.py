"""Real agents: hosts with ranks and spares have a standby each, and the next attempt takes them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.core.events import Noticed, WorkersGone, WorkersObserved, WorkersStarted
from supervisor.engines.launch import Launch
from tests.engines.benches import launch_in
from tests.fleet.cluster import Cluster
from tests.fleet.leading import Leader

PROGRAM = """
import json, os, signal, sys
told = json.dumps({"v": 1, "kind": "step", "step": 1}).encode() + b"\\n"
os.write(int(os.environ["SUPERVISE_PROGRESS_FD"]), told)
signal.pause()
"""
SIZE = 2
LOST_AFTER = 4.0
"""Longer than for tests of the fence: what it kills on a busy machine, no standby survives."""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Two hosts and a spare."""
    made = Cluster(SIZE + 1)
    yield made
    made.close()


def launch_of(folder: Path, attempt: int = 1, *, preload: str = "colorsys") -> Launch:
    """An attempt of a Python program that takes a step and waits; standbys import `preload`."""
    program = folder / "train.py"
    program.write_text(PROGRAM)
    launch = launch_in(folder, (sys.executable, str(program)), SIZE)
    plan = replace(launch.plan, standby="imports", bootstrap=True, preload=(preload,))
    attempts = folder / "now_restartable" / "attempts"
    attempts.mkdir(parents=True, exist_ok=True)
    return replace(launch, plan=plan, attempt=attempt, directory=attempts / f"{attempt:04}")


def leader_of(cluster: Cluster, folder: Path) -> Leader:
    """A leader of two hosts and a spare."""
    return Leader(cluster, folder, size=SIZE, spares=1, lost_after=LOST_AFTER)


def standbys(leader: Leader) -> dict[str, int]:
    """The pid of the last standby of each host that has told that one is ready."""
    told = (event.text for event in leader.of(Noticed))
    ready = (notice for notice in told if notice.event == "standby-ready")
    return {str(notice).partition("]")[0][1:]: int(str(notice.keys["pid"])) for notice in ready}


def with_standbys(leader: Leader, folder: Path) -> WorkersStarted:
    """Start the first attempt, and wait until all hosts have a standby."""
    started = leader.start(launch_of(folder))
    leader.until(lambda: len(standbys(leader)) == SIZE + 1)
    return started


def lose_a_rank(leader: Leader, folder: Path) -> None:
    """Have the core kill the first attempt, once one of its ranks has ended."""
    ended = leader.first(WorkersObserved, lambda event: bool(event.exits))
    leader.engine.kill(launch_of(folder), ended.exits)
    leader.first(WorkersGone)


def test_a_rank_dies_and_the_standbys_of_its_hosts_take_over(
    cluster: Cluster, tmp_path: Path
) -> None:
    leader = leader_of(cluster, tmp_path)
    started = with_standbys(leader, tmp_path)
    os.kill(started.pids[0], signal.SIGKILL)
    lose_a_rank(leader, tmp_path)
    again = leader.start(launch_of(tmp_path, 2))
    assert again.standby
    assert list(again.pids) == [standbys(leader)[node] for node in leader.nodes]


def test_the_standby_of_a_spare_takes_the_place_of_a_lost_host(
    cluster: Cluster, tmp_path: Path
) -> None:
    leader = leader_of(cluster, tmp_path)
    with_standbys(leader, tmp_path)
    spare = next(node for node in cluster.nodes if node not in leader.nodes)
    cluster.vanish(leader.nodes[0])
    lose_a_rank(leader, tmp_path)
    again = leader.start(launch_of(tmp_path, 2))
    assert leader.nodes[0] == spare
    assert again.standby
    assert again.pids[0] == standbys(leader)[spare]


def test_another_config_has_all_hosts_prepare_anew(cluster: Cluster, tmp_path: Path) -> None:
    """As a new phase does: what the standbys have imported is of no use for it."""
    leader = leader_of(cluster, tmp_path)
    started = with_standbys(leader, tmp_path)
    before = standbys(leader)
    os.kill(started.pids[0], signal.SIGKILL)
    lose_a_rank(leader, tmp_path)
    again = leader.start(launch_of(tmp_path, 2, preload="plistlib"))
    assert not again.standby
    leader.until(lambda: not {*before.values()}.intersection(standbys(leader).values()))
    leader.until(lambda: not any(Path(f"/proc/{pid}/cwd").exists() for pid in before.values()))


def test_a_spare_that_was_cut_off_for_long_has_another_standby(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Its guard has killed the first one."""
    leader = leader_of(cluster, tmp_path)
    with_standbys(leader, tmp_path)
    spare = next(node for node in cluster.nodes if node not in leader.nodes)
    killed = standbys(leader)[spare]
    cluster.on(spare).cut()
    leader.until(lambda: not Path(f"/proc/{killed}/cwd").exists())
    cluster.on(spare).heal()
    leader.until(lambda: standbys(leader)[spare] != killed)
    assert "standby-failed" not in leader.notices()
