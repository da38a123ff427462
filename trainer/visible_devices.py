"""Sets which devices this process sees, where that is decided only after jax was imported."""

# mypy: allow-untyped-calls
from __future__ import annotations

import os
from collections.abc import Mapping

import jax
from jax.extend import backend

from supervisor.protocol.environment import NUM_CPU_DEVICES, VISIBLE_DEVICES

_SETTING = "jax_num_cpu_devices"


def device_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables of an environment that select devices."""
    return {name: environ[name] for name in VISIBLE_DEVICES if name in environ}


def use_visible_devices() -> str | None:
    """Make this process see the devices that the environment selects now. Returns None, or a text
    that says why it cannot.

    JAX read the number of simulated devices when it was imported. If their backend is initialised
    already, it is given up, with all arrays and compiled programs on it. The runtime of an
    accelerator reads its variables only once, when it is initialised: after that they have no
    effect.
    """
    try:
        count = int(os.environ.get(NUM_CPU_DEVICES, "-1"))
        if getattr(jax.config, _SETTING) != count:
            backend.clear_backends()
            jax.config.update(_SETTING, count)
    except Exception as error:  # a new process can still get these devices
        return f"{type(error).__name__}: {error}"
    return None
