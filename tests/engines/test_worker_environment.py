"""Which devices each worker is shown, and how it is told of the others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.diagnosis.success import Success
from supervisor.engines.launch import Launch, Part
from supervisor.engines.worker_environment import placement_variables, ports_needed
from supervisor.protocol.environment import (
    ALL_TOPOLOGY,
    FAILURES,
    FAULTS,
    MODULES_FILE,
    SIMULATED_DEVICES,
)
from supervisor.protocol.failure_history import FailureHistory
from supervisor.protocol.fault_injection import InjectedFault
from tests.config.files import COMMAND, with_command, with_init
from tests.config.test_plan import plans

PORTS = (7000, 7001, 7002, 7003, 7004)


def launch(init: str, config: str = COMMAND) -> Launch:
    (plan,) = plans(with_init(init, config))
    return Launch(
        job="job",
        lineage="job@1",
        attempt=3,
        phase=0,
        plan=plan,
        success=Success(),
        rules=(),
        model_dir=Path("/run"),
        directory=Path("/run/attempts/0003"),
        params=Path("/run/params.yaml"),
    )


def places(of: Launch, inherited: dict[str, str] | None = None) -> list[dict[str, str]]:
    """Of each worker; what simulated devices it holds is left out."""
    ports = PORTS[: ports_needed(of)]
    found = [placement_variables(of, rank, ports, inherited or {}) for rank in range(of.world_size)]
    return [{k: v for k, v in place.items() if k != SIMULATED_DEVICES} for place in found]


def test_one_worker_has_the_devices_of_its_rung() -> None:
    four = launch("devices: {platform: cpu, count: 4}")
    assert places(four) == [{"JAX_NUM_CPU_DEVICES": "4"}]
    two = replace(four, num_devices=2, units=("0", "3"))
    assert places(two) == [{"JAX_NUM_CPU_DEVICES": "2"}]
    assert two.protocol_variables(0, [])["SUPERVISE_NUM_DEVICES"] == "2"
    assert two.values(None)["num_devices"] == "2"


def test_a_worker_is_told_how_often_the_job_has_failed() -> None:
    first = launch("devices: {platform: cpu}")
    assert FAILURES not in first.protocol_variables(0, [])
    history = FailureHistory(2, 90.0)
    told = replace(first, failures=history).protocol_variables(0, [])
    assert FailureHistory.from_environment(told) == history


def test_what_the_config_says_of_cpu_devices_is_left_alone() -> None:
    own = with_command("argv: [a]\nenv: {JAX_NUM_CPU_DEVICES: '7'}")
    assert places(launch("devices: {platform: cpu, count: 4}", own)) == [{}]


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_without_a_count_or_a_rung_the_program_takes_what_it_finds(platform: str) -> None:
    stale = {"JAX_COORDINATOR_ADDRESS": "them:1", "CUDA_VISIBLE_DEVICES": "1"}
    found = launch(f"devices: {{platform: {platform}}}")
    assert places(found, stale) == [{}]
    assert found.inherited(stale, {}).items() >= stale.items()


def test_several_workers_find_one_another_and_share_the_devices() -> None:
    of = launch("devices: {platform: cpu, count: 6}\nworkers: 3")
    assert of.inherited({"MEGASCALE_SLICE_ID": "1", "HOME": "/"}, {}).keys() == {
        "HOME",
        "JAX_PLATFORMS",
    }
    for rank, place in enumerate(places(of)):
        assert place == {
            "JAX_COORDINATOR_ADDRESS": "127.0.0.1:7000",
            "JAX_NUM_PROCESSES": "3",
            "JAX_PROCESS_ID": str(rank),
            "JAX_NUM_CPU_DEVICES": "2",
        }
        told = of.protocol_variables(rank, [])
        assert told["SUPERVISE_RANK"] == str(rank)
        assert told["SUPERVISE_WORLD_SIZE"] == "3"
        assert told["SUPERVISE_NUM_DEVICES"] == "6"
        assert told["SUPERVISE_FAILURE_FILE"] == f"/run/attempts/0003/rank{rank}.failure.json"
        assert (MODULES_FILE in told) == (rank == 0), "several write one file"


def test_the_launcher_s_variables_of_the_supervisor_reach_no_worker_of_a_group() -> None:
    launcher = {
        "JAX_COORDINATOR_BIND_ADDRESS": "[::]:1",
        "JAX_LOCAL_DEVICE_IDS": "0",
        "JAX_PARTITION_INDEX": "3",
        "JAX_SLICE_INDEX": "3",
        "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1:34911",
        "SLURM_LOCALID": "5",
        "SLURM_JOB_ID": "7",
    }
    several = launch("devices: {platform: cpu, count: 6}\nworkers: 3")
    assert several.inherited(launcher, {}).keys() == {"SLURM_JOB_ID", "JAX_PLATFORMS"}
    alone = launch("devices: {platform: cpu, count: 6}")
    assert alone.inherited(launcher, {}).items() >= launcher.items()


def test_a_lost_host_is_a_worker_less_and_the_others_keep_their_devices() -> None:
    whole = launch("devices: {platform: gpu, count: 6}\nworkers: 3")
    rung = replace(whole, num_devices=4, units=("host0", "host2"))
    assert [place["CUDA_VISIBLE_DEVICES"] for place in places(rung)] == ["0,1", "4,5"]
    assert [place["JAX_NUM_PROCESSES"] for place in places(rung)] == ["2", "2"]
    assert rung.protocol_variables(1, [])["SUPERVISE_NUM_DEVICES"] == "4"


def test_a_device_goes_by_the_name_that_we_were_given_it_by() -> None:
    rung = replace(launch("devices: {platform: gpu, count: 4}"), num_devices=2, units=("1", "3"))
    assert places(rung) == [{"CUDA_VISIBLE_DEVICES": "1,3"}]
    ours = {"CUDA_VISIBLE_DEVICES": "4,5,6,GPU-7f"}
    assert places(rung, ours) == [{"CUDA_VISIBLE_DEVICES": "5,GPU-7f"}]


@pytest.mark.parametrize("shown", ["4", "", "0,1,2"])
def test_a_list_that_is_too_short_is_named(shown: str) -> None:
    rung = replace(launch("devices: {platform: gpu, count: 4}"), num_devices=2, units=("0", "3"))
    with pytest.raises(OSError, match=r"CUDA_VISIBLE_DEVICES is .* so device .*3 cannot be used"):
        places(rung, {"CUDA_VISIBLE_DEVICES": shown})


def test_chips_of_a_tpu_host_are_told_with_their_bounds() -> None:
    eight = launch("devices: {platform: tpu, type: v5e-8}")
    assert places(eight) == [{}]
    four = replace(eight, num_devices=4, units=("4", "5", "6", "7"))
    told = {
        "TPU_VISIBLE_CHIPS": "4,5,6,7",
        "TPU_PROCESS_BOUNDS": "1,1,1",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "2,2,1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }
    host = {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v5litepod-8",
        "TPU_TOPOLOGY": "2x4",
        "TPU_CHIPS_PER_HOST_BOUNDS": "2,4,1",
        "TPU_HOST_BOUNDS": "1,1,1",
        "TPU_WORKER_ID": "0",
        "TPU_WORKER_HOSTNAMES": "localhost",
    }
    assert places(four) == [told | host]
    unnamed = launch("devices: {platform: tpu, count: 8}")
    assert places(replace(unnamed, num_devices=4, units=four.units)) == [told]


def test_a_whole_tpu_host_is_left_as_it_was_given_to_us() -> None:
    gke = {"TPU_TOPOLOGY": "2x4", "TPU_WORKER_ID": "3", "TPU_HOST_BOUNDS": "1,1,1"}
    eight = launch("devices: {platform: tpu, type: v5e-8}")
    regrown = replace(eight, num_devices=8, units=eight.plan.units)
    for whole in (eight, regrown):
        assert places(whole) == [{}]
        assert whole.inherited(gke, {}).items() >= gke.items()


def test_nothing_inherited_contradicts_what_a_part_of_a_tpu_host_is_told() -> None:
    part = replace(launch("devices: {platform: tpu, count: 8}"), num_devices=2, units=("2", "3"))
    stale = dict.fromkeys((*ALL_TOPOLOGY, "TPU_VISIBLE_DEVICES"), "9")
    kept = part.inherited(stale | {"TPU_NAME": "mine"}, {})
    assert kept.keys() == {"TPU_VISIBLE_DEVICES", "JAX_PLATFORMS", "TPU_NAME"}
    (place,) = places(part, {"TPU_VISIBLE_DEVICES": "4,5,6,7"})
    assert place["TPU_VISIBLE_DEVICES"] == place["TPU_VISIBLE_CHIPS"] == "6,7"


GKE = {"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "a,b", "TPU_TOPOLOGY": "2x2x2"}
"""What GKE sets on each host of a slice."""


TWO_HOSTS = "devices: {platform: tpu, type: v4-16}\nhosts: {engine: ray, count: 2}"


def test_a_tpu_host_of_a_cluster_keeps_what_it_knows_of_its_slice() -> None:
    part = Part((1,), "10.0.0.1:7000")
    of = replace(launch(TWO_HOSTS), part=part)
    earlier = {"MEGASCALE_SLICE_ID": "7", "TPU_PROCESS_BOUNDS": "1,1,1"}
    assert of.inherited(GKE | earlier, {}).keys() == {*GKE, "JAX_PLATFORMS"}
    assert placement_variables(of, 1, (), {}) == {
        "JAX_COORDINATOR_ADDRESS": "10.0.0.1:7000",
        "JAX_NUM_PROCESSES": "2",
        "JAX_PROCESS_ID": "1",
    }


def test_several_tpu_slices_of_a_cluster_find_one_another() -> None:
    part = Part((1,), "[fd00::1]:7000", num_slices=2, slice_number=1, slices_port=7001)
    of = replace(launch(TWO_HOSTS), part=part)
    told = placement_variables(of, 1, (), {})
    assert {name: value for name, value in told.items() if name.startswith("MEGASCALE")} == {
        "MEGASCALE_COORDINATOR_ADDRESS": "[fd00::1]",
        "MEGASCALE_NUM_SLICES": "2",
        "MEGASCALE_PORT": "7001",
        "MEGASCALE_SLICE_ID": "1",
    }


def test_old_names_of_a_hosts_topology_are_replaced_on_a_tpu_alone() -> None:
    old = {"HOST_BOUNDS": "1,1,1", "CHIPS_PER_HOST_BOUNDS": "2,4,1", "WRAP": "false", "ALT": "x"}
    part = replace(launch("devices: {platform: tpu, count: 8}"), num_devices=2, units=("2", "3"))
    assert not part.inherited(old, {}).keys() & old.keys()
    gpus = replace(launch("devices: {platform: gpu, count: 8}"), num_devices=2, units=("2", "3"))
    assert gpus.inherited(old, {}).items() >= old.items()


def test_workers_on_one_tpu_host_each_have_chips_and_an_address() -> None:
    first, second = places(launch("devices: {platform: tpu, type: v6e-8}\nworkers: 2"))
    assert (first["TPU_VISIBLE_CHIPS"], second["TPU_VISIBLE_CHIPS"]) == ("0,1,2,3", "4,5,6,7")
    assert (
        second.items()
        >= {
            "JAX_COORDINATOR_ADDRESS": "127.0.0.1:7000",
            "JAX_PROCESS_ID": "1",
            "TPU_PROCESS_BOUNDS": "1,2,1",
            "TPU_CHIPS_PER_PROCESS_BOUNDS": "2,2,1",
            "TPU_PROCESS_ADDRESSES": "127.0.0.1:7001,127.0.0.1:7002",
            "TPU_PROCESS_PORT": "7002",
            "CLOUD_TPU_TASK_ID": "1",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        }.items()
    )


def test_a_worker_knows_which_simulated_devices_are_its_own() -> None:
    def held(of: Launch, rank: int) -> list[str]:
        told = placement_variables(of, rank, PORTS, {})[SIMULATED_DEVICES]
        return list(json.loads(told)["units"])

    one = launch("devices: {platform: cpu, count: 4}")
    assert held(replace(one, num_devices=2, units=("0", "3")), 0) == ["0", "3"]
    several = launch("devices: {platform: cpu, count: 6}\nworkers: 3")
    assert held(replace(several, num_devices=4, units=("host0", "host2")), 1) == ["host2", "4", "5"]
    assert SIMULATED_DEVICES not in placement_variables(
        launch("devices: {platform: gpu}"), 0, (), {}
    )


def test_a_drill_is_for_its_rank_alone() -> None:
    of = launch("devices: {platform: cpu, count: 2}\nworkers: 2")
    drill = InjectedFault(id="one", step=3, signal="SIGKILL", rank=1)
    assert FAULTS not in of.protocol_variables(0, [drill])
    assert json.loads(of.protocol_variables(1, [drill])[FAULTS])["faults"][0]["id"] == "one"


def test_simulated_devices_break_by_their_own_ids_and_by_those_of_their_host() -> None:
    two = replace(launch("workers: 2\ndevices: {platform: cpu, count: 4}"), units=("host1",))
    (place,) = [placement_variables(replace(two, num_devices=2), 0, PORTS, {})]
    told = json.loads(place[SIMULATED_DEVICES])
    assert told == {"file": "/run/simulated_devices.json", "units": ["host1", "2", "3"]}
    assert SIMULATED_DEVICES not in placement_variables(
        launch("devices: {platform: gpu}"), 0, PORTS, {}
    )
