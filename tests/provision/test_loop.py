"""The loop, with its real client over HTTP, against a cloud and a bucket that the test moves."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from supervisor.adapters.platforms.queued_resources import QueuedResources
from supervisor.diagnosis.redaction import Redactor
from supervisor.ports import ConflictError, UnavailableError
from supervisor.provision.boot import File
from supervisor.provision.decide import End
from supervisor.provision.intent import LoopPolicy, ProvisionStage, ProvisionState, decode, encode
from supervisor.provision.provision_loop import STATE, ProvisionLoop, TakenOverError
from tests.cloud_tpu import NO_CAPACITY, CloudTpu, Fault
from tests.memory_objects import MemoryObjects

PARENT = "projects/p/locations/us-west4-a"
POLICY = LoopPolicy("config", rungs=(8, 4))


def accelerator_type(rung: int) -> str:
    return f"v5litepod-{rung}"


def body(generation: int, rung: int) -> dict[str, Any]:
    node = {"acceleratorType": accelerator_type(rung), "metadata": {"startup-script": "true"}}
    return {"tpu": {"nodeSpec": [{"nodeId": f"job-{generation}", "node": node}]}, "spot": {}}


class Bench:
    """A cloud, a bucket and a clock, and loops on them."""

    def __init__(self, base: str, cloud: CloudTpu) -> None:
        self.cloud = cloud
        self.bucket = MemoryObjects()
        self.seconds = 0.0
        self.said: list[str] = []
        self._base = base

    def wall(self) -> datetime:
        return datetime.fromtimestamp(self.seconds, UTC)

    def now(self) -> float:
        return self.seconds

    def loop(self, owner: str = "me", files: Sequence[File] = ()) -> ProvisionLoop:
        client = QueuedResources(PARENT, "job", body, base=self._base, pause=lambda seconds: None)
        return ProvisionLoop(
            client,
            self.bucket,
            POLICY,
            self,
            owner=owner,
            say=self.said.append,
            pause=self.wait,
            accelerator_type=accelerator_type,
            files=files,
            redact=Redactor().text,
        )

    def wait(self, seconds: float) -> None:
        self.seconds += seconds

    def turn(self, loop: ProvisionLoop) -> float | End:
        """One turn when it is due, and what it comes to."""
        outcome = loop.turn()
        if not isinstance(outcome, End):
            self.seconds = outcome
        return outcome

    def says(self, status: str, code: int | None = None) -> None:
        told = {"v": 1, "status": status, "exit_code": code, "attempt": 1, "step": 5}
        self.bucket.write("status.json", json.dumps(told).encode())
        self.bucket.write("lease.json", b"{}")


@pytest.fixture
def bench() -> Iterator[Bench]:
    cloud = CloudTpu()
    with cloud.serving() as base:
        yield Bench(base, cloud)


def test_a_job_outlives_its_slice(bench: Bench) -> None:
    loop, cloud = bench.loop(), bench.cloud
    for _ in range(4):
        bench.turn(loop)
        cloud.step()
    bench.says("RUNNING")
    bench.turn(loop)
    cloud.become("job-1", "SUSPENDED")
    bench.turn(loop)
    assert cloud.resources["job-1"].state == "DELETING"
    cloud.step()
    bench.turn(loop)
    assert list(cloud.resources) == ["job-2"]
    cloud.become("job-2", "ACTIVE")
    bench.turn(loop)
    bench.says("SUCCEEDED", 0)
    bench.turn(loop)
    bench.bucket.write("provision/000002.txt", b"exit 0\n")
    bench.turn(loop)
    cloud.step()
    assert bench.turn(loop) == End(0, "the job ended with exit code 0")
    assert cloud.resources == {}
    assert bench.said == [
        "slice 1, a v5litepod-8, is asked for now",
        "slice 1 is WAITING_FOR_RESOURCES: it waits in the queue for capacity",
        "slice 1 is PROVISIONING: it is being made",
        "slice 1 is ACTIVE: it is there, and boots into the job",
        "the job says: RUNNING, attempt 1, step 5",
        "slice 1 is SUSPENDED",
        "slice 1 is deleted: slice 1 is SUSPENDED",
        "slice 2, a v5litepod-8, is asked for now",
        "slice 2 is ACTIVE: it is there, and boots into the job",
        "the job says: SUCCEEDED, attempt 1, step 5",
        "slice 2 is deleted: the job ended with exit code 0",
    ]
    # Run again, there is nothing to do; nobody is asked for anything.
    asked = len(cloud.requests)
    assert isinstance(bench.loop("later").turn(), End)
    assert not any(request.startswith("POST") for request in cloud.requests[asked:])


def test_a_refusal_is_told_and_asked_again_after_a_pause(bench: Bench) -> None:
    loop = bench.loop()
    bench.cloud.faults = [Fault("POST", operation_error=NO_CAPACITY)]
    assert bench.turn(loop) == POLICY.backoff_first
    assert bench.said[-1] == (
        f"slice 2, a v5litepod-8, is asked for in 60 s: {NO_CAPACITY[1]} (RESOURCE_EXHAUSTED)"
    )
    bench.turn(loop)
    assert list(bench.cloud.resources) == ["job-2"]


def test_what_a_slice_fetches_is_there_before_it_is_asked_for(bench: Bench) -> None:
    """Written once, and again where somebody has changed it."""
    file, cloud, objects = File("x.whl", b"wheel"), bench.cloud, bench.bucket
    loop = bench.loop(files=[file])

    def asked() -> int:
        return sum(request.startswith("POST") for request in cloud.requests)

    def unavailable(operation: str, path: str) -> OSError | None:
        away = path == file.path and operation == "write"
        return UnavailableError("the bucket is away") if away else None

    objects.fault = unavailable
    with pytest.raises(UnavailableError):
        bench.turn(loop)
    assert asked() == 0
    objects.fault = lambda *_: None
    versions = []
    for number in (1, 2, 3):
        while asked() < number:
            bench.turn(loop)
            cloud.step()
        assert objects.read(file.path).data == b"wheel"
        versions.append(objects.read(file.path).version)
        if number == 2:
            objects.write(file.path, b"changed")
        cloud.become(f"job-{number}", "SUSPENDED")
    assert versions[0] == versions[1] != versions[2]


def test_what_earlier_slices_fetched_is_removed_if_it_is_ours(bench: Bench) -> None:
    old, new, objects = File("x.whl", b"old"), File("x.whl", b"new"), bench.bucket
    foreign = [f"provision/files/{'0' * 64}/x.whl", "provision/files/notes.txt", "provision/mine"]
    for path in (old.path, *foreign):
        objects.write(path, old.data)
    bench.turn(bench.loop(files=[new]))
    assert list(bench.cloud.resources) == ["job-1"]
    found = {path for path in objects.objects if path.startswith("provision/")}
    assert found == {new.path, *foreign}


def test_the_newest_loop_owns_the_job(bench: Bench) -> None:
    first, second = bench.loop("first"), bench.loop("second")
    bench.turn(first)
    bench.turn(second)
    with pytest.raises(TakenOverError):
        first.turn()
    bench.turn(second)
    assert list(bench.cloud.resources) == ["job-1"]
    assert decode(bench.bucket.read(STATE).data).owner == "second"


def test_of_two_that_begin_at_once_one_is_left(bench: Bench) -> None:
    first, second = bench.loop("first"), bench.loop("second")
    bench.turn(first)

    def meanwhile(operation: str, path: str) -> None:
        if operation == "write":
            bench.bucket.fault = lambda *_: None
            second.turn()

    bench.cloud.become("job-1", "SUSPENDED")
    bench.bucket.fault = meanwhile
    with pytest.raises(TakenOverError):
        first.turn()
    assert not any(request.startswith("DELETE") for request in bench.cloud.requests[:-1])


def test_a_write_whose_answer_was_lost_is_known_as_its_own(bench: Bench) -> None:
    loop, write = bench.loop(), bench.bucket.write

    def lost(path: str, data: bytes, *, expected: str | None = None) -> str:
        write(path, data, expected=expected)
        raise ConflictError("another version: that of the first try")

    bench.bucket.write = lost  # type: ignore[method-assign]
    bench.turn(loop)
    bench.turn(loop)
    assert list(bench.cloud.resources) == ["job-1"]


def test_what_does_not_answer_is_told_once_and_asked_until_it_does(bench: Bench) -> None:
    failures = 5

    def unavailable(operation: str, path: str) -> OSError | None:
        nonlocal failures
        failures -= path == STATE
        return UnavailableError("the bucket is away") if failures >= 0 else None

    bench.bucket.fault = unavailable
    wait = bench.wait

    def finish(seconds: float) -> None:
        wait(seconds)
        if "job-1" in bench.cloud.resources:
            bench.says("SUCCEEDED", 0)
            bench.cloud.step()

    bench.wait = finish  # type: ignore[method-assign]
    assert bench.loop().run() == End(0, "the job ended with exit code 0")
    told = [line for line in bench.said if "away" in line or "again" in line]
    assert told == [
        "WARNING: the bucket is away; retrying until it works",
        "the cloud and the bucket answer again",
    ]
    assert bench.seconds >= 10 + 20 + 40 + 80 + 160


def test_a_job_that_ended_for_good_ends_the_loop_and_can_be_run_again(bench: Bench) -> None:
    loop = bench.loop()
    bench.turn(loop)
    bench.says("FAILED", 76)
    bench.turn(loop)
    bench.cloud.step()
    assert bench.turn(loop) == End(76, "the job ended with exit code 76")
    again = bench.loop("again")
    bench.turn(again)
    bench.turn(again)
    bench.says("FAILED", 76)
    bench.turn(again)
    assert list(bench.cloud.resources) == ["job-2"], "what was said before does not count"


def test_a_machine_tells_what_the_job_cannot(bench: Bench) -> None:
    loop = bench.loop()
    bench.turn(loop)
    bench.cloud.become("job-1", "ACTIVE")
    bench.bucket.write("provision/000001.txt", b"failed at line 40\nno https://u:hunter2@h/x\n")
    bench.turn(loop)
    assert "slice 1 did not boot: failed at line 40: no https://[redacted]@h/x" in bench.said[-1]
    assert b"hunter2" not in bench.bucket.read(STATE).data
    bench.cloud.step()
    bench.turn(loop)
    bench.turn(loop)
    bench.bucket.write("provision/000002.txt", b"exit 78\n")
    bench.turn(loop)
    assert decode(bench.bucket.read(STATE).data).stage is ProvisionStage.ENDING


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{}", "is not a state of version 1; remove it"),
        (None, "somebody has removed it"),
        (
            encode(ProvisionState("me", POLICY.config, rung=4096)),
            "asks for 4096 chips, .*; remove it",
        ),
        (encode(ProvisionState("me", "", generation=-1)), "names the generation -1, .*; remove it"),
        (
            encode(ProvisionState("me", "", generation=10**40)),
            "names the generation 10+, .*; remove it",
        ),
        (
            encode(ProvisionState("me", "", ProvisionStage.ENDED)),
            "is ENDED without an exit code; remove it",
        ),
    ],
)
def test_a_state_that_is_of_no_use_is_told(bench: Bench, data: bytes | None, message: str) -> None:
    loop = bench.loop()
    if data is None:
        bench.turn(loop)
        bench.bucket.delete(STATE)
    else:
        bench.bucket.write(STATE, data)
    with pytest.raises(OSError, match=message):
        loop.turn()
