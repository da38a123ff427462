"""`supervise provision` as a person runs it: against an API and a bucket on this host."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import yaml

from supervisor.adapters.platforms.queued_resources import BASE_VARIABLE
from supervisor.adapters.stores.bucket import bucket
from supervisor.provision.package import own_wheel
from tests.cloud_tpu import CloudTpu, Fault
from tests.emulators import Emulator
from tests.provision.test_plan import config
from tests.running import Result, Running, eventually


class Command:
    """`supervise provision` with a config, an API and a bucket."""

    def __init__(self, folder: Path, api: str, emulator: Emulator, cloud: CloudTpu) -> None:
        self.cloud = cloud
        self._path = folder / "trainer.yaml"
        self._env = {**os.environ, **emulator.env, BASE_VARIABLE: api}

    def start(self, *options: str, **init: Any) -> Running:
        self._path.write_text(yaml.safe_dump(config(**init)))
        process = subprocess.Popen(
            [sys.executable, "-m", "supervisor", "provision", str(self._path), *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._env,
        )
        return Running(process, self._path.parent)

    def run(self, *options: str, **init: Any) -> Result:
        """To its end."""
        return self.start(*options, **init).result()


@pytest.fixture
def command(tmp_path: Path, gcs: Emulator) -> Iterator[Command]:
    cloud = CloudTpu()
    with cloud.serving() as api:
        yield Command(tmp_path, api, gcs, cloud)


def stopped(running: Running, number: signal.Signals) -> Result:
    running.signal(number)
    return running.result()


def test_from_the_first_request_to_the_end_of_the_job(
    command: Command, gcs: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in gcs.env.items():
        monkeypatch.setenv(name, value)
    place = gcs.root / "runs" / "demo"
    cloud, objects, job = command.cloud, bucket(place), {"model_dir": str(place)}

    # It asks for a slice, and is killed; another one asks for no second slice, and is stopped.
    running = command.start(**job)
    running.wait_for("slice 1, a v5litepod-8, is asked for now")
    assert eventually(lambda: cloud.resources)
    stopped(running, signal.SIGKILL)
    (name,) = cloud.resources
    cloud.become(name, "ACTIVE")
    running = command.start(**job)
    running.wait_for("slice 1 is ACTIVE")
    result = stopped(running, signal.SIGTERM)
    assert (result.code, list(cloud.resources)) == (75, [name])
    assert "told to stop; if there is a slice, it goes on and costs money: run" in result.err

    # The job ends: the slice is given back, and the exit code is the job's.
    told = {"v": 1, "status": "SUCCEEDED", "exit_code": 0, "attempt": 1, "step": 9}
    objects.write("status.json", json.dumps(told).encode())
    objects.write("provision/000001.txt", b"exit 0\n")
    running = command.start(**job)
    running.wait_for("is deleted: the job ended with exit code 0")
    assert eventually(lambda: cloud.resources[name].state == "DELETING")
    assert stopped(running, signal.SIGINT).code == 79
    cloud.step()
    result = command.run(**job)
    assert (result.code, result.err, cloud.resources) == (0, "", {})
    end = "the job ended with exit code 0; exit code 0, no slice is left"
    assert result.out.splitlines()[-1] == end
    assert sum(request.startswith("POST") for request in cloud.requests) == 1


def test_a_dry_run_shows_all_and_asks_nobody(command: Command) -> None:
    result = command.run("--dry-run", "--set", "trainer.init.provision.spot=false")
    out = result.out
    assert (result.code, command.cloud.requests) == (0, [])
    assert "WARNING: the program of command.argv is not among the shipped files" in result.err
    assert len(result.err.splitlines()) == 1
    rungs = ["v5litepod-8, 8 chips", "v5litepod-4, 4 chips", "v5litepod-1, 1 chip"]
    assert [line[4:] for line in out.splitlines() if line.startswith("#   v5")] == rungs
    head, _, script = out.partition("# startup-script:\n")
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=True)
    assert (script.splitlines()[0], done.stderr) == ("#!/bin/bash", "")
    assert "[redacted]" not in out, "what is shown is what would be asked for"
    body = json.loads(head[head.index("\n{") : head.index("\n}") + 2])
    assert body["tpu"]["nodeSpec"][0]["node"]["acceleratorType"] == "v5litepod-8"
    assert "spot" not in body
    requests = [line.split("?")[0] for line in head.splitlines() if line[:1] in "GPD"]
    assert [line.split()[0] for line in requests] == ["GET", "POST", "GET", "DELETE"]


def test_a_dry_run_shows_of_the_environment_the_names_alone(command: Command) -> None:
    option = "trainer.command.env={UNLISTED: unlisted-value}"
    result = command.run("--dry-run", "--set", option)
    assert result.code == 0
    assert " UNLISTED: (not shown)" in result.out
    assert "unlisted-value" not in result.out


def test_a_dry_run_refuses_what_looks_like_a_secret(command: Command) -> None:
    secrets = ["DB_PASS: hunter2", "A: AccountKey=hunter2", "B: git+https://hunter2@host/x"]
    option = f"trainer.command.env={{{', '.join(secrets)}}}"
    result = command.run("--dry-run", "--set", option)
    assert (result.code, result.out) == (78, "")
    keys = [f"trainer.command.env.{name}: holds a secret" for name in ("DB_PASS", "A", "B")]
    told = result.err.splitlines()
    assert [key in line for key, line in zip(keys, told, strict=True)] == [True] * 3
    assert all("command.env_secrets (Secret Manager)" in line for line in told)
    assert "hunter2" not in result.err


def test_what_a_slice_is_given(
    command: Command, gcs: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the metadata nothing of the config; in the bucket, by digest, config, wheel and lock."""
    for name, value in gcs.env.items():
        monkeypatch.setenv(name, value)
    place = gcs.root / "runs" / "given"
    option = "trainer.command.env={UNLISTED: unlisted-value}"
    running = command.start("--set", option, model_dir=str(place))
    assert eventually(lambda: command.cloud.resources)
    stopped(running, signal.SIGTERM)
    (resource,) = command.cloud.resources.values()
    assert re.findall("(?i)unlisted|train.py", json.dumps(resource.body)) == []
    fetched = re.findall(r"fetch runs\S+?(provision\S+) (\w{64}) (\S+)", resource.startup_script)
    names = [own_wheel().name, "requirements.lock", "job.yaml"]
    assert [Path(path).name for _, _, path in fetched] == names
    given = [bucket(place).read(unquote(name)).data for name, _, _ in fetched]
    assert [hashlib.sha256(data).hexdigest() for data in given] == [sha for _, sha, _ in fetched]
    assert given[0] == own_wheel().data
    assert b"unlisted-value" in given[2]


def test_a_lock_that_cannot_be_read_is_told(command: Command) -> None:
    result = command.run("--dry-run", "--set", "trainer.init.provision.lock=nowhere.lock")
    assert (result.code, len(result.err.splitlines())) == (78, 1)
    assert "trainer.init.provision.lock: cannot be read: No such file or directory" in result.err


def test_what_cannot_be_provisioned_is_refused(command: Command) -> None:
    result = command.run(model_dir="runs/x", provision=None)
    assert (result.code, result.out) == (78, "")
    assert len(result.err.splitlines()) == 2
    assert "trainer.yaml:" in result.err.splitlines()[0]


def test_a_cloud_that_refuses_ends_it_in_words(command: Command) -> None:
    job = {"model_dir": "gs://bucket/runs/refused"}
    command.cloud.faults = [Fault("GET", 403, "the API has not been used in project 1 before")]
    result = command.run(**job)
    assert (result.code, len(result.err.splitlines())) == (74, 1)
    told = "HTTP 403: the API has not been used in project 1 before; run `gcloud auth"
    assert told in result.err
    command.cloud.faults = [Fault("POST", 400, "no such runtime version", "INVALID_ARGUMENT")]
    result = command.run(**job)
    assert result.code == 78
    told = "the cloud refuses: no such runtime version (INVALID_ARGUMENT); exit code 78"
    assert told in result.out
