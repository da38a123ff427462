"""Real agents whose machines have metadata servers: what these announce is heard by the leader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.core.events import HostsLeaving, Noticed, StopRequested
from tests.fleet.cluster import Cluster
from tests.fleet.leading import Leader, launch_of
from tests.processes.metadata_server import MetadataServer


@pytest.fixture
def metadata() -> Iterator[MetadataServer]:
    with MetadataServer().serving() as server:
        yield server


@pytest.fixture
def cluster(metadata: MetadataServer) -> Iterator[Cluster]:
    """Two nodes; n1 is a machine of Google's cloud."""
    made = Cluster(2)
    made.environ["n1"] = {"GCE_METADATA_HOST": metadata.host}
    yield made
    made.close()


def training(cluster: Cluster, folder: Path, announcer: str = "auto") -> Leader:
    """A job that trains on both."""
    leader = Leader(cluster, folder, size=2, announcer=announcer)
    leader.start(launch_of(folder, "sleep 3600", 2))
    return leader


def test_a_machine_that_is_preempted_is_a_host_that_leaves(
    cluster: Cluster, metadata: MetadataServer, tmp_path: Path
) -> None:
    leader = training(cluster, tmp_path)
    metadata.set("preempted", "TRUE")
    told = leader.first(HostsLeaving)
    says = f"the metadata server at {metadata.host} says instance/preempted is TRUE"
    assert told.reason == f"host n1 is about to go: {says}"
    assert not leader.of(StopRequested), "the job goes on elsewhere"


def test_maintenance_that_a_host_survives_is_only_told(
    cluster: Cluster, metadata: MetadataServer, tmp_path: Path
) -> None:
    leader = training(cluster, tmp_path)
    metadata.set("maintenance-event", "MIGRATE_ON_HOST_MAINTENANCE")
    told = leader.first(Noticed, lambda notice: "[n1]" in str(notice.text))
    assert getattr(told.text, "event", "") == "maintenance-announced"
    assert not leader.of(HostsLeaving)


def test_no_machine_is_asked_if_the_config_wants_none(
    cluster: Cluster, metadata: MetadataServer, tmp_path: Path
) -> None:
    training(cluster, tmp_path, announcer="none")
    assert not metadata.requests
