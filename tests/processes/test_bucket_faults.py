"""A job in a bucket that fails: now and then it is none of the job's business, for good its end."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.adapters.stores.bucket import bucket
from supervisor.adapters.stores.fetch import read_growing
from supervisor.adapters.stores.lease import LeaseTimes
from supervisor.protocol.location import Uri
from tests.emulators import Emulator
from tests.faulty_store import EXPIRED, LOST_ANSWER, RESET, FaultyStore, Plan, answered, slow
from tests.running import Start, command_config

from .test_lease import leased


@pytest.fixture
def store(gcs: Emulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FaultyStore]:
    """The emulator, as the supervisor sees it; we see it directly."""
    for name, value in gcs.env.items():
        monkeypatch.setenv(name, value)
    with FaultyStore(gcs).serving() as store:
        yield store


@pytest.fixture
def env(store: FaultyStore, tmp_path: Path) -> dict[str, str]:
    return {**store.proxied.env, "XDG_STATE_HOME": str(tmp_path / "state")}


@pytest.fixture
def job(store: FaultyStore, tmp_path: Path) -> dict[str, Any]:
    """Makes steps for eight seconds, and is killed once on the way."""
    toy = ("SIGKILL", "--once", "--at", "10", "--steps", "40", "--seconds", "0.2")
    job = command_config(tmp_path / "toy", *toy, success={"step": 40})
    job["trainer"]["init"]["model_dir"] = str(store.upstream.root / uuid.uuid4().hex)
    return job


def attempts(job: dict[str, Any]) -> list[int]:
    """Those that were started, by the journal in the bucket."""
    place = Uri.parse(job["trainer"]["init"]["model_dir"])
    assert place is not None
    journal = read_growing(bucket(place), "journal.jsonl", pytest.fail) or b""
    events = [json.loads(line).get("event", {}) for line in journal.splitlines()]
    return [event["attempt"] for event in events if event.get("kind") == "WorkersStarted"]


def storm(share: float, seed: int) -> Plan:
    """So many of the requests fail, each in its own way."""
    lots = random.Random(seed)
    kinds = (answered(429), answered(503), RESET, LOST_ANSWER, EXPIRED["gs"], slow(0.5))
    return lambda asked: lots.choice(kinds) if lots.random() < share else None


@pytest.mark.slow
def test_in_a_storm_the_job_goes_on_as_if_there_was_none(
    start: Start, store: FaultyStore, job: dict[str, Any], env: dict[str, str]
) -> None:
    store.plan = storm(0.4, seed=3)
    result = start(job, env=env).result(timeout=200.0)
    assert result.code == 0, result.out + result.err
    assert result.has_event("budget-used", restarts=1, max_num_restarts=1)
    assert attempts(job) == [1, 2]


@pytest.mark.slow
def test_a_bucket_that_stays_away_ends_the_run_and_another_goes_on(
    start: Start, store: FaultyStore, job: dict[str, Any], env: dict[str, str]
) -> None:
    prefix = leased(LeaseTimes(duration=4.0, renew=0.5))
    running = start(job, env=env, prefix=prefix)
    running.wait_for_event("workers-started", attempt=2)
    store.plan = lambda asked: answered(503)
    result = running.result(timeout=100.0)
    assert result.code == 74, result.out + result.err
    assert "was not renewed since" in result.err
    assert result.has_event("lease-overdue")
    assert "could not be renewed" in result.err
    assert "Traceback" not in result.err
    store.plan = lambda asked: None
    again = start(job, env=env, prefix=prefix).result()
    assert again.code == 0, again.out + again.err
    assert attempts(job) == [1, 2, 3]
