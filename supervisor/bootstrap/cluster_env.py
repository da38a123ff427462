"""Tells a bare `jax.distributed.initialize()` which group of workers this process belongs to.

JAX reads only the coordinator's address from a variable of its own. It asks a list of `ClusterEnv`
classes for the rest, and the first one that recognises its launcher answers: Slurm, Open MPI, Cloud
TPU, Kubernetes. The variables of such a launcher describe the supervisor's own process, not its
workers, so our class stands before them.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_ADDRESS = "JAX_COORDINATOR_ADDRESS"
_SIZE = "JAX_NUM_PROCESSES"
_RANK = "JAX_PROCESS_ID"
# Copied from `protocol.environment`, as in `worker`.
_WORLD_SIZE = "SUPERVISE_WORLD_SIZE"
_OWN_RANK = "SUPERVISE_RANK"


def register(clusters: ModuleType) -> None:
    """Put our class first among those that `clusters`, the module `jax._src.clusters`, asks."""
    base: Any = clusters.ClusterEnv

    class SuperviseCluster(base):  # type: ignore[misc]
        """The group of this worker. All devices that the worker sees are its own: the inherited
        `get_local_process_id` is None, so JAX does not restrict them to one."""

        name = "supervise"

        @classmethod
        def is_env_present(cls) -> bool:
            """Whether the supervisor has set the variables. It sets none for a worker without
            others; then what the user has set must not be taken for a group of ours."""
            env = os.environ
            own = env.get(_WORLD_SIZE), env.get(_OWN_RANK)
            return bool(env.get(_ADDRESS)) and own == (env.get(_SIZE), env.get(_RANK))

        @classmethod
        def get_coordinator_address(cls, timeout_secs: object, override: object = None) -> str:
            """JAX asks only if the variable is gone, which `is_env_present` excludes."""
            return os.environ[_ADDRESS]

        @classmethod
        def get_process_count(cls) -> int:
            return int(os.environ[_SIZE])

        @classmethod
        def get_process_id(cls) -> int:
            return int(os.environ[_RANK])

    known: list[type] = base._cluster_types
    known.remove(SuperviseCluster)  # `ClusterEnv` has appended it
    known.insert(0, SuperviseCluster)
