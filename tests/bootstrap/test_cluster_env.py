"""A bare `jax.distributed.initialize()` finds the group, whatever launcher left its variables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.bootstrap.programs import Twice
from tests.running import Result

Supervise = Callable[..., Result]

JOINS = """
import jax

jax.distributed.initialize()
numbers = jax.process_index(), jax.process_count(), jax.local_device_count(), jax.device_count()
print(*numbers, jax.config.read("jax_cuda_visible_devices"))
jax.distributed.shutdown()
"""
MISLEADING = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_NODELIST": "node[017-080]",
    "SLURM_NTASKS": "64",
    "SLURM_PROCID": "37",
    "SLURM_LOCALID": "5",
    "SLURM_STEP_NUM_NODES": "64",
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1:34911",
    "OMPI_COMM_WORLD_SIZE": "64",
    "OMPI_COMM_WORLD_RANK": "37",
    "OMPI_COMM_WORLD_LOCAL_RANK": "5",
    "JOB_COMPLETION_INDEX": "37",
    "TPU_WORKER_ID": "37",
    "TPU_WORKER_HOSTNAMES": "node017,node018",
    "JAX_COORDINATOR_PORT": "1",
}


@pytest.mark.parametrize("in_config", [False, True])
def test_two_workers_meet_below_a_launcher(
    supervise: Supervise, model_dir: Path, tmp_path: Path, in_config: bool
) -> None:
    """`in_config`: the variables are set on purpose, so that none is removed. Then only the order
    in which JAX asks decides."""
    program = tmp_path / "train.py"
    program.write_text(JOINS)
    given = {"env": MISLEADING} if in_config else {}
    job = {
        "trainer": {
            "init": {
                "model_dir": str(model_dir),
                "devices": {"platform": "cpu", "count": 4},
                "workers": 2,
                "autorestart": {"max_num_restarts": 0, "standby": "off"},
            },
            "command": {"argv": [sys.executable, str(program)], **given},
        }
    }
    result = supervise(job, env={} if in_config else MISLEADING)
    assert result.code == 0, result.log
    logs = [b"".join(result.rank_log(1, rank).splitlines()[-1:]) for rank in (0, 1)]
    assert logs == [b"0 2 2 4 all", b"1 2 2 4 all"]


ASKED = """
from jax._src import clusters

first, *others = clusters.ClusterEnv._cluster_types
print(first.name, first.is_env_present(), "supervise" in [each.name for each in others])
"""
GROUP = {
    "JAX_COORDINATOR_ADDRESS": "127.0.0.1:7000",
    "JAX_NUM_PROCESSES": "2",
    "JAX_PROCESS_ID": "1",
    "SUPERVISE_WORLD_SIZE": "2",
    "SUPERVISE_RANK": "1",
}


@pytest.mark.parametrize(
    ("env", "present"),
    [
        (GROUP, True),
        ({**GROUP, "SUPERVISE_WORLD_SIZE": "1", "SUPERVISE_RANK": "0"}, False),
        ({"SUPERVISE_WORLD_SIZE": "1", "SUPERVISE_RANK": "0"}, False),
    ],
    ids=["group", "variables of another launcher", "alone"],
)
def test_only_a_worker_of_a_group_is_told_of_one(
    twice: Twice, env: Mapping[str, str], present: bool
) -> None:
    twice.write({"asked.py": ASKED})
    outcome = twice.bootstrapped("asked.py", env=env)
    assert outcome.stdout.decode().split() == ["supervise", str(present), "False"], outcome.stderr
