"""One supervisor per model_dir in a bucket, on an emulator with real faults between."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from supervisor.adapters.stores.bucket import bucket
from supervisor.adapters.stores.lease import (
    Lease,
    LeaseExpiredError,
    LeaseHeldError,
    LeaseTakenError,
    LeaseTimes,
)
from supervisor.adapters.stores.lease_places import LEASE, LeaseObject
from supervisor.host.identity import Identity
from supervisor.ports import Objects
from supervisor.protocol.location import Uri
from tests.faulty_store import LOST_ANSWER, STALE, Fault, FaultyStore, Request, answered
from tests.memory_objects import MemoryObjects
from tests.running import eventually

TIMES = LeaseTimes(duration=2.0, renew=0.2)
PATIENT = replace(TIMES, duration=60.0)
DOWN = answered(503)


class Owner:
    """A lease, and what it told."""

    def __init__(self, objects: Objects, times: LeaseTimes = TIMES) -> None:
        self.said: list[str] = []
        self.renewals: list[float] = []
        self.errors: list[Exception] = []
        self.lost = threading.Event()
        self.lease = Lease(
            LeaseObject(objects),
            times,
            uuid.uuid4().hex,
            on_renewed=self.renewals.append,
            on_lost=self._on_lost,
            say=self.said.append,
        )

    def _on_lost(self, error: Exception) -> None:
        self.errors.append(error)
        self.lost.set()

    def renews(self) -> bool:
        """Whether it does so twice more: the second began after we asked."""
        count = len(self.renewals)
        return eventually(lambda: len(self.renewals) >= count + 2)


@pytest.fixture
def objects(place: Uri) -> Objects:
    return bucket(place, bound=5.0)  # an emulator is slow beside a loaded machine


def theirs(epoch: int, **changes: object) -> bytes:
    """The lease of an owner on another host, or of whom `changes` make of it."""
    owner = replace(Identity.of_this_process(), host="elsewhere", boot="another")
    body = {"token": "theirs", "epoch": epoch, "owner": owner.to_json()}
    return json.dumps({**body, **changes}).encode()


def body(objects: Objects) -> dict[str, object]:
    return dict(json.loads(objects.read(LEASE).data))


def is_write(asked: Request) -> bool:
    return asked.method in ("POST", "PUT")


def test_of_two_at_once_one_is_the_owner(place: Uri) -> None:
    owners = [Owner(bucket(place), PATIENT) for _ in range(4)]
    start = threading.Barrier(len(owners))

    def take(owner: Owner) -> object:
        start.wait()
        try:
            owner.lease.acquire()
        except LeaseHeldError as error:
            return str(error)
        return owner

    with ThreadPoolExecutor(len(owners)) as threads:
        results = list(threads.map(take, owners))
    (winner,) = (result for result in results if isinstance(result, Owner))
    refused = [result for result in results if result is not winner]
    assert len(refused) == 3
    assert all("model_dir is owned by supervisor" in str(text) for text in refused)
    assert winner.lease.epoch == 1
    assert winner.lease.quiet == 0.0, "it was free"
    assert winner.renews()
    winner.lease.release()
    assert body(bucket(place)) == {"token": None, "epoch": 1}


def test_a_silent_owner_is_taken_over_under_a_new_epoch(objects: Objects) -> None:
    objects.write(LEASE, theirs(7))
    owner = Owner(objects)
    owner.lease.acquire()
    assert "waiting up to 2 s" in owner.said[0]
    assert owner.lease.epoch == body(objects)["epoch"] == 8
    assert owner.lease.quiet == TIMES.duration - TIMES.kill
    owner.lease.release()


def test_an_owner_that_was_taken_over_finds_out_and_writes_no_more(objects: Objects) -> None:
    owner = Owner(objects)
    owner.lease.acquire()
    taken = theirs(2)
    objects.write(LEASE, taken)
    assert owner.lost.wait(10)
    (error,) = owner.errors
    assert isinstance(error, LeaseTakenError)
    with pytest.raises(LeaseTakenError, match=r"taken over by supervisor \d+ on elsewhere"):
        owner.lease.check()
    owner.lease.release()
    assert objects.read(LEASE).data == taken


class Unconditional(MemoryObjects):
    """A store that accepts any write."""

    def write(self, path: str, data: bytes, *, expected: str | None = None) -> str:
        return super().write(path, data)


@pytest.mark.parametrize("before", [None, b'{"token": null, "epoch": 3}'])
def test_a_store_without_preconditions_is_refused_and_keeps_nothing_of_ours(
    before: bytes | None,
) -> None:
    objects = Unconditional()
    if before is not None:
        objects.write(LEASE, before)
    with pytest.raises(OSError, match="cannot keep two supervisors apart"):
        Owner(objects).lease.acquire()
    assert (LEASE in objects.objects) == (before is not None)


def test_a_lease_that_a_person_removed_is_written_anew(objects: Objects) -> None:
    owner = Owner(objects, PATIENT)
    owner.lease.acquire()
    objects.delete(LEASE)
    assert owner.renews()
    assert body(objects)["epoch"] == 1
    owner.lease.release()


def test_an_outage_within_the_time_is_survived(objects: Objects, store: FaultyStore) -> None:
    owner = Owner(objects, PATIENT)
    owner.lease.acquire()
    store.plan = lambda asked: DOWN
    asked = len(store.requests)
    assert eventually(lambda: len(store.requests) > asked + 3)
    store.plan = lambda asked: None
    assert owner.renews()
    owner.lease.check()
    owner.lease.release()


def test_an_outage_beyond_the_time_ends_it_for_good(objects: Objects, store: FaultyStore) -> None:
    owner = Owner(objects)
    owner.lease.acquire()
    store.plan = lambda asked: DOWN
    assert owner.lost.wait(20)
    store.plan = lambda asked: None
    with pytest.raises(LeaseExpiredError, match=r"could not be renewed for 1\.8 s"):
        owner.lease.check()
    owner.lease.release()
    assert body(objects)["token"], "left to run out"


def test_lost_answers_lose_no_lease(objects: Objects, store: FaultyStore) -> None:
    """The store did what was asked, and refuses it the second time: that conflict is our own."""
    writes = 0

    def plan(asked: Request) -> Fault | None:
        nonlocal writes
        writes += is_write(asked)
        return LOST_ANSWER if is_write(asked) and writes % 3 == 1 else None

    store.plan = plan
    owner = Owner(objects, PATIENT)
    owner.lease.acquire()
    assert owner.renews()
    assert owner.renews()
    owner.lease.release()
    assert owner.errors == []
    assert body(objects)["epoch"] == 1


def test_what_was_there_before_us_is_no_takeover(objects: Objects, store: FaultyStore) -> None:
    gone = replace(Identity.of_this_process(), started=1)
    objects.write(LEASE, theirs(1, owner=gone.to_json()))
    owner = Owner(objects, PATIENT)
    owner.lease.acquire()
    faults: list[Callable[[Request], Fault | None]] = [
        lambda asked: LOST_ANSWER if is_write(asked) else None,
        lambda asked: None if is_write(asked) else STALE,
    ]
    stale = 0

    def plan(asked: Request) -> Fault | None:
        nonlocal stale
        fault = faults[stale > 0](asked)
        stale += fault is not None
        return fault

    store.plan = plan
    assert eventually(lambda: stale >= 3)
    store.plan = lambda asked: None
    assert owner.renews()
    assert owner.errors == []
    owner.lease.release()


class Heedless(MemoryObjects):
    """Takes any write."""

    def write(self, path: str, data: bytes, *, expected: str | None = None) -> str:
        return super().write(path, data)


def test_a_store_without_preconditions_is_refused() -> None:
    with pytest.raises(OSError, match="it cannot keep two supervisors apart: use another store"):
        Owner(Heedless()).lease.acquire()


def test_a_bucket_that_hangs_holds_up_nobody_who_ends() -> None:
    hangs, goes_on = threading.Event(), threading.Event()

    def fault(operation: str, path: str) -> None:
        if hangs.is_set():
            goes_on.wait()

    objects = MemoryObjects()
    owner = Owner(objects, PATIENT)
    owner.lease.acquire()
    objects.fault = fault
    hangs.set()
    owner.lease.release()
    assert not goes_on.is_set()
    goes_on.set()
    assert eventually(lambda: body(objects) == {"token": None, "epoch": 1})
