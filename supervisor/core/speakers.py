"""Who raised an error: the user's own code, a library that computes, or one that talks to others.

The same word means opposite things in them. "invalid" in the user's own code is a check that fails
again; in a library that reads from a network it is as often a cut connection. So rules may ask who
speaks, and only what the user's own code raised can be certain by its type alone.
"""

from __future__ import annotations

import re
from enum import StrEnum

from supervisor.core.signature import is_own

_PACKAGE = re.compile(r"(?:site|dist)-packages/(\w+)")

_GENERATED = re.compile(
    r"^<(?!frozen )|/ipykernel_\d+/|^ipython-input|__autograph_generated|torchinductor|/\.triton/"
)
"""Code that was made while the program ran, and cells of a notebook."""
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


class Speaker(StrEnum):
    """Who raised an error."""

    OWN = "own"
    """The user's own code."""
    IO = "io"
    """A library that talks to a network, a store, a service or another process."""
    LIBRARY = "library"
    """Any other library, and Python itself."""


_IO = frozenset(
    {
        "aiobotocore",
        "aiohttp",
        "asyncssh",
        "boto3",
        "botocore",
        "etcd3",
        "fsspec",
        "gcsfs",
        "google",
        "googleapiclient",
        "grpc",
        "hf_transfer",
        "hf_xet",
        "http",
        "httpcore",
        "httplib2",
        "httpx",
        "huggingface_hub",
        "kubernetes",
        "mlflow",
        "neptune",
        "paramiko",
        "psycopg2",
        "pymysql",
        "ray",
        "redis",
        "requests",
        "s3fs",
        "socket",
        "ssl",
        "tensorstore",
        "urllib",
        "urllib3",
        "wandb",
        "websockets",
    }
)
"""Packages and modules of Python's that talk to others."""


def speaker(kind: str, raised_in: str) -> Speaker | None:
    """Who raised an error of the type `kind`, in a file at the path `raised_in` ("": not known).

    A type of an I/O library counts as its word wherever it was raised: such errors are raised
    again. None: nothing tells.
    """
    if _root(kind) in _IO or _package(raised_in) in _IO:
        return Speaker.IO
    if not raised_in or _GENERATED.search(raised_in):
        return None
    return Speaker.OWN if is_own(raised_in) and not _SHARED.search(raised_in) else Speaker.LIBRARY


def _root(kind: str) -> str:
    module, dot, _ = kind.partition(".")
    return module if dot else ""


def _package(path: str) -> str:
    """The package that a file belongs to: of a library, or of Python's own."""
    if found := _PACKAGE.search(path):
        return found[1]
    _, standard, rest = path.partition("/lib/python3.")
    return rest.split("/")[1].removesuffix(".py") if standard and "/" in rest else ""
