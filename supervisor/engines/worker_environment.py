"""Which devices each worker sees, and how the workers of an attempt find one another.

All of it is environment that JAX and its backends read when they are initialised. Where the
supervisor leaves the devices to the program (one worker, all devices of a GPU or TPU host) it says
nothing, and what the supervisor itself was started with is in force.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from errno import ENODEV

from supervisor.config import gpus, visible_chips
from supervisor.config.chips import arrangement
from supervisor.config.plan import PhasePlan
from supervisor.config.topology import SliceShape
from supervisor.engines.launch import Launch
from supervisor.protocol import simulated
from supervisor.protocol.environment import NUM_CPU_DEVICES, SHARES_TPU

_LOCALHOST = "127.0.0.1"


def ports_needed(launch: Launch) -> int:
    """How many ports the workers meet at: the coordinator's, and on TPU one of each worker."""
    if launch.plan.workers == 1:
        return 0
    return 1 + (launch.world_size if launch.plan.platform == "tpu" else 0)


def placed(
    launch: Launch, rank: int, ports: Sequence[int], inherited: Mapping[str, str]
) -> dict[str, str]:
    """What a worker is told of its place; `inherited` is the rest of its environment.

    Raises:
        OSError: `inherited` hides devices that it should have.
    """
    env = {}
    if launch.plan.workers > 1:
        env = {
            "JAX_COORDINATOR_ADDRESS": f"{_LOCALHOST}:{ports[0]}",
            "JAX_NUM_PROCESSES": str(launch.world_size),
            "JAX_PROCESS_ID": str(rank),
        }
    match launch.plan.platform:
        case "cpu":
            return env | _simulated(launch, rank)
        case "gpu" if launch.is_placed:
            return env | visible(launch.plan, launch.device_ids(rank), inherited)
        case "tpu" if launch.is_placed:
            return env | _chips(launch, rank, ports[1:], inherited)
    return env


def visible(plan: PhasePlan, ids: Sequence[str], inherited: Mapping[str, str]) -> dict[str, str]:
    """What has one process see these devices of a GPU or TPU host, and no others.

    Raises:
        ValueError: one process cannot have so many chips.
        OSError: `inherited` hides some of them.
    """
    if plan.platform == "gpu":
        return {gpus.VISIBLE: _names(gpus.VISIBLE, ids, inherited)}
    return _part(plan.tpu, ids, len(ids), inherited)


def _simulated(launch: Launch, rank: int) -> dict[str, str]:
    ids = launch.device_ids(rank)
    host = launch.hosts[rank : rank + 1]
    broken = simulated.to_environment(launch.model_dir / simulated.FILE, (*host, *ids))
    count = (
        {NUM_CPU_DEVICES: str(len(ids))} if ids and NUM_CPU_DEVICES not in launch.plan.env else {}
    )
    return count | broken


def _names(variable: str, ids: Sequence[str], inherited: Mapping[str, str]) -> str:
    """The devices by the names that they have for whoever started us, who may see only some.

    Raises:
        OSError: the variable shows fewer than these.
    """
    if variable not in inherited:
        return ",".join(ids)
    names = gpus.listed(inherited[variable])
    hidden = [one for one in ids if int(one) >= len(names)]
    if hidden:
        raise OSError(
            ENODEV,
            f"{variable} is {inherited[variable]!r} and shows only {len(names)} devices, so device "
            f"{', '.join(hidden)} cannot be used: name more there, or lower init.devices.count",
        )
    return ",".join(names[int(one)] for one in ids)


def _chips(
    launch: Launch, rank: int, ports: Sequence[int], inherited: Mapping[str, str]
) -> dict[str, str]:
    ids = launch.device_ids(rank)
    env = _part(launch.plan.tpu, ids, len(ids) * launch.world_size, inherited)
    if launch.plan.workers > 1:
        env |= {
            "TPU_PROCESS_ADDRESSES": ",".join(f"{_LOCALHOST}:{port}" for port in ports),
            "TPU_PROCESS_PORT": str(ports[rank]),
            "CLOUD_TPU_TASK_ID": str(rank),
        }
    return env


def _part(
    whole: SliceShape | None, ids: Sequence[str], chips: int, inherited: Mapping[str, str]
) -> dict[str, str]:
    """What a process is told that has `ids` of the `chips` in use of a TPU host.

    Raises:
        ValueError: no source shows how.
        OSError: `inherited` hides some of the chips.
    """
    found = arrangement(whole.generation if whole is not None else None, chips, len(ids))
    if found is None:
        raise ValueError(f"one process cannot have {len(ids)} of {chips} chips of a TPU host")
    seen = _names(visible_chips.variable(inherited), ids, inherited)
    env = {
        visible_chips.VISIBLE: seen,
        "TPU_PROCESS_BOUNDS": found.processes,
        "TPU_CHIPS_PER_PROCESS_BOUNDS": found.chips,
        SHARES_TPU: "1",
    }
    if visible_chips.VISIBLE_BEFORE in inherited:
        env[visible_chips.VISIBLE_BEFORE] = seen
    return env | _alone(whole)


def _alone(whole: SliceShape | None) -> dict[str, str]:
    """What GKE says of a host that is a slice of its own, so that libtpu need not ask the metadata
    server, which may tell of more hosts (pytorch/xla #7714); nothing where it is not known."""
    if whole is None or whole.host_bounds is None or whole.topology is None:
        return {}
    return {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": whole.type_in_the_cloud,
        "TPU_TOPOLOGY": whole.topology,
        "TPU_CHIPS_PER_HOST_BOUNDS": ",".join(map(str, whole.host_bounds)),
        "TPU_HOST_BOUNDS": "1,1,1",
        "TPU_WORKER_ID": "0",
        "TPU_WORKER_HOSTNAMES": "localhost",
    }
