"""The client of the Cloud TPU API, over HTTP, against a server that behaves like it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from supervisor.adapters.platforms.queued_resources import QueuedResources
from supervisor.ports import CloudSlice, Refusal, SliceState, UnavailableError
from tests.cloud_tpu import NO_CAPACITY, QUOTA, CloudTpu, Fault

PARENT = "projects/p/locations/us-west4-a"


def body(generation: int, rung: int) -> dict[str, Any]:
    node = {"acceleratorType": f"v5litepod-{rung}", "metadata": {"startup-script": "x" * 1000}}
    return {"tpu": {"nodeSpec": [{"nodeId": f"job-{generation}", "node": node}]}, "spot": {}}


@pytest.fixture
def cloud() -> CloudTpu:
    return CloudTpu()


class Client(QueuedResources):
    """Its pauses are noted, not made."""

    def __init__(self, base: str) -> None:
        self.pauses: list[float] = []
        super().__init__(PARENT, "job", body, base=base, pause=self.pauses.append)


@pytest.fixture
def client(cloud: CloudTpu) -> Iterator[Client]:
    with cloud.serving() as base:
        yield Client(base)


def test_a_slice_from_its_request_to_its_end(cloud: CloudTpu, client: Client) -> None:
    assert client.all(1) == {}
    assert client.create(1, 8) is None
    assert cloud.resources["job-1"].body == body(1, 8)
    states = []
    while client.all(1)[1].state is not SliceState.ACTIVE:
        states.append(client.all(1)[1].state)
        cloud.step()
    assert states == ["CREATING", "WAITING_FOR_RESOURCES", "PROVISIONING"]
    client.delete(1)
    assert client.all(1) == {1: CloudSlice(SliceState.DELETING)}
    cloud.step()
    assert client.all(1) == {}
    client.delete(1)


def test_only_the_slices_of_the_job_and_all_of_them(cloud: CloudTpu, client: Client) -> None:
    for generation in range(1, 4):
        client.create(generation, 8)
    for stranger in ("job", "job-1-x", "other-1", "my-job-1"):
        cloud.resources[stranger] = cloud.resources["job-1"]
    assert list(client.all(3)) == [1, 2, 3], "in pages of two"
    cloud.hidden.add("job-3")
    assert list(client.all(2)) == [1, 2]
    assert list(client.all(3)) == [1, 2, 3], "a list that lags is not believed"


def test_a_creation_may_be_repeated(cloud: CloudTpu, client: Client) -> None:
    cloud.faults = [Fault("POST", lost=True), Fault("POST", 503)]
    assert client.create(1, 8) is None
    assert cloud.requests == ["POST queuedResources"] * 3
    assert len(cloud.resources) == 1
    assert client.create(1, 8) is None


def test_a_creation_is_looked_at_until_it_is_done(cloud: CloudTpu, client: Client) -> None:
    cloud.faults = [Fault("POST", looks=3, operation_error=NO_CAPACITY)]
    refusal = client.create(1, 8)
    assert refusal == Refusal(f"{NO_CAPACITY[1]} (RESOURCE_EXHAUSTED)", may_pass=True)
    assert client.pauses == [1, 2, 4]
    cloud.faults = [Fault("POST", looks=100)]
    assert client.create(1, 8) is None, "what becomes of it is seen later"


@pytest.mark.parametrize(
    ("status", "rpc_status", "message", "may_pass"),
    [
        (429, "RESOURCE_EXHAUSTED", QUOTA, True),
        (429, "RESOURCE_EXHAUSTED", "Maximum number of CreateNode requests per minute", True),
        (403, "PERMISSION_DENIED", QUOTA, True),
        (403, "PERMISSION_DENIED", "Permission 'tpu.queuedresources.create' denied", False),
        (400, "INVALID_ARGUMENT", "Cloud TPU received an invalid runtime version", False),
        (400, "INVALID_ARGUMENT", NO_CAPACITY[1], True),
        (400, "FAILED_PRECONDITION", "The network is not ready", True),
        (404, "NOT_FOUND", "Project 'p' was not found", False),
    ],
)
def test_what_a_refusal_means(
    cloud: CloudTpu, client: Client, status: int, rpc_status: str, message: str, may_pass: bool
) -> None:
    cloud.faults = [Fault("POST", status, message, rpc_status)]
    assert client.create(1, 8) == Refusal(f"{message} ({rpc_status})", may_pass)


def test_why_a_slice_has_failed(cloud: CloudTpu, client: Client) -> None:
    client.create(1, 8)
    for error, may_pass in (NO_CAPACITY, True), ((3, "no such type"), False), ((13, "oops"), True):
        cloud.become("job-1", "FAILED", error)
        refusal = client.all(1)[1].refusal
        assert refusal is not None
        assert (error[1] in refusal.text, refusal.may_pass) == (True, may_pass)
    cloud.become("job-1", "A_LATER_STATE")
    assert client.all(1)[1].state is SliceState.UNKNOWN


@pytest.mark.parametrize("fault", [Fault("GET", 503), Fault("GET", 429), Fault("GET", lost=True)])
def test_what_may_pass_is_tried_again_within_a_bound(
    cloud: CloudTpu, client: Client, fault: Fault
) -> None:
    cloud.faults = [fault] * 4
    assert client.all(0) == {}
    assert client.pauses == [1, 2, 4, 8]
    cloud.faults = [fault] * 5
    with pytest.raises(UnavailableError, match="the Cloud TPU API does not answer"):
        client.all(0)


def test_nobody_there() -> None:
    client = Client("http://127.0.0.1:9/")
    with pytest.raises(UnavailableError, match="does not answer"):
        client.all(0)


@pytest.mark.parametrize("status", [401, 403])
def test_what_only_a_person_can_mend_is_told_at_once(
    cloud: CloudTpu, client: Client, status: int
) -> None:
    cloud.faults = [Fault("GET", status, "not you")]
    with pytest.raises(PermissionError, match=r"not you.*gcloud auth"):
        client.all(0)
    assert client.pauses == []


def test_a_deletion_that_is_refused_for_now_is_told(cloud: CloudTpu, client: Client) -> None:
    client.create(1, 8)
    cloud.faults = [Fault("DELETE", 400, "it is being provisioned")]
    with pytest.raises(UnavailableError, match="cannot be deleted now: HTTP 400: it is being"):
        client.delete(1)


def test_credentials_are_looked_for_only_where_they_are_safe(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    client = QueuedResources(PARENT, "job", body, base="https://127.0.0.1:9/")
    with pytest.raises(PermissionError, match="there are no credentials"):
        client.all(0)
