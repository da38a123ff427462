"""Whose code a file is: the user's own, a library's, or made while the program ran."""

from __future__ import annotations

import re

_FOREIGN = re.compile(
    r"(?:site|dist)-packages|/lib(?:64)?/(?:python|pypy)3|python3\d+\.zip/|\.egg/|^<|"
    r"(?:^|/)python/ray/|\.(?:pyx|pxd|pxi|so|c|cc|cpp|h)$"
)
_GENERATED = re.compile(
    r"^<(?!frozen )|/ipykernel_\d+/|^ipython-input|__autograph_generated|torchinductor|/\.triton/"
)
_SHARED = re.compile(
    r"\.runfiles/|(?:^|/)third_party/|/google3/|/\.cache/|/nix/store/|/runtime_resources/|"
    r"^/(?:opt|usr(?!/src/app/)|snap)/|"
    r"(?:^|/)(?:jax|jaxlib|flax|optax|orbax|chex|haiku|equinox|grain|tensorstore|tensorflow|keras|"
    r"torch|numpy|scipy|pandas|pyarrow|ray|maxtext|MaxText|t5x|seqio|levanter|haliax|axlearn|praxis|"
    r"paxml|tunix|transformers|datasets|accelerate|lightning|megatron|fsspec|gcsfs|s3fs|wandb|"
    r"google|grpc|requests|urllib3)/"
)
"""Where libraries lie as often as the user's own code does: in an image's folders, in the files of
a build tool, and as checkouts of well-known projects."""


def is_own(path: str) -> bool:
    """Whether a file may be the user's own code: it is not known to be a library's."""
    return _FOREIGN.search(path) is None


def is_surely_own(path: str) -> bool:
    """Whether a file is the user's own code, and nothing speaks against it."""
    return is_own(path) and not is_generated(path) and _SHARED.search(path) is None


def is_generated(path: str) -> bool:
    """Whether it is code that was made while the program ran, or a cell of a notebook."""
    return _GENERATED.search(path) is not None
