"""One process among several: joining the others, agreeing with them, and stopping at one step.

`jax.distributed` takes SIGTERM for itself: a handler of ours from before is overwritten, and one
from after would silence its preemption notice. So where it is initialised the notice is asked for
at every step boundary, and all processes are told yes at the same one.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Callable, Mapping

import jax
import numpy as np
from jax.experimental import multihost_utils

_SHUTDOWN_TIMEOUT = 10  # seconds; jax waits 5 minutes for processes that are gone
_PATIENCE = 60.0
_KNOCKING = 0.005
"""Seconds from one knock to the next."""
_NOTHING = -1


def initialize(environ: Mapping[str, str] = os.environ) -> None:
    """Join the processes that `JAX_COORDINATOR_ADDRESS` brings together; alone without it.

    JAX reads the address itself, but how many processes there are and which of them this is only
    from the schedulers it knows.
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
    """Wait until the first process listens there: whoever comes before is put off by gRPC for a
    second (its first backoff), and all others wait for it. Not for ever: who gives up, and how, is
    for jax to say."""
    host, _, port = address.rpartition(":")
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        try:
            socket.create_connection((host, int(port)), _PATIENCE).close()
        except OSError:
            time.sleep(_KNOCKING)
        else:
            return


def is_one_of_several(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether `initialize` must come before the backend."""
    return bool(environ.get("JAX_COORDINATOR_ADDRESS"))


def process_id(environ: Mapping[str, str] = os.environ) -> int:
    """Which of them this process is; known before jax is initialised."""
    return int(environ.get("JAX_PROCESS_ID", "0"))


def is_first(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process does what only one may do."""
    return not is_one_of_several(environ) or process_id(environ) == 0


def preemption_notice() -> Callable[[], bool] | None:
    """What to ask whether all processes stop here, as often in each; None where this one is alone.

    jax answers yes at one number only: one more than the highest that any process had asked with
    when the notice came. So questions are counted, and nobody else may ask: see
    `checkpoint.Manager`.
    """
    if not jax.distributed.is_initialized():
        return None
    numbers = itertools.count(1)
    return lambda: multihost_utils.reached_preemption_sync_point(next(numbers))


def all_have(number: int | None) -> bool:
    """Whether this and every other process has a number, and all have the same. Ask in all."""
    if jax.process_count() == 1:
        return number is not None
    numbers = multihost_utils.process_allgather(np.int32(_NOTHING if number is None else number))
    return number is not None and bool((numbers == number).all())


def of_first(number: int | None) -> int | None:
    """The number that the first process has, whatever the others have. Ask in all."""
    if not jax.distributed.is_initialized() or jax.process_count() == 1:
        return number
    own = np.int32(_NOTHING if number is None else number)
    told = int(multihost_utils.broadcast_one_to_all(own))
    return None if told == _NOTHING else told


def leave() -> None:
    """Wait for the others at the end of the work: the first process serves them all."""
    if jax.distributed.is_initialized():
        jax.distributed.shutdown()
