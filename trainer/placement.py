"""Which devices this process sees, where that is decided only after jax was imported."""

# mypy: allow-untyped-calls
from __future__ import annotations

import os
from collections.abc import Mapping

import jax
from jax.extend import backend

from supervisor.protocol.environment import NUM_CPU_DEVICES, VISIBLE_DEVICES

_SETTING = "jax_num_cpu_devices"


def visible(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What an environment says of the devices."""
    return {name: environ[name] for name in VISIBLE_DEVICES if name in environ}


def adopt() -> str | None:
    """See the devices that the environment says now; returns why that cannot be.

    The number of simulated ones JAX has read when it was imported. Where their backend is
    initialised already it is given up, with all that was put on it or compiled for it. The runtime
    of an accelerator reads its variables once, when it is initialised: there it is too late then.
    """
    try:
        count = int(os.environ.get(NUM_CPU_DEVICES, "-1"))
        if getattr(jax.config, _SETTING) != count:
            backend.clear_backends()
            jax.config.update(_SETTING, count)
    except Exception as error:  # whatever jax makes of it, a new process can have any devices
        return f"{type(error).__name__}: {error}"
    return None
