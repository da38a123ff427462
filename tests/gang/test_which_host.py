"""Which host this is, and where the first one is, by what each launcher tells."""

from __future__ import annotations

import pytest

from supervisor.gang.which_host import place_of

SLURM = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "3", "SLURM_LOCALID": "0"}


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node001", "node001"),
        ("node001,b2", "node001"),
        ("node[017-080]", "node017"),
        ("node[3,5-9],b", "node3"),
        ("gpu-a[01,07]", "gpu-a01"),
    ],
)
def test_slurm_lists_the_nodes(nodes: str, first: str) -> None:
    place = place_of({**SLURM, "SLURM_STEP_NODELIST": nodes})
    assert (place.name, place.leads, place.address) == ("3", False, f"{first}:6379")
    assert place.launch == "slurm-7-0"
    again = place_of({**SLURM, "SLURM_JOB_NODELIST": nodes, "SLURM_RESTART_COUNT": "2"})
    assert (again.host, again.launch) == (first, "slurm-7-2")


def test_the_first_host_reaches_itself() -> None:
    place = place_of({"SLURM_NODEID": "0", "SLURM_JOB_NODELIST": "node[017-080]"})
    assert (place.leads, place.address) == (True, "127.0.0.1:6379")
    assert place_of({}, index=0).leads, "it needs no address of the first host"


def test_a_pod_of_an_indexed_job_is_told_the_head() -> None:
    pod = {"JOB_COMPLETION_INDEX": "2", "TPU_WORKER_ID": "9"}
    place = place_of(pod, head="demo-host-0-0.demo:7001", launch="uid")
    assert (place.name, place.leads, place.launch) == ("2", False, "uid")
    assert place.address == "demo-host-0-0.demo:7001"


@pytest.mark.parametrize(("job", "own", "leads"), [("0", "0", True), ("1", "0", False)])
def test_of_several_slices_only_the_first_one_leads(job: str, own: str, leads: bool) -> None:
    for env in (
        {"JOB_COMPLETION_INDEX": own, "JOB_INDEX": job},
        {"TPU_WORKER_ID": own, "MEGASCALE_SLICE_ID": job},
    ):
        place = place_of(env, head="h")
        assert place.leads is leads
        assert place.name == (own if leads else f"{job}.{own}")


def test_tpu_workers_are_told_their_first_one() -> None:
    env = {"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "t-0.svc,t-1.svc"}
    assert place_of(env).address == "t-0.svc:6379"
    several = {**env, "MEGASCALE_SLICE_ID": "1", "MEGASCALE_COORDINATOR_ADDRESS": "s0-t-0.svc:8081"}
    assert place_of(several).address == "s0-t-0.svc:6379"


def test_options_replace_what_is_left_of_a_launcher() -> None:
    place = place_of({**SLURM, "SLURM_JOB_NODELIST": "a"}, index=1, head="b:1", launch="")
    assert (place.name, place.address, place.launch) == ("1", "b:1", "")


@pytest.mark.parametrize(
    ("env", "index", "head", "text"),
    [
        ({}, None, "h", "give --index"),
        ({"JOB_COMPLETION_INDEX": "1"}, None, None, "give --head"),
        ({"JOB_COMPLETION_INDEX": "x"}, None, "h", "'x', which is no index"),
        ({**SLURM, "SLURM_LOCALID": "1"}, None, "h", "--ntasks-per-node=1"),
        ({}, 1, ":7", "is no address"),
        ({}, 1, "h:70000", "is no address"),
        ({}, 1, "h:x", "is no address"),
        ({**SLURM, "SLURM_JOB_NODELIST": "[1-2]"}, None, None, "cannot be read"),
    ],
)
def test_what_is_missing_is_named(
    env: dict[str, str], index: int | None, head: str | None, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        place_of(env, index, head)
