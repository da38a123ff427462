"""Which devices this process sees, where that is decided only after jax was imported."""

# mypy: allow-untyped-calls
from __future__ import annotations

import os

import jax

_CPU_DEVICES = "JAX_NUM_CPU_DEVICES"
_SETTING = "jax_num_cpu_devices"


def adopt() -> None:
    """See the devices that the environment says now: jax has read it when it was imported, the
    runtimes of accelerators have not yet. Before any backend is initialised."""
    count = int(os.environ.get(_CPU_DEVICES, "-1"))
    if getattr(jax.config, _SETTING) != count:
        jax.config.update(_SETTING, count)
