"""A job in a bucket: everything on the machine goes, and another one goes on as if nothing had.

The bucket is an emulator of Google Cloud Storage on this host; each "machine" has a working
directory and a home of its own.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from supervisor.adapters.bucket import bucket
from supervisor.adapters.fetch import read_growing
from supervisor.protocol.location import Uri
from tests.emulators import Emulator
from tests.faulty_store import LOST_ANSWER, RESET, Asked, Fault, FaultyStore, answered, slow
from tests.running import Running, Start
from tests.training.harness import assert_same_bits, blueprint
from trainer.bucket import path_of
from trainer.checkpoint import restore
from trainer.config import parse
from trainer.state import TrainState

from .test_training import config, final_state

STEPS = 40


@dataclass
class Cloud:
    """The bucket of a job, and machines that come and go."""

    place: Uri
    env: dict[str, str]
    home: Path
    start: Start
    machines: int = 0

    def machine(self, job: dict[str, Any], **environ: str) -> Running:
        """Run the command on a machine that has never seen the job."""
        self.machines += 1
        there = self.home / f"machine{self.machines}"
        (there / "state").mkdir(parents=True)
        env = {**self.env, "XDG_STATE_HOME": str(there / "state"), **environ}
        return self.start(job, env=env, prefix=("env", "-C", str(there)))

    def vanish(self, running: Running) -> None:
        """Power off: nothing gets to say a last word, and the disk is gone."""
        out = running.wait_for("running as pid ")
        workers = [text.split(";")[0] for text in out.split("running as pid ")[1:]]
        for pid in (str(running.process.pid), *workers[-1].split(", ")):
            os.kill(int(pid), signal.SIGKILL)
        running.process.wait()
        shutil.rmtree(self.home / f"machine{self.machines}")

    def journal(self) -> list[dict[str, Any]]:
        data = read_growing(bucket(self.place), "journal.jsonl", pytest.fail) or b""
        return [json.loads(line) for line in data.splitlines()]

    def summary(self) -> dict[str, Any]:
        objects = bucket(self.place)
        (phase,) = (name for name in objects.list("").folders if name.endswith("_restartable"))
        return dict(json.loads(objects.read(f"{phase}/summary.json").data))

    def final_state(self, job: dict[str, Any], step: int) -> TrainState:
        place = self.place / "checkpoints"
        init = dict(job["trainer"]["init"])
        init["checkpoint"] = {**init["checkpoint"], "directory": str(place)}
        parsed = parse({"trainer": {**job["trainer"], "init": init}}).init
        return restore(path_of(place), step, blueprint(parsed).abstract)[0]


@pytest.fixture
def cloud(
    gcs: Emulator,
    start: Start,
    cache: dict[str, str],
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Cloud:
    for name, value in gcs.env.items():
        monkeypatch.setenv(name, value)
    return Cloud(gcs.root / request.node.name / "job", cache, tmp_path, start)


def status(cloud: Cloud) -> str:
    """What a person sees who asks from another machine."""
    command = [sys.executable, "-m", "supervisor", "status", str(cloud.place)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def in_bucket(place: Uri) -> dict[str, Any]:
    job = config(Path("/unused"), 2, max_steps=STEPS)
    job["trainer"]["init"]["model_dir"] = str(place)
    return job


def test_whenever_the_machine_goes_another_goes_on(cloud: Cloud, tmp_path: Path) -> None:
    lots = random.Random(7)
    job, step = in_bucket(cloud.place), 0
    for _ in range(4):
        running = cloud.machine(job)
        step = lots.randint(step, STEPS - 2)
        running.wait_for(f"step {step} " if step else "stage INITIALIZING")
        cloud.vanish(running)
    result = cloud.machine(job).result()
    assert result.code == 0, result.out + result.err
    assert "so far: 4 attempts, 0 of 2 restarts used" in result.out
    assert "loaded train step from the compilation cache" in result.out, "it is mirrored"
    events = [line["event"] for line in cloud.journal() if "event" in line]
    attempts = [event["attempt"] for event in events if event["kind"] == "WorkersStarted"]
    assert attempts == [1, 2, 3, 4, 5]
    status = json.loads(bucket(cloud.place).read("status.json").data)
    assert (status["status"], status["exit_code"], status["step"]) == ("SUCCEEDED", 0, STEPS)

    whole = config(tmp_path / "whole", 2, max_steps=STEPS)
    assert cloud.start(whole, env=cloud.env).result().code == 0
    assert_same_bits(cloud.final_state(job, STEPS), final_state(whole, tmp_path / "whole", STEPS))
    again = cloud.machine(job).result()
    assert again.code == 0
    assert "starting attempt" not in again.out, "the job is done, wherever one looks from"


def test_of_two_machines_one_has_the_job(cloud: Cloud) -> None:
    job = in_bucket(cloud.place)
    job["trainer"]["init"]["loop"]["max_steps"] = 100_000
    first = cloud.machine(job)
    first.wait_for("stage INITIALIZING")
    second = cloud.machine(job).result(timeout=100.0)
    assert second.code == 73
    assert "is owned by" in second.err
    assert "starting attempt" not in second.out
    told = status(cloud)
    assert f"in {cloud.place}" in told
    assert f"supervisor: {first.process.pid} on " in told
    first.signal(signal.SIGTERM)
    assert first.result().code == 75
    assert "supervisor: none runs here" in status(cloud)
    assert "exit code 75" in status(cloud)


@pytest.mark.parametrize(
    ("place", "said"),
    [("gs://no-such-bucket/x", "trainer.init.model_dir: cannot be used: "), ("gs://", "no bucket")],
)
def test_a_bucket_that_is_not_there_is_a_mistake_in_the_config(
    cloud: Cloud, place: str, said: str
) -> None:
    job = in_bucket(cloud.place)
    job["trainer"]["init"]["model_dir"] = place
    result = cloud.machine(job).result()
    assert result.code == 78
    assert said in result.err
    assert "Traceback" not in result.err


def flaky(lots: random.Random, asked: Asked) -> Fault | None:
    """One request in thirty goes wrong, in all the ways that pass."""
    if lots.random() < 29 / 30:
        return None
    return lots.choice([answered(503), answered(429), answered(500), RESET, LOST_ANSWER, slow(0.2)])


def test_a_storm_of_storage_faults_is_nobodys_failure(cloud: Cloud, gcs: Emulator) -> None:
    lots = random.Random(11)
    store = FaultyStore(gcs, lambda asked: flaky(lots, asked))
    job = in_bucket(cloud.place)
    job["trainer"]["init"]["loop"]["max_steps"] = 20
    with store.serving():
        result = cloud.machine(job, **store.front.env).result(timeout=300.0)
    assert result.code == 0, result.out + result.err
    assert len(store.asked) > 200
    assert cloud.summary()["restarts_used"] == 0
