"""Which GPUs a process sees (`CUDA_VISIBLE_DEVICES`), and how much of their memory XLA takes.

The rules for `CUDA_VISIBLE_DEVICES` are in the CUDA Programming Guide, 5.2.1.1
(docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html). If the
variable is not set, all GPUs are visible; if it is empty, none is. It lists indices, UUIDs (the
beginning of a UUID is enough) and MIG instances. CUDA hides everything after the first invalid
index. A process sees only one MIG instance. The settings of XLA's memory are in jax's
docs/gpu_memory_allocation.rst and `generate_pjrt_gpu_plugin_options` of jaxlib 0.10.2.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from itertools import combinations

CUDA_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"

_MIG = "MIG-"
_GPU = "gpu-"
_NAME = re.compile(r"\d+|GPU-[0-9A-Fa-f-]+|MIG-[0-9A-Za-z/-]+")
_FORMS = (
    "an index such as 0, a UUID such as GPU-8932f937, or a MIG instance such as MIG-GPU-.../1/0"
)


_DEFAULT_SHARE = 0.75
"""The share of a GPU's memory that XLA takes by default."""
_MAX_SHARE_OF_TWO = 0.45
"""The largest share for each of two processes that fit on one GPU with their contexts."""


FRACTIONS = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
"""The variables that set the share: the present name, and the older one. jaxlib 0.10.2 raises
ValueError if both are set."""


def memory_share(environ: Mapping[str, str]) -> float | None:
    """Returns the share of a GPU's memory that XLA takes when a process begins.

    None: XLA takes memory as it needs it.
    """
    allocator = environ.get("XLA_PYTHON_CLIENT_ALLOCATOR", "").lower()
    at_once = environ.get("XLA_PYTHON_CLIENT_PREALLOCATE", "") not in ("false", "False", "0")
    if allocator == "platform" or not at_once:
        return None
    new, old = (environ.get(name, "") for name in FRACTIONS)
    try:
        part = float(new or old or _DEFAULT_SHARE)
    except ValueError:  # jax refuses the value with its own message
        return _DEFAULT_SHARE
    return part if 0 < part < math.inf else _DEFAULT_SHARE  # what XLA does with others is unknown


def two_processes_fit(part: float) -> bool:
    """True if one GPU has room for two processes that each take the share `part` of its memory."""
    return part <= _MAX_SHARE_OF_TWO


def split_names(text: str) -> tuple[str, ...]:
    """Returns the names in `text`, a value of such a variable, without the spaces around them."""
    return tuple(name.strip() for name in text.split(",")) if text.strip() else ()


def _is_same(one: str, other: str) -> bool:
    """True if the texts of two names show that they mean one GPU.

    An index and a UUID may mean one GPU too; their texts do not show it.
    """
    if one.isdecimal() and other.isdecimal():
        return int(one) == int(other)
    short, long = sorted((one.lower(), other.lower()), key=len)
    return short == long or (short.startswith(_GPU) and long.startswith(short))


def visible_gpus_problem(text: str, num_devices: int | None, workers: int) -> str | None:
    """Returns why a job cannot run if `CUDA_VISIBLE_DEVICES` is `text`; None: no reason is known.

    `num_devices` is the number of GPUs of the job (None: as many as it finds).
    """
    return next(_problems(text, num_devices, workers), None)


def _problems(text: str, num_devices: int | None, workers: int) -> Iterator[str]:
    names = split_names(text)
    if not names:
        yield "is empty, which hides every GPU: unset it, or name the GPUs that the job may use"
    for name in names:
        if not _NAME.fullmatch(name):
            yield (
                f"has {name!r}, which names no GPU, and CUDA hides what follows it: give {_FORMS}"
            )
    for one, other in combinations(names, 2):
        if _is_same(one, other):
            named = f"{one} twice" if one == other else f"one GPU twice, as {one} and as {other}"
            yield f"names {named}, and the job would count one GPU as two: name each once"
    if num_devices is None:
        return
    if len(names) < num_devices:
        yield (
            f"shows {len(names)} of the {num_devices} GPUs that init.devices.count asks for "
            f"(value {text!r}): name as many, or lower the count to {len(names)}"
        )
    each = num_devices // workers
    if each > 1 and any(name.startswith(_MIG) for name in names):
        yield (
            f"names MIG instances, of which CUDA shows a process only one, but a worker has {each} "
            f"GPUs: give each worker its own (init.workers: {num_devices}), or use whole GPUs"
        )
