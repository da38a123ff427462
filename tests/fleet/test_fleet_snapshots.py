"""Each agent keeps the memory for snapshots of its rank, as long as its host has one."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

from supervisor.core.events import WorkersGone, WorkersObserved
from supervisor.engines.launch import Launch
from tests.fleet.cluster import Cluster
from tests.fleet.leading import Leader
from tests.fleet.leading import launch_of as shell_launch
from tests.running import eventually

PROGRAM = """
import json, os, signal
from pathlib import Path

env = os.environ
memory = int(env["SUPERVISE_SNAPSHOT_FD"])
found = os.fstat(memory).st_size > 0
os.pwrite(memory, b"a snapshot", 0)
restored = {"v": 1, "kind": "restored", "step": None, "snapshot": False}
os.write(int(env["SUPERVISE_PROGRESS_FD"]), json.dumps(restored).encode() + b"\\n")
file = Path(__file__).with_name(f"{env['SUPERVISE_ATTEMPT']}-{env['SUPERVISE_RANK']}.found")
file.with_suffix(".new").write_text(json.dumps(found))
file.with_suffix(".new").rename(file)
signal.pause()
"""


def launch_of(folder: Path, attempt: int) -> Launch:
    """An attempt on two hosts whose ranks leave something in the memory for snapshots."""
    program = folder / "train.py"
    program.write_text(PROGRAM)
    launch = shell_launch(folder, "", 2, attempt)
    plan = replace(launch.plan, argv=(sys.executable, str(program)), snapshots=True)
    return replace(launch, plan=plan)


def found_by(leader: Leader, folder: Path, attempt: int) -> tuple[dict[str, bool], tuple[int, ...]]:
    """Start an attempt. Returns for each node whether its rank has found a snapshot in the memory,
    and the pids of the ranks."""
    pids = leader.start(launch_of(folder, attempt)).pids
    files = [folder / f"{attempt}-{rank}.found" for rank in range(2)]
    assert eventually(lambda: all(file.exists() for file in files))
    found = [json.loads(file.read_text()) for file in files]
    return dict(zip(leader.nodes, found, strict=True)), pids


def end(leader: Leader, folder: Path, attempt: int) -> None:
    """Have the core kill the attempt, once one of its ranks has ended."""
    ended = leader.first(WorkersObserved, lambda told: told.attempt == attempt and bool(told.exits))
    leader.engine.kill(launch_of(folder, attempt), ended.exits)
    leader.first(WorkersGone, lambda event: event.attempt == attempt)


def test_a_host_finds_the_snapshot_of_the_last_attempt_and_of_no_earlier_one(
    tmp_path: Path,
) -> None:
    cluster = Cluster(3)
    try:
        leader = Leader(cluster, tmp_path, size=2, spares=1)
        found, pids = found_by(leader, tmp_path, 1)
        first, second = leader.nodes
        assert found == {first: False, second: False}
        os.kill(pids[0], signal.SIGKILL)
        end(leader, tmp_path, 1)
        found, _ = found_by(leader, tmp_path, 2)
        assert found == {first: True, second: True}

        cluster.on(first).cut()
        end(leader, tmp_path, 2)
        found, pids = found_by(leader, tmp_path, 3)
        third = leader.nodes[0]
        assert found == {third: False, second: True}

        cluster.on(first).heal()
        cluster.vanish(third)
        end(leader, tmp_path, 3)
        found, _ = found_by(leader, tmp_path, 4)
        assert found == {first: False, second: True}, "it was away, and its memory has an old one"
    finally:
        cluster.close()
