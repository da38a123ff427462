"""Places in the emulators of both object stores, with a proxy before them that can go wrong."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from supervisor.protocol.location import Uri
from tests.emulators import Emulator
from tests.faulty_store import FaultyStore


@pytest.fixture(params=["gcs", "s3"])
def emulator(request: pytest.FixtureRequest) -> Emulator:
    found: Emulator = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def store(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyStore]:
    """All that is asked of the emulator goes through it."""
    with FaultyStore(emulator).serving() as store:
        for name, value in store.proxied.env.items():
            monkeypatch.setenv(name, value)
        yield store


@pytest.fixture
def place(store: FaultyStore) -> Uri:
    return store.upstream.root / uuid.uuid4().hex
