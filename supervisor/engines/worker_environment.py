"""Makes the environment variables that tell each worker its devices and where the others are.

JAX and its backends read these variables when they are initialised. If one worker has all devices
of a GPU or TPU host, the supervisor sets none of them. The variables that the supervisor itself was
started with then apply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from errno import ENODEV

from supervisor.config import gpus, visible_chips
from supervisor.config.chips import arrangement
from supervisor.config.plan import PhasePlan
from supervisor.config.topology import SliceShape
from supervisor.engines.launch import Launch, Part
from supervisor.protocol import simulated
from supervisor.protocol.environment import NUM_CPU_DEVICES, SHARES_TPU

_LOCALHOST = "127.0.0.1"


def ports_needed(launch: Launch) -> int:
    """Returns how many ports the workers need to meet: one for the coordinator, and on TPU one more
    for each worker. 0 if there is one worker."""
    if launch.plan.workers == 1 or launch.part is not None:
        return 0
    return 1 + (launch.world_size if launch.plan.platform == "tpu" else 0)


def placement_variables(
    launch: Launch, rank: int, ports: Sequence[int], inherited: Mapping[str, str]
) -> dict[str, str]:
    """Returns the variables that tell a worker its devices and its place among the workers.

    `ports` are as many free ports as `ports_needed` says. `inherited` is the rest of the worker's
    environment.

    Raises:
        ValueError: the chips of a TPU host cannot be shared among processes like this.
        OSError: `inherited` hides devices that the worker should have.
    """
    env = {}
    if launch.plan.workers > 1:
        part = launch.part
        env = {
            "JAX_COORDINATOR_ADDRESS": part.coordinator if part else f"{_LOCALHOST}:{ports[0]}",
            "JAX_NUM_PROCESSES": str(launch.world_size),
            "JAX_PROCESS_ID": str(rank),
        }
    match launch.plan.platform:
        case "cpu":
            return env | _simulated_variables(launch, rank)
        case "gpu" if launch.needs_placement:
            return env | visibility_variables(launch.plan, launch.device_ids(rank), inherited)
        case "tpu" if launch.part is not None and launch.has_whole_hosts:
            return env | _slice_variables(launch.part)
        case "tpu" if launch.needs_placement:
            return env | _tpu_variables(launch, rank, ports[1:], inherited)
    return env


def visibility_variables(
    plan: PhasePlan, ids: Sequence[str], inherited: Mapping[str, str]
) -> dict[str, str]:
    """Returns the variables that show one process the devices `ids` of a GPU or TPU host, and no
    others.

    Raises:
        ValueError: one process cannot have just so many chips.
        OSError: `inherited` hides some of the devices.
    """
    if plan.platform == "gpu":
        return {gpus.CUDA_VISIBLE_DEVICES: _visible_list(gpus.CUDA_VISIBLE_DEVICES, ids, inherited)}
    return _chip_variables(plan.tpu, ids, len(ids), inherited)


def _slice_variables(part: Part) -> dict[str, str]:
    """Returns the variables by which several TPU slices find one another: those that Ray sets
    (ray 2.60, `ray.util.tpu.get_tpu_coordinator_env_vars`). What a host of a slice needs of its own
    slice stands in its environment."""
    if part.num_slices < 2:
        return {}
    return {
        "MEGASCALE_COORDINATOR_ADDRESS": part.coordinator.rpartition(":")[0],
        "MEGASCALE_NUM_SLICES": str(part.num_slices),
        "MEGASCALE_PORT": str(part.slices_port),
        "MEGASCALE_SLICE_ID": str(part.slice_number),
    }


def _simulated_variables(launch: Launch, rank: int) -> dict[str, str]:
    ids = launch.device_ids(rank)
    host = launch.hosts[rank : rank + 1]
    broken = simulated.to_environment(launch.model_dir / simulated.FILE, (*host, *ids))
    count = (
        {NUM_CPU_DEVICES: str(len(ids))} if ids and NUM_CPU_DEVICES not in launch.plan.env else {}
    )
    return count | broken


def _visible_list(variable: str, ids: Sequence[str], inherited: Mapping[str, str]) -> str:
    """Returns the value of `variable` that selects the devices `ids`.

    If `inherited` has the variable, only the devices in its list are visible. Then the ids are
    positions in this list, and are replaced by the names that stand there.

    Raises:
        OSError: the list is too short for one of `ids`.
    """
    if variable not in inherited:
        return ",".join(ids)
    names = gpus.split_names(inherited[variable])
    hidden = [one for one in ids if int(one) >= len(names)]
    if hidden:
        raise OSError(
            ENODEV,
            f"{variable} is {inherited[variable]!r} and shows only {len(names)} devices, so device "
            f"{', '.join(hidden)} cannot be used: name more there, or lower init.devices.count",
        )
    return ",".join(names[int(one)] for one in ids)


def _tpu_variables(
    launch: Launch, rank: int, ports: Sequence[int], inherited: Mapping[str, str]
) -> dict[str, str]:
    ids = launch.device_ids(rank)
    env = _chip_variables(launch.plan.tpu, ids, len(ids) * launch.world_size, inherited)
    if launch.plan.workers > 1:
        env |= {
            "TPU_PROCESS_ADDRESSES": ",".join(f"{_LOCALHOST}:{port}" for port in ports),
            "TPU_PROCESS_PORT": str(ports[rank]),
            "CLOUD_TPU_TASK_ID": str(rank),
        }
    return env


def _chip_variables(
    whole: SliceShape | None, ids: Sequence[str], chips: int, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Returns the variables for a process that uses the chips `ids` of a TPU host.

    `chips` is how many chips of the host the processes of the job use together.

    Raises:
        ValueError: no source shows that the chips can be shared like this (`config.chips`).
        OSError: `inherited` hides some of the chips.
    """
    found = arrangement(whole.generation if whole is not None else None, chips, len(ids))
    if found is None:
        raise ValueError(f"one process cannot have {len(ids)} of {chips} chips of a TPU host")
    seen = _visible_list(visible_chips.variable(inherited), ids, inherited)
    env = {
        visible_chips.TPU_VISIBLE_CHIPS: seen,
        "TPU_PROCESS_BOUNDS": found.processes,
        "TPU_CHIPS_PER_PROCESS_BOUNDS": found.chips,
        SHARES_TPU: "1",
    }
    if visible_chips.TPU_VISIBLE_DEVICES in inherited:
        env[visible_chips.TPU_VISIBLE_DEVICES] = seen
    return env | _single_host_slice_variables(whole)


def _single_host_slice_variables(whole: SliceShape | None) -> dict[str, str]:
    """Returns the variables that GKE sets on a host that is a whole slice.

    With them libtpu does not ask the metadata server, which may report more hosts (pytorch/xla
    #7714). Empty if the slice or its topology is not known, or if the slice has several hosts.
    """
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
