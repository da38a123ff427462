"""`supervise run` with `init.hosts` on a small real Ray, whose processes and nodes are killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from supervisor import on_ray
from supervisor.cli.main import main
from supervisor.engines.fleet.agent_process import MACHINE
from supervisor.host.gang_config import VARIABLE
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


def started(job: Running, told: Path, attempt: int, size: int = 2) -> dict[int, Any]:
    """The ranks of an attempt, once all of them run."""
    job.wait_for_event("attempt-started", attempt=attempt)
    files = [told / f"{attempt}-{rank}" for rank in range(size)]
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
def test_a_cluster_that_does_not_answer_ends_the_job_with_69(
    told: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_ray, "_PATIENCE", 15.0)  # to import Ray on a busy machine
    path = told.parent / "trainer.yaml"
    with socket.socket() as taken:  # bound, so nothing else listens there
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        path.write_text(yaml.safe_dump(config(address, told)))
        assert main(["run", str(path)]) == 69
    said = capfd.readouterr().err
    why = f"no Ray cluster answers at {address}: nothing listens there"
    assert f"supervise: {why}; start it (on one host: ray start --head" in said


@pytest.mark.cluster
def test_hosts_that_a_person_must_set_up_end_the_wait_with_78_and_are_named_at_the_end(
    own_ray: RayNodes, start: Start, told: Path
) -> None:
    for machine, of_gang in (("one", "mine"), ("one", "mine"), ("another", "another")):
        own_ray.start(environ={MACHINE: machine, VARIABLE: of_gang})
    given = config(own_ray.address, told)
    given["trainer"]["init"]["hosts"]["count"] = 3
    given["trainer"]["init"]["autorestart"]["wait_for_capacity"] = 0
    result = start(given, env={VARIABLE: "mine"}).result()
    assert result.code == 78, result.log
    reason = result.event("job-ended")["reason"]
    assert "1 of 3 hosts is usable" in reason
    assert "has another agent: " in reason
    assert "`supervise gang` was started there with another config than on this host" in reason
    early = {event["reason"] for event in result.events("host-unusable")}
    assert all(each in reason for each in early)


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


@pytest.mark.cluster
def test_a_job_that_loses_a_host_of_a_tpu_slice_goes_on_with_the_slices_that_ray_calls_intact(
    own_ray: RayNodes, start: Start, told: Path
) -> None:
    """TPU slices in imitation: what Ray knows of one are labels and resources."""
    own_ray.start()
    slices = {name: [slice_host(own_ray, name, place) for place in range(2)] for name in "ab"}
    assert intact_slices(own_ray.address) == 2
    given = config(own_ray.address, told)
    init = given["trainer"]["init"]
    init["hosts"]["count"] = 4
    init["devices"] = {"platform": "tpu", "type": "v4-16", "slices": 2}
    init["autorestart"] |= {"min_num_slices": 1, "wait_for_replacement": 0, "standby": "off"}
    given["trainer"]["command"] |= {"elastic": True, "success": {"exit_code": 0}}
    job = start(given)
    first = started(job, told, 1, 4)
    nodes = [first[rank]["node"] for rank in range(4)]
    assert [nodes[:2], nodes[2:]] in ([slices["a"], slices["b"]], [slices["b"], slices["a"]])

    own_ray.kill(slices["a"][1])
    second = started(job, told, 2)
    assert intact_slices(own_ray.address) == 1
    assert [second[rank]["node"] for rank in range(2)] == slices["b"]
    assert {rank["world"] for rank in second.values()} == {"2"}
    (told / "end").touch()
    result = job.result()
    assert result.code == 0, result.log
    assert not result.has_event("budget-used")


def slice_host(ray: RayNodes, slice_name: str, place: int) -> str:
    """Start a node that is a host of a v4-16."""
    return ray.start(
        resources={"TPU": 4, **({"TPU-v4-16-head": 1} if not place else {})},
        labels={
            "ray.io/tpu-slice-name": slice_name,
            "ray.io/tpu-worker-id": str(place),
            "ray.io/tpu-topology": "2x2x2",
            "ray.io/tpu-pod-type": "v4-16",
        },
    )


def intact_slices(address: str) -> int:
    """How many v4-16 have all of their hosts, as Ray says."""
    code = (
        "import ray, sys; from ray.util.tpu import get_num_tpu_slices;"
        "ray.init(sys.argv[1], log_to_driver=False, configure_logging=False);"
        "print(get_num_tpu_slices('2x2x2', 'TPU-V4'))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, address],
        env={**os.environ, "RAY_AUTH_MODE": "token"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


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
