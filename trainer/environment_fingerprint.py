"""What decides a compiled program besides the configuration: versions, machine, environment, code.

JAX's own cache has a hash of the program, which JAX can compute only after tracing it. The facts
here are known before anything is traced.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import hashlib
import os
import platform
import sys
from pathlib import Path
from typing import Any

import flax
import jax
import jaxlib.version
import optax

_DECIDING = ("JAX_", "XLA_", "LIBTPU_")
_NOT_DECIDING = (
    "JAX_COMPILATION_CACHE_",
    "JAX_PERSISTENT_CACHE_",
    "JAX_COORDINATOR_ADDRESS",
)
_CPU = (
    "vendor_id",
    "cpu family",
    "model",
    "model name",
    "stepping",
    "flags",
    "Features",
    "CPU part",
)


def environment_facts() -> list[Any]:
    """Return everything besides the configuration that decides a compiled program."""
    devices = jax.devices()
    client: Any = devices[0].client
    arguments = [argument for argument in sys.argv if argument.startswith("--xla")]
    environ = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_DECIDING) and not name.startswith(_NOT_DECIDING)
    }
    return [
        [
            sys.version,
            jax.__version__,
            jaxlib.version.__version__,
            flax.__version__,
            optax.__version__,
        ],
        [client.platform, client.platform_version],
        [_device(device) for device in devices],
        [jax.process_index(), jax.process_count()],
        _cpu() if client.platform == "cpu" else None,
        [environ, arguments],
        _code(),
    ]


def _device(device: Any) -> list[Any]:
    coordinates = getattr(device, "coords", None)
    return [device.id, device.process_index, device.device_kind, str(coordinates)]


def _cpu() -> list[Any]:
    """Return the CPU features of this host, because XLA compiles for them."""
    features = {}
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        if name.strip() in _CPU:
            features[name.strip()] = value.strip()
    return [platform.machine(), features]


def _code() -> str:
    """Return the digest of all sources of this package."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return digest(
        b"\0".join(part for file in sources for part in (file.name.encode(), file.read_bytes()))
    )


def digest(content: bytes) -> str:
    """Return the SHA-256 of `content` as hex."""
    return hashlib.sha256(content).hexdigest()
