"""Environment variables through which a worker learns who it is.

The environment is never a source of *configuration*. Variables named `SUPERVISE_*` that the
supervisor itself inherited are removed before a worker starts, so that nested supervisors do not
mix.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

PROTOCOL_VERSION = 1

PREFIX = "SUPERVISE_"
JOB = PREFIX + "JOB"
ATTEMPT = PREFIX + "ATTEMPT"
RANK = PREFIX + "RANK"
WORLD_SIZE = PREFIX + "WORLD_SIZE"
NUM_DEVICES = PREFIX + "NUM_DEVICES"
PROTOCOL = PREFIX + "PROTOCOL"
PROGRESS_FD = PREFIX + "PROGRESS_FD"
PROGRESS_PIPE = PREFIX + "PROGRESS_PIPE"
"""`device:inode` of the progress pipe. A data-loader child inherits the number of the descriptor,
not the descriptor: without this it would write into whatever it opened under that number."""
FAILURE_FILE = PREFIX + "FAILURE_FILE"
STACKS_FILE = PREFIX + "STACKS_FILE"
FAULTS = PREFIX + "FAULTS"
ADJUST = PREFIX + "ADJUST"
FAILURES = PREFIX + "FAILURES"
"""JSON: how often the job has failed so far (`protocol.failure_history`)."""
SIMULATED_DEVICES = PREFIX + "SIMULATED_DEVICES"
"""JSON: the simulated units of a worker, and the file that lists the broken ones
(`protocol.simulated`)."""
SNAPSHOT_FD = PREFIX + "SNAPSHOT_FD"
SNAPSHOT_MEMORY = PREFIX + "SNAPSHOT_MEMORY"
"""`device:inode` of the memory for snapshots, for the same reason as `PROGRESS_PIPE`."""
METRICS_FILE = PREFIX + "METRICS_FILE"
"""The file to which our trainer writes what each step measured (`protocol.metrics_file`)."""
EXECUTABLES = PREFIX + "EXECUTABLES"
"""The directory in which a worker may keep compiled programs for later attempts."""
TOKENS = PREFIX + "TOKENS"
"""The directory in which our trainer keeps the tokens of its data for later attempts."""
STEPS_FROM_OUTPUT = PREFIX + "STEPS_FROM_OUTPUT"
"""Set if the supervisor reads steps from the worker's output: then the bootstrap reports none."""
SAVE_REQUEST = PREFIX + "SAVE_REQUEST"
"""The file that appears, or is replaced, when a person asks for a checkpoint
(`protocol.save_request`)."""
SAVE_ON_SIGTERM = PREFIX + "SAVE_ON_SIGTERM"
"""Set if the bootstrap is to save on SIGTERM (`command.save_on_sigterm`)."""
STANDBY = PREFIX + "STANDBY"
"""`descriptor:mode` in a process that is to wait as a standby (`protocol.standby`)."""
MODULES_FILE = PREFIX + "MODULES_FILE"
"""The file to which the bootstrap writes the modules that the program has loaded, for the next
standby."""
PRELOAD = PREFIX + "PRELOAD"
"""The modules that a standby imports, separated by commas; unset: those in `MODULES_FILE`."""
LEFT_OUT = PREFIX + "LEFT_OUT"
"""The modules that a standby found it cannot import, separated by commas: it began again without
them."""
LINEAGE = PREFIX + "LINEAGE"
"""`job@instance` of the supervisor, preceded by those of the supervisors that it runs under. It
shows people which job a process belongs to. It proves nothing: a program can change its
environment."""

OWNER = PREFIX + "OWNER"
"""The token of the supervisor that owns model_dir, and so of its workers: 32 hex digits."""
OWNER_FILE = PREFIX + "OWNER_FILE"
"""The file, or the URI of the object, that holds the token of the present owner, as the key `token`
of a JSON object. A worker that does not find `OWNER` there belongs to a former owner: it must not
commit anything. A token of null means that nobody owns model_dir."""

STALE_TOPOLOGY = (
    "MEGASCALE_COORDINATOR_ADDRESS",
    "MEGASCALE_NUM_SLICES",
    "MEGASCALE_SLICE_ID",
    "MEGASCALE_PORT",
    "JAX_COORDINATOR_ADDRESS",
    "JAX_COORDINATOR_BIND_ADDRESS",
    "JAX_LOCAL_DEVICE_IDS",
    "JAX_NUM_PROCESSES",
    "JAX_PARTITION_INDEX",
    "JAX_PROCESS_ID",
    "JAX_SLICE_INDEX",
    "OMPI_MCA_orte_hnp_uri",
    "SLURM_LOCALID",
    "CLOUD_TPU_TASK_ID",
    "TPU_PROCESS_ADDRESSES",
    "TPU_PROCESS_BOUNDS",
    "TPU_PROCESS_PORT",
)
"""Variables with the topology of an earlier attempt, or of the launcher of the supervisor. If they
stay, `jax.distributed.initialize()` hangs after a preemption (Ray issue 62893). They are removed
only where the supervisor itself sets the topology.

JAX needs the variable of Open MPI, and that of Slurm among others, to recognise these launchers. It
would then show each worker only the device with the supervisor's own index. Other `SLURM_*` stay,
for programs that read them."""
HOST_TOPOLOGY = (
    "ALT",
    "CHIPS_PER_HOST_BOUNDS",
    "HOST_BOUNDS",
    "TPU_ACCELERATOR_TYPE",
    "TPU_CHIPS_PER_HOST_BOUNDS",
    "TPU_HOST_BOUNDS",
    "TPU_SKIP_MDS_QUERY",
    "TPU_TOPOLOGY",
    "TPU_TOPOLOGY_ALT",
    "TPU_TOPOLOGY_WRAP",
    "TPU_VISIBLE_DEVICE_PATHS",
    "TPU_WORKER_HOSTNAMES",
    "TPU_WORKER_ID",
    "WRAP",
)
"""Variables of GKE and of images that describe all chips of a host, and the chip paths that libtpu
uses instead of `TPU_VISIBLE_CHIPS` (by its own words). They would contradict the variables of a
worker that gets a part of the host, so they are removed for such a worker. They stay where it gets
the whole host, or the job has no TPU. ALT, CHIPS_PER_HOST_BOUNDS, HOST_BOUNDS and WRAP are older
names of variables with TPU_, which GKE still sets."""
SHARES_TPU = "ALLOW_MULTIPLE_LIBTPU_LOAD"
"""If unset, libtpu locks the whole host for a process without bounds, or with bounds 2,2,1, which
may be half of the host (openxla `tpu_initialize_util.cc`, TryAcquireTpuLock)."""
ALL_TOPOLOGY = (*STALE_TOPOLOGY, *HOST_TOPOLOGY)
"""Variables that are removed where the supervisor sets the devices that a process sees."""

NUM_CPU_DEVICES = "JAX_NUM_CPU_DEVICES"
VISIBLE_DEVICES = (
    NUM_CPU_DEVICES,
    "CUDA_VISIBLE_DEVICES",
    "TPU_VISIBLE_CHIPS",
    "TPU_CHIPS_PER_PROCESS_BOUNDS",
)
"""Variables that choose the devices of a process. They matter only once the backend is initialised.
JAX reads the first one on import, but its value can be changed until then."""


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """Who a worker is: the part of the protocol that does not change while it lives."""

    job: str
    attempt: int
    rank: int = 0
    world_size: int = 1
    num_devices: int | None = None
    lineage: str | None = None

    def to_environment(self) -> dict[str, str]:
        """Return the environment variables from which a worker reads this."""
        variables = {
            JOB: self.job,
            ATTEMPT: str(self.attempt),
            RANK: str(self.rank),
            WORLD_SIZE: str(self.world_size),
            PROTOCOL: str(PROTOCOL_VERSION),
        }
        if self.num_devices is not None:
            variables[NUM_DEVICES] = str(self.num_devices)
        if self.lineage is not None:
            variables[LINEAGE] = self.lineage
        return variables

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> WorkerIdentity | None:
        """Return who this process is; None: no supervisor has started it."""
        if JOB not in environ:
            return None
        devices = environ.get(NUM_DEVICES)
        return cls(
            job=environ[JOB],
            attempt=int(environ.get(ATTEMPT, "1")),
            rank=int(environ.get(RANK, "0")),
            world_size=int(environ.get(WORLD_SIZE, "1")),
            num_devices=int(devices) if devices else None,
            lineage=environ.get(LINEAGE),
        )


@dataclass(frozen=True, slots=True)
class Owner:
    """The supervisor that owns model_dir, as its workers see it."""

    token: str
    file: str
    """The path or URI that holds the present owner's token."""

    def to_environment(self) -> dict[str, str]:
        """Return the environment variables from which a worker reads this."""
        return {OWNER: self.token, OWNER_FILE: self.file}


def file_identity(descriptor: int) -> str:
    """Return what a descriptor refers to, as `device:inode`."""
    status = os.fstat(descriptor)
    return f"{status.st_dev}:{status.st_ino}"


def inherited_descriptor(environ: Mapping[str, str], number: str, wanted: str) -> int | None:
    """Return the descriptor whose number is in the variable `number`, if its identity is the one in
    the variable `wanted`; None: this process did not inherit it."""
    told = environ.get(number, "")
    if not told.isdecimal():
        return None
    try:
        found = file_identity(int(told))
    except OSError:
        return None
    return int(told) if found == environ.get(wanted) else None


_OUR_SERVICE_MANAGER = ("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC")
"""systemd's variables for its main process. If a worker notified systemd in our place, systemd
would not notice that the supervisor hangs."""


def without_supervisor_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` without the variables of an outer supervisor, and without systemd's
    variables for this process."""
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(PREFIX) and name not in _OUR_SERVICE_MANAGER
    }


def snapshot_variables(descriptor: int) -> dict[str, str]:
    """Return the environment variables by which a worker finds the memory for its snapshots.

    The supervisor makes and owns the memory, so that it outlives the worker. The supervisor also
    empties it: empty memory means that there is no snapshot to resume from. Only workers read and
    write its content.
    """
    return {
        SNAPSHOT_FD: str(descriptor),
        SNAPSHOT_MEMORY: file_identity(descriptor),
    }


def snapshot_memory(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the descriptor of this worker's memory for snapshots; None: it has none.

    Call this late: a standby gets the memory and the environment only when it becomes the worker.
    Processes that this one starts do not inherit the memory.
    """
    descriptor = inherited_descriptor(environ, SNAPSHOT_FD, SNAPSHOT_MEMORY)
    if descriptor is not None:
        os.set_inheritable(descriptor, False)
    return descriptor
