"""Several processes: joining the others, agreeing with them, and stopping at the same step.

`jax.distributed` installs its own SIGTERM handler: it overwrites an earlier one, and a later one
would disable its preemption notice. So where it is initialised, every process asks it at every step
boundary whether to stop, and all get "yes" at the same one.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax._src.distributed import global_state
from jax.experimental import multihost_utils

_SHUTDOWN_TIMEOUT = 10  # seconds; jax waits 5 minutes for processes that are gone
_PATIENCE = 60.0
_CONNECT_INTERVAL = 0.005
"""Seconds between two attempts to connect."""
_NOTHING = -1
_TOLD_WITHIN = 1200.0
"""Seconds that Orbax, too, waits for the other processes in a save."""


def initialize(environ: Mapping[str, str] = os.environ) -> None:
    """Join the processes of `JAX_COORDINATOR_ADDRESS`; does nothing if it is not set.

    JAX reads the address itself, but takes process count and process id only from schedulers that
    it knows, so we pass them.
    """
    if not is_one_of_several(environ):
        return
    address = environ["JAX_COORDINATOR_ADDRESS"]
    if not is_first(environ):
        wait_for(address)
    jax.distributed.initialize(
        address,
        num_processes=int(environ.get("JAX_NUM_PROCESSES", "1")),
        process_id=process_id(environ),
        cluster_detection_method="deactivate",
        shutdown_timeout_seconds=_SHUTDOWN_TIMEOUT,
    )


def wait_for(address: str) -> None:
    """Wait until the first process listens at `address`. A process that connects too early waits
    for gRPC's first backoff, a second, and all others for it. The wait is bounded: after it, jax
    tries by itself and reports the error."""
    host, _, port = address.rpartition(":")
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        try:
            socket.create_connection((host, int(port)), _PATIENCE).close()
        except OSError:
            time.sleep(_CONNECT_INTERVAL)
        else:
            return


def is_one_of_several(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is one of several, so that `initialize` must come before the backend."""
    return bool(environ.get("JAX_COORDINATOR_ADDRESS"))


def process_id(environ: Mapping[str, str] = os.environ) -> int:
    """Return this process's index among all; works before jax is initialised."""
    return int(environ.get("JAX_PROCESS_ID", "0"))


def is_first(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this is process 0, which does what only one process may do."""
    return not is_one_of_several(environ) or process_id(environ) == 0


def preemption_notice() -> Callable[[], bool] | None:
    """Return a function that tells whether all processes stop at this step boundary; every process
    must call it equally often. None: this process is the only one.

    jax answers yes for one number only: one above the highest that any process had asked about when
    the notice came. So calls are counted, and nobody else may ask: see `saving.CheckpointManager`.
    """
    if not jax.distributed.is_initialized():
        return None
    numbers = itertools.count(1)
    return lambda: multihost_utils.reached_preemption_sync_point(next(numbers))


def all_agree_on(number: int | None) -> bool:
    """Whether all processes pass the same number, and none passes None. A collective: call it in
    all processes."""
    if jax.process_count() == 1:
        return number is not None
    numbers = multihost_utils.process_allgather(np.int32(_NOTHING if number is None else number))
    return number is not None and bool((numbers == number).all())


def broadcast_from_first(number: int | None) -> int | None:
    """Return the number that process 0 passes. A collective: call it in all processes."""
    if not jax.distributed.is_initialized() or jax.process_count() == 1:
        return number
    own = np.int32(_NOTHING if number is None else number)
    told = int(multihost_utils.broadcast_one_to_all(own))
    return None if told == _NOTHING else told


def array_from_first(array: Any) -> Any:
    """Return the array of numpy that process 0 passes; the others pass one of the same shape and
    type. A collective: call it in all processes."""
    if not jax.distributed.is_initialized() or jax.process_count() == 1:
        return array
    return np.asarray(multihost_utils.broadcast_one_to_all(array))


def told_by_all(key: str, text: str | None, timeout: float | None) -> dict[int, str]:
    """Wait, at most `timeout` seconds, until all processes have called this with the same `key`,
    which is used once; returns what each of them tells, without those that tell nothing. It uses no
    device: any thread may call it."""
    client = global_state.client
    if client is None:
        return {} if text is None else {process_id(): text}
    if text is not None:
        client.key_value_set(f"{key}/{process_id()}", text)
    client.wait_at_barrier(key, int(1000 * (timeout or _TOLD_WITHIN)))
    told = client.key_value_dir_get(f"{key}/")
    return {int(name.rpartition("/")[2]): line for name, line in told}


def shut_down() -> None:
    """Wait for the other processes, and disconnect from them: process 0 runs the service that they
    all use."""
    if jax.distributed.is_initialized():
        jax.distributed.shutdown()
