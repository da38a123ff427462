"""Facts about this machine that worker and supervisor must find out in the same way.

**File systems.** On most file systems a rename moves a whole directory atomically, as POSIX
demands. A mounted bucket copies a directory file by file, and other hosts may see some files late.

**Links.** A link may be there and yet not be readable: /proc/1/fd/1 of another user, or one on a
mount whose server is gone.

**NVIDIA GPUs.** JAX looks for the same files (`hardware_utils.has_visible_nvidia_gpu`, jax 0.10.2)
and skips CUDA if none of them exists. With `JAX_PLATFORMS=cuda` no backend is left then, and JAX
ends with a bare AssertionError, which does not say what is missing.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

GPU_FILES = ("nvidia0", "nvidiactl", "dxg")
_BUCKETS = {
    f"fuse.{program}"
    for program in (
        *("gcsfuse", "s3fs", "rclone", "goofys", "geesefs", "mountpoint-s3"),
        *("blobfuse", "blobfuse2"),
    )
}


def real_path(path: Path | str) -> Path:
    """Return the absolute path without links; where one of them cannot be read, the absolute path
    as it is named. Never raises an error of the file system."""
    try:
        return Path(os.path.realpath(path))  # Path.resolve raises on a loop of links
    except OSError:
        return Path(path).absolute()


def file_system(directory: Path, mounts: str | None = None) -> str:
    """Return the type of the file system that `directory` is on, or will be on once it is made.

    `mounts` is the content of /proc/self/mountinfo (None: read it now). A plain `fuse` is completed
    by the mount's source: `fuse.mountpoint-s3`.
    """
    if mounts is None:
        mounts = Path("/proc/self/mountinfo").read_text()
    best, kind = -1, ""
    target = real_path(directory)
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        mount = Path(fields.split()[4].encode().decode("unicode_escape"))
        if target.is_relative_to(mount) and len(mount.parts) >= best:  # the last mount is on top
            best = len(mount.parts)
            kind, source = rest.split()[:2]
            kind = f"fuse.{source}" if kind == "fuse" else kind
    return kind


def is_mounted_bucket(kind: str) -> bool:
    """True if a file system of this type is a mounted bucket."""
    return kind in _BUCKETS


@cache
def is_posix(directory: Path) -> bool:
    """True if renaming a directory below `directory` is atomic. The answer is cached: a job's file
    system does not change while it runs."""
    return not is_mounted_bucket(file_system(directory))


def missing_gpu(folder: Path = Path("/dev")) -> str | None:
    """Return a complaint that no GPU is visible; None: there may be one."""
    if any((folder / name).exists() for name in GPU_FILES):
        return None
    there = ", ".join(str(folder / name) for name in GPU_FILES)
    return (
        f"no NVIDIA GPU is visible on this host (none of {there} is there): install the driver, or "
        "have the container see the GPU (docker run --gpus all)"
    )
