"""Decides who raised an error: the user's own code, a library that computes, or an I/O library.

The same word means opposite things in them. "invalid" in the user's own code is a check that fails
again; in a library that reads from a network it is as often a cut connection. So rules may require
a speaker, and only an error that the user's own code raised can be certain by its type alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache

from supervisor.diagnosis.ownership import is_generated, is_own, is_surely_own

_INSTALLED = re.compile(r"(?:site|dist)-packages/(.+)")
_STANDARD = re.compile(r"/lib(?:64)?/(?:python|pypy)3[^/]*/(.+)")


class Speaker(StrEnum):
    """Who raised an error."""

    OWN = "own"
    """The user's own code."""
    IO = "io"
    """A library that talks to a network, a store, a service or another process."""
    LIBRARY = "library"
    """Any other library, and Python itself."""
    UNKNOWN = "unknown"
    """It is not known who raised it."""


ANYBODY = tuple(Speaker)
NOT_IO = (Speaker.OWN, Speaker.LIBRARY, Speaker.UNKNOWN)

_PACKAGES = {
    "HTTP and sockets": "aiohttp anyio ftplib h11 h2 http httpcore httplib2 httpx poplib pycurl "
    "requests smtplib socket ssl tornado urllib urllib3 websocket websockets xmlrpc zmq",
    "stores": "adlfs aiobotocore aistore azure boto boto3 botocore cloudpathlib fsspec gcsfs gslib "
    "hdfs minio obstore oci ocifs oss2 s3fs s3transfer smart_open snakebite tensorstore",
    "hubs and trackers": "clearml comet_ml dvc hf_transfer hf_xet huggingface_hub kaggle mlflow "
    "modelscope neptune swanlab wandb",
    "clouds, clusters and other machines": "asyncssh confluent_kafka consul distributed docker "
    "etcd3 fabric google googleapiclient grpc kafka kazoo kubernetes kubernetes_asyncio paramiko "
    "pika pynvml pysftp ray scp thrift",
    "databases": "MySQLdb aiosqlite asyncpg cassandra clickhouse_driver elastic_transport "
    "elasticsearch mariadb mysql opensearchpy psycopg psycopg2 pymongo pymysql redis snowflake "
    "sqlalchemy sqlite3",
}
TALKERS = frozenset(name for names in _PACKAGES.values() for name in names.split())
"""I/O libraries: packages and standard modules that talk to a network or another process."""
CARRIERS = frozenset([*_PACKAGES["HTTP and sockets"].split(), "grpc", "aiobotocore"])
"""I/O libraries that carry the messages of the other ones."""
STORES = frozenset([*_PACKAGES["stores"].split(), "google"])
_NO_IO_MODULES = ("google.protobuf", "ray.exceptions.RayTaskError")
"""Parts of them that do no I/O: a message format, and the error of a task, whoever raised it."""
_FRAMEWORKS = frozenset({"ray", "distributed", "mlflow"})
"""I/O libraries that also run work: errors of other types than theirs, raised in their files, come
from that work or its setup."""


@lru_cache(maxsize=1024)
def speaker(kind: str, raised_in: str, bases: tuple[str, ...] = ()) -> Speaker:
    """Returns who raised an error of type `kind` with these `bases`, in the file at the path
    `raised_in` ("": not known).

    A type of an I/O library counts as an error of that library wherever it was raised: programs
    raise such errors again, and derive their own from them.
    """
    if any(map(_is_io_type, (kind, *bases))) or _is_io_file(raised_in):
        return Speaker.IO
    if not raised_in or is_generated(raised_in):
        return Speaker.UNKNOWN
    return Speaker.OWN if is_surely_own(raised_in) else Speaker.LIBRARY


def raiser(paths: Sequence[str]) -> str:
    """Returns the file that an error comes from; `paths` are its traceback's, outermost first.

    It is the file of the I/O library that called the innermost file, if there is one: an answer
    that an I/O library asked for and could not read (as JSON, for example) is its error. The search
    ends at the innermost file of the user's own code. Otherwise it is the innermost file; "": there
    are no paths.
    """
    for path in reversed(paths):
        if is_own(path):
            break
        if _is_io_file(path):
            return path
    return paths[-1] if paths else ""


def _is_io_type(kind: str) -> bool:
    module, dot, _ = kind.partition(".")
    return bool(dot) and module in TALKERS and not kind.startswith(_NO_IO_MODULES)


def _is_io_file(path: str) -> bool:
    """True if a file belongs to an I/O library that runs no work (see `_FRAMEWORKS`)."""
    return package(path) in TALKERS - _FRAMEWORKS and not _module(path).startswith(_NO_IO_MODULES)


def package(path: str) -> str:
    """Returns the installed package, or the standard module, of a file; empty: it has none."""
    return _module(path).partition(".")[0]


def _module(path: str) -> str:
    found = _INSTALLED.search(path) or _STANDARD.search(path)
    return (found[1] if found else "").replace("/", ".").removesuffix(".py")
