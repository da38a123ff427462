"""The devices of all hosts of an attempt are probed after a failure that points at them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from supervisor.core.events import BadUnit, DevicesProbed, WorkersGone, WorkersObserved
from supervisor.engines.fleet.fleet_messages import Probed
from supervisor.engines.fleet.host_probes import PATIENCE, HostProbes
from supervisor.engines.fleet.launch_text import launch_of as launch_in_text
from supervisor.protocol import simulated
from tests.fleet.cluster import Cluster
from tests.fleet.leading import Leader, launch_of

BREAKS = """case $SUPERVISE_RANK in
1) echo "jaxlib.XlaRuntimeError: INTERNAL: uncorrectable ECC error encountered" >&2; exit 1;;
esac
exec sleep 1000
"""


NODES = {"a": "n0", "b": "n1"}
_BAD = Probed(7, (), (BadUnit("2", "it computes wrong results"),))
_UNKNOWN = Probed(7, (), (), "there is no jax")


def probes_of(folder: Path, platform: str = "gpu") -> HostProbes:
    launch = launch_of(folder, "", 2)
    return HostProbes.of(
        replace(launch, plan=replace(launch.plan, platform=platform)), 7, 1, NODES, 100.0
    )


def test_each_host_probes_its_own_devices_alone(tmp_path: Path) -> None:
    for platform, units in {"gpu": ("0", "1"), "cpu": ("n1",)}.items():
        command = probes_of(tmp_path, platform).wanted("b")
        assert command is not None
        plan = launch_in_text(command.launch).plan
        assert (plan.workers, plan.num_devices, plan.units) == (1, 2, units)


def test_a_host_is_bad_only_if_its_probe_says_so(tmp_path: Path) -> None:
    probes = probes_of(tmp_path)
    probes.note("a", _UNKNOWN)
    assert probes.wanted("a") is None
    assert probes.waits({"a", "b"}, 100.0)
    assert not probes.waits({"a", "b"}, 100.0 + PATIENCE), "its agent is well"
    assert not probes.waits({"a"}, 100.0), "its agent is lost"
    assert not probes.bad
    assert probes.problem == "host n0: there is no jax"
    probes.note("b", replace(_BAD, number=6))
    assert not probes.bad, "it answers an earlier probe"
    probes.note("b", _BAD)
    assert probes.bad == (BadUnit("n1", "it computes wrong results"),)
    assert probes.problem is None, "it is known which host is bad"


def test_the_hosts_of_a_tpu_slice_are_not_probed(tmp_path: Path) -> None:
    assert not probes_of(tmp_path, "tpu").waits(NODES, 100.0)


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
