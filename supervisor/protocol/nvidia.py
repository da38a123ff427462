"""Whether this host shows an NVIDIA GPU at all.

JAX looks for the same files (`hardware_utils.has_visible_nvidia_gpu`, jax 0.10.2) and skips CUDA
where none is there. With `JAX_PLATFORMS=cuda` nothing is left then, and it ends with a bare
AssertionError, which tells nobody what is missing.
"""

from __future__ import annotations

from pathlib import Path

FILES = ("nvidia0", "nvidiactl", "dxg")


def missing(folder: Path = Path("/dev")) -> str | None:
    """What a person should know where no GPU is visible; None: there may be one."""
    if any((folder / name).exists() for name in FILES):
        return None
    there = ", ".join(str(folder / name) for name in FILES)
    return (
        f"no NVIDIA GPU is visible on this host (none of {there} is there): install the driver, or "
        "have the container see the GPU (docker run --gpus all)"
    )
