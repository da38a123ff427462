"""`supervise run` with `init.hosts` on a small real Ray, whose processes and nodes are killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from supervisor.cli.main import main
from tests.fleet.ray_nodes import MARK, RayNodes
from tests.processes.metadata_server import MetadataServer
from tests.running import Running, Start, eventually, marked

PROGRAM = f"""
import json, os, sys, time
from pathlib import Path

folder, env = Path(sys.argv[1]), os.environ
told = {{"pid": os.getpid(), "node": env["{MARK}"], "world": env["SUPERVISE_WORLD_SIZE"]}}
file = folder / f"{{env['SUPERVISE_ATTEMPT']}}-{{env['SUPERVISE_RANK']}}"
file.with_suffix(".new").write_text(json.dumps(told))
file.with_suffix(".new").rename(file)
step = 0
while not (folder / "end").exists():
    step += 1
    print("step", step, flush=True)
    time.sleep(0.1)
"""


@pytest.fixture
def told(tmp_path: Path) -> Path:
    """Where each rank writes its pid and its node."""
    (tmp_path / "program.py").write_text(PROGRAM)
    folder = tmp_path / "told"
    folder.mkdir()
    return folder


def started(job: Running, told: Path, attempt: int) -> dict[int, Any]:
    """The two ranks of an attempt, once both run."""
    job.wait_for_event("attempt-started", attempt=attempt)
    files = [told / f"{attempt}-{rank}" for rank in range(2)]
    assert eventually(lambda: all(file.exists() for file in files))
    return {rank: json.loads(file.read_text()) for rank, file in enumerate(files)}


def helper_of(job: Running) -> psutil.Process:
    """The process of the job that speaks to Ray."""
    children = psutil.Process(job.process.pid).children()
    (found,) = (each for each in children if any("ray_helper" in word for word in each.cmdline()))
    return found


def agents_on(mark: str) -> list[str]:
    """The agents that run on a node."""
    return [line for line in marked(f"{MARK}={mark}").values() if "agent_process" in line]


def config(address: str, told: Path) -> dict[str, Any]:
    """The config of a job on two hosts of the cluster at an address."""
    folder = told.parent
    init = {
        "model_dir": str(folder / "run"),
        "hosts": {"engine": "ray", "count": 2, "address": address},
        "autorestart": {"max_num_restarts": 1},
    }
    command = {"argv": [sys.executable, str(folder / "program.py"), str(told)]}
    return {"trainer": {"init": init, "command": command}}


@pytest.mark.cluster
def test_a_cluster_with_another_token_is_an_invalid_config(
    ray: RayNodes, start: Start, told: Path
) -> None:
    result = start(
        config(ray.address, told), env={"RAY_AUTH_TOKEN": "that-of-some-other-cluster"}
    ).result()
    assert result.code == 78
    assert "trainer.init.hosts: the Ray cluster at" in result.err
    assert "does not accept the token of this host: put the cluster's into" in result.err


@pytest.mark.cluster
def test_a_job_moves_off_a_machine_that_is_preempted(
    ray: RayNodes, start: Start, told: Path
) -> None:
    count, given = len(ray.marks) + 1, config(ray.address, told)
    init = given["trainer"]["init"]
    init["hosts"]["count"] = count
    init["devices"] = {"platform": "cpu", "count": count}
    init["autorestart"] |= {"wait_for_replacement": 0, "grace_period": 5}
    given["trainer"]["command"] |= {"elastic": True, "success": {"exit_code": 0}}
    with MetadataServer().serving() as metadata:
        preempted = ray.start(environ={"GCE_METADATA_HOST": metadata.host})
        job = start(given)
        job.wait_for_event("attempt-started", attempt=1)
        metadata.set("preempted", "TRUE")
        second = started(job, told, 2)
        assert preempted not in {rank["node"] for rank in second.values()}
        (told / "end").touch()
        result = job.result()
        ray.kill(preempted)
    assert result.code == 0, result.log
    assert "says instance/preempted is TRUE" in result.event("workers-told-to-stop")["reason"]
    assert [each["status"] for each in result.summary["attempts"]] == ["MADE_WAY", "SUCCEEDED"]
    assert not result.has_event("budget-used")


def test_a_job_that_waits_for_its_cluster_ends_at_once_when_it_is_asked_to_stop(
    start: Start, told: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:  # bound, so nothing else listens there
        taken.bind(("127.0.0.1", 0))
        given = config(f"127.0.0.1:{taken.getsockname()[1]}", told)
        job = start(given)
        job.wait_for_event("cluster-awaited")
        assert main(["stop", str(job.model_dir)]) == 64
        said = capfd.readouterr().err
        assert f"(pid {job.process.pid} on " in said
        assert "has not begun the job yet: SIGTERM ends it" in said
        job.signal(signal.SIGTERM)
        result = job.result()
        assert result.code == 75, result.err
        assert result.event("job-ended")["code"] == 75

        job = start(given)
        job.wait_for_event("cluster-awaited")
        began = time.monotonic()
        assert main(["stop", str(job.model_dir)]) == 0
        result = job.result()
    assert time.monotonic() - began < 30, "the wait itself takes a minute"
    assert result.code == 79, result.err


def test_a_job_outlives_its_ray_helper_a_rank_and_a_node(
    own_ray: RayNodes, start: Start, told: Path
) -> None:
    ray = own_ray
    for _ in range(3):
        ray.start()
    job = start(config(ray.address, told))
    first = started(job, told, 1)
    assert len({rank["node"] for rank in first.values()}) == 2
    assert {rank["world"] for rank in first.values()} == {"2"}

    helper_of(job).kill()
    job.wait_for_event("ray-helper-replaced")
    assert all(psutil.pid_exists(rank["pid"]) for rank in first.values())

    os.kill(first[1]["pid"], signal.SIGKILL)
    second = started(job, told, 2)
    assert {n: rank["node"] for n, rank in second.items()} == {
        n: rank["node"] for n, rank in first.items()
    }
    assert not any(psutil.pid_exists(rank["pid"]) for rank in first.values())

    lost = next(rank["node"] for rank in second.values() if rank["node"] != ray.marks[0])
    ray.kill(lost)
    third = started(job, told, 3)
    assert lost not in {rank["node"] for rank in third.values()}

    (told / "end").touch()
    result = job.result()
    assert result.code == 0, result.log
    assert [event["restarts"] for event in result.events("budget-used")] == [1]
    for mark in ray.marks:
        assert eventually(lambda mark=mark: not agents_on(mark))  # type: ignore[misc]
