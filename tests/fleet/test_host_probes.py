"""Real agents probe the devices of their hosts, with jax, after a failure that points at them."""

from __future__ import annotations

from pathlib import Path

from supervisor.core.events import DevicesProbed, WorkersGone, WorkersObserved
from supervisor.protocol import simulated
from tests.fleet.cluster import Cluster
from tests.fleet.leading import Leader, launch_of

BREAKS = """case $SUPERVISE_RANK in
1) echo "jaxlib.XlaRuntimeError: INTERNAL: uncorrectable ECC error encountered" >&2; exit 1;;
esac
exec sleep 1000
"""


def test_a_host_whose_devices_compute_wrong_results_is_found(tmp_path: Path) -> None:
    """Rank 1 complains, and the devices of rank 0's host are bad."""
    cluster = Cluster(3)
    try:
        leader = Leader(cluster, tmp_path, size=2, spares=1)
        launch = launch_of(tmp_path, BREAKS, 2)
        leader.start(launch)
        bad, good = leader.nodes
        spare = next(node for node in cluster.nodes if node not in leader.nodes)
        simulated.mark_wrong(tmp_path / simulated.FILE, bad)
        ended = leader.first(WorkersObserved, lambda event: bool(event.exits))
        leader.engine.kill(launch, ended.exits)
        failure = leader.first(WorkersGone).failure
        assert failure is not None
        assert failure.hardware
        leader.engine.probe(launch.plan, 1, None)
        found = leader.first(DevicesProbed)
        assert found.healthy == (good, spare)
        assert [(each.unit, each.found) for each in found.bad] == [(bad, True)]
        assert found.problem is None
    finally:
        cluster.close()
