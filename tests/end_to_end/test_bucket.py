"""A job in a bucket: everything on the machine goes, and another one goes on as if nothing had.

See `tests.vanishing` for the quickstart itself, and more machines.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from supervisor.adapters.stores.bucket import bucket
from supervisor.protocol.location import Uri
from tests.emulators import Emulator
from tests.faulty_store import LOST_ANSWER, RESET, Fault, FaultyStore, Request, answered, slow
from tests.once import once
from tests.running import Result, Start, starting
from tests.training.harness import assert_same_bits, final_state
from tests.vanishing.cloud import Cloud
from trainer.train_state import TrainState

from .test_training import config

STEPS = 40


@pytest.fixture
def cloud(
    gcs: Emulator,
    start: Start,
    unoptimised: dict[str, str],
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Cloud:
    for name, value in gcs.env.items():
        monkeypatch.setenv(name, value)
    return Cloud(gcs.root / request.node.name / "job", tmp_path, start, unoptimised)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_bytes(b"k" * 32)
    path.chmod(0o600)
    return path


def status(cloud: Cloud) -> str:
    """What a person sees who asks from another machine."""
    command = [sys.executable, "-m", "supervisor", "status", str(cloud.place)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def in_bucket(place: Uri) -> dict[str, Any]:
    job = config(Path("/unused"), 2, max_steps=STEPS)
    job["trainer"]["init"]["model_dir"] = str(place)
    return job


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory, unoptimised: dict[str, str]) -> TrainState:
    """What an undisturbed job on a disk ends with."""

    def job(folder: Path) -> dict[str, Any]:
        return config(folder / "run", 2, max_steps=STEPS)

    def run(folder: Path) -> None:
        with starting(folder) as start:
            assert start(job(folder), env=unoptimised).result().code == 0

    folder = once(tmp_path_factory, "undisturbed-outside-a-bucket", run)
    return final_state(job(folder), folder / "run", STEPS)


@pytest.mark.slow
def test_whenever_the_machine_goes_another_goes_on(cloud: Cloud, whole: TrainState) -> None:
    lots = random.Random(7)
    job, step = in_bucket(cloud.place), 0
    for _ in range(4):
        machine = cloud.machine(job)
        step = lots.randint(step, STEPS - 2)
        if step:
            machine.running.wait_for(f"step {step} ")
        else:
            machine.running.wait_for_event("stage-entered", stage="INITIALIZING")
        machine.vanish()
    result = cloud.machine(job).running.result()
    assert result.code == 0, result.out + result.err
    assert result.has_event("job-resumed", attempts=4, restarts=0, max_num_restarts=2)
    assert cloud.attempts() == [1, 2, 3, 4, 5]
    status = json.loads(bucket(cloud.place).read("status.json").data)
    assert (status["status"], status["exit_code"], status["step"]) == ("SUCCEEDED", 0, STEPS)
    assert_same_bits(final_state(job, cloud.place, STEPS), whole)

    again = cloud.machine(job).running.result()
    assert again.code == 0
    assert not again.has_event("attempt-started"), "the job is done, wherever one looks from"


COMPILES = """\
import jax
hits = []
def count(name, **_):
    hits.extend([name] * name.endswith("cache_hits"))
jax.monitoring.register_event_listener(count)
jax.jit(lambda x: x * 2 + 1)(1.0)
raise SystemExit(f"hits: {len(hits)}")
"""


def compiling(place: Uri, **compile_cache: object) -> dict[str, Any]:
    """A command that tells how many compiled programs it found."""
    return {
        "trainer": {
            "init": {
                "model_dir": str(place),
                "autorestart": {"max_num_restarts": 0},
                "compile_cache": compile_cache,
            },
            "command": [sys.executable, "-c", COMPILES],
        }
    }


@pytest.mark.slow
def test_compiled_programs_come_from_a_bucket_only_if_the_config_trusts_somebody(
    cloud: Cloud, key_file: Path, tmp_path: Path
) -> None:
    """Each machine has an empty disk, and whoever may write to the bucket wrote what is there."""
    alone = replace(cloud, env={})  # without a compilation cache that all machines share
    disk = tmp_path / "disk"  # of one path, which is in JAX's keys

    def ran(**compile_cache: object) -> Result:
        shutil.rmtree(disk, ignore_errors=True)
        result = alone.machine(compiling(cloud.place, **compile_cache), disk).running.result()
        assert result.code == 76, result.out + result.err
        return result

    def hits(result: Result) -> list[str]:
        return [told["text"] for told in result.events("output") if "hits: " in told["text"]]

    assert "hits: 0" in hits(ran(from_bucket=True))
    unsigned = ran(key_file=str(key_file))
    assert "hits: 0" in hits(unsigned)
    refused = unsigned.event("bucket-programs-refused")["text"]
    assert "not used, as they are not signed with the key in compile_cache.key_f" in refused
    assert "hits: 1" in hits(ran(key_file=str(key_file)))
    nobody = ran()
    assert "hits: 0" in hits(nobody)
    assert nobody.event("compiled-programs-kept-here")


def test_a_key_that_others_can_read_is_a_mistake_in_the_config(
    cloud: Cloud, key_file: Path
) -> None:
    key_file.chmod(0o644)
    result = cloud.machine(compiling(cloud.place, key_file=str(key_file))).running.result()
    assert result.code == 78
    assert "trainer.init.compile_cache.key_file: cannot be used: " in result.err
    assert "is open to others (mode 0644): chown it, or chmod 600" in result.err
    assert "Traceback" not in result.err


@pytest.mark.slow
def test_what_an_old_disk_knows_does_not_count(cloud: Cloud, whole: TrainState) -> None:
    """A machine comes back after another one went on: the bucket knows better."""
    job = in_bucket(cloud.place)
    first = cloud.machine(job)
    first.running.wait_for("step 7 ")
    first.lose_power()
    second = cloud.machine(job)
    second.running.wait_for("step 22 ")
    second.vanish()
    result = cloud.machine(job, first.disk).running.result()
    assert result.code == 0, result.out + result.err
    assert result.has_event("job-resumed", attempts=2, restarts=0, max_num_restarts=2)
    assert cloud.attempts() == [1, 2, 3]
    log = cloud.log()
    assert [log.count(f"starting attempt {number} ") for number in (1, 2, 3)] == [1, 1, 1]
    assert_same_bits(final_state(job, cloud.place, STEPS), whole)


def signing(place: Uri, done: str) -> dict[str, Any]:
    """A command that leaves one sign for each attempt; `done` is the one that counts."""
    write = "import fsspec, sys; fsspec.open(sys.argv[1], 'w').open().close()"
    return {
        "trainer": {
            "init": {
                "model_dir": str(place),
                "autorestart": {"max_num_restarts": 1, "backoff": {"first": 0.05}},
            },
            "command": {
                "argv": [sys.executable, "-c", write, "{model_dir}/done{attempt}"],
                "success": {"file": f"{{model_dir}}/{done}"},
            },
        }
    }


def test_a_command_leaves_the_sign_of_its_success_in_the_bucket(cloud: Cloud) -> None:
    result = cloud.machine(signing(cloud.place, "done2")).running.result()
    assert result.code == 0, result.out + result.err
    assert cloud.attempts() == [1, 2]


@pytest.mark.slow
def test_a_sign_that_nobody_can_look_for_is_nobodys_failure(cloud: Cloud, gcs: Emulator) -> None:
    answers = threading.Event()

    def away(asked: Request) -> Fault | None:
        looks = asked.method == "GET" and "done1" in asked.target
        return answered(503) if looks and not answers.is_set() else None

    store = FaultyStore(gcs, away)
    with store.serving():
        job = signing(cloud.place, "done1")
        running = cloud.machine(job, environ=store.proxied.env).running
        running.wait_for_event("attempt-failed", 100.0, code="success-file")
        answers.set()
        result = running.result(timeout=100.0)
    assert result.code == 0, result.out + result.err
    assert cloud.attempts() == [1, 2]
    assert cloud.summary()["restarts_used"] == 0


@pytest.mark.slow
def test_of_two_machines_one_has_the_job(cloud: Cloud) -> None:
    job = in_bucket(cloud.place)
    job["trainer"]["init"]["loop"]["max_steps"] = 100_000
    first = cloud.machine(job).running
    first.wait_for_event("stage-entered", stage="INITIALIZING")
    second = cloud.machine(job).running.result(timeout=100.0)
    assert second.code == 73
    assert "is owned by" in second.err
    assert not second.has_event("attempt-started")
    told = status(cloud)
    assert f"in {cloud.place}" in told
    assert f"supervisor: pid {first.process.pid} on " in told
    first.signal(signal.SIGTERM)
    assert first.result().code == 75
    told = status(cloud)
    assert "with supervise's exit code 75" in told
    assert "supervisor: " not in told
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
    result = cloud.machine(job).running.result()
    assert result.code == 78
    assert said in result.err
    assert "Traceback" not in result.err


def flaky(lots: random.Random, asked: Request) -> Fault | None:
    """One request in thirty goes wrong, in all the ways that pass."""
    if lots.random() < 29 / 30:
        return None
    return lots.choice([answered(503), answered(429), answered(500), RESET, LOST_ANSWER, slow(0.2)])


@pytest.mark.slow
def test_a_storm_of_storage_faults_is_nobodys_failure(cloud: Cloud, gcs: Emulator) -> None:
    lots = random.Random(11)
    store = FaultyStore(gcs, lambda asked: flaky(lots, asked))
    job = in_bucket(cloud.place)
    job["trainer"]["init"]["loop"]["max_steps"] = 20
    with store.serving():
        result = cloud.machine(job, environ=store.proxied.env).running.result(timeout=300.0)
    assert result.code == 0, result.out + result.err
    assert len(store.requests) > 200
    assert cloud.summary()["restarts_used"] == 0
