"""Describes this machine: only what matters for the checks and may be published."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from contextlib import suppress
from pathlib import Path

from deploy.acceptance.bench import Bench
from supervisor.adapters.platforms import accelerators
from supervisor.config.generations import GENERATIONS
from supervisor.config.topology import SliceShape
from supervisor.protocol.this_machine import GPU_FILES, missing_gpu

_PACKAGES = (
    "supervise-jax",
    "jax",
    "jaxlib",
    "libtpu",
    "jax-cuda12-plugin",
    "jax-cuda13-plugin",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
    "flax",
    "optax",
    "orbax-checkpoint",
)
_SIMULATED = 8
START = 180.0
"""Seconds within which the first process must have initialised the devices."""
_KINDS = {kind: one.name for one in GENERATIONS.values() for kind in one.device_kinds}
REMEDIES = {
    "tpu": "is libtpu installed (docs/how-to/tpu.md), and does nobody else hold the chips?",
    "gpu": "does nvidia-smi list it, and is jax's plugin installed (docs/how-to/gpu.md)?",
    "cpu": "is jax installed (pip install '.[trainer]')?",
}
"""What to check, by platform, if no process can use the devices."""
_SMI = ("name", "driver_version", "memory.total", "compute_mode", "mig.mode.current")
SMI = "nvidia-smi"


def found(wanted: str | None, count: int | None) -> tuple[str, int]:
    """Returns the platform to check and the number of devices; 0: as many as jax finds.

    `wanted` is the platform that a person asked for, `count` the number of devices.

    Raises:
        ValueError: `count` is given, but the devices are not simulated.
    """
    is_gpu = missing_gpu() is None
    chosen = wanted or ("tpu" if accelerators.chips() else "gpu" if is_gpu else "cpu")
    if chosen == "cpu":
        return chosen, count or _SIMULATED
    if count is not None:
        raise ValueError(
            f"--devices {count}: only simulated devices can be any number, and this is for the "
            f"{chosen.upper()}s of this machine: leave it out, or add --platform cpu"
        )
    return chosen, 0


def identify(bench: Bench) -> None:
    """Set `runtime`, `count`, `hardware` and `slice` of `bench`, from what a first process finds.

    Raises:
        CheckFailedError: the process cannot use the devices.
    """
    bench.begin(START)
    up = bench.device("hold").wait_for("up")
    bench.runtime = up["runtime"]
    if bench.platform == "cpu":
        return
    bench.count = bench.count or up["found"]
    kind = up["devices"][0]["kind"]
    bench.hardware = f"{bench.count} x {kind}"
    if kind in _KINDS:
        bench.slice = SliceShape(_KINDS[kind], bench.count)
        bench.hardware = f"{bench.slice.type} ({bench.hardware})"


def facts(bench: Bench, root: Path) -> dict[str, str]:
    """Returns the versions and properties that affect the checks, in the order of the report."""
    known = {"runtime": ""}
    for package in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            known[package] = importlib.metadata.version(package)
    known["commit"] = _commit(root)
    known["python"] = platform.python_version()
    known["kernel"] = f"{platform.system()} {platform.release()} {platform.machine()}"
    known["processors"] = str(os.cpu_count())
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    known["memory"] = f"{pages / 2**30:.0f} GiB"
    known["root"] = "yes" if os.geteuid() == 0 else "no"
    known["device files"] = ", ".join(_device_files()) or "none"
    if bench.platform == "gpu":
        bench.begin(30.0)
        said = bench.said([SMI, f"--query-gpu={','.join(_SMI)}", "--format=csv,noheader"])
        known[SMI] = "; ".join((said or "not there").strip().splitlines())
        bench.end()
    return known


def _commit(root: Path) -> str:
    """Returns the checkout's commit; it ends with `-dirty` if tracked files differ from it."""
    done = subprocess.run(
        ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
        capture_output=True,
        text=True,
        check=False,
        timeout=10,
    )
    return done.stdout.strip() or "unknown"


def _device_files() -> list[str]:
    """Returns the device files of the TPU chips and GPUs, by which their holders are found."""
    others = (Path("/dev", name) for name in GPU_FILES)
    gpus = (path for path in Path("/dev").glob("nvidia*") if accelerators.NVIDIA.match(str(path)))
    return [
        *accelerators.chips(),
        *sorted({str(each) for each in (*gpus, *others) if each.exists()}),
    ]
