"""Object stores on this host. Each is a process of its own that ends with the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from supervisor.protocol.location import Uri

BUCKET = "bucket"
PAGE = 50
"""Most objects in one page of a listing. The real services list a thousand, or at times fewer."""


@dataclass(frozen=True)
class Emulator:
    """An object store with one empty bucket."""

    scheme: str
    url: str

    @property
    def root(self) -> Uri:
        """The bucket. Tests that share an emulator each use a path of their own below it."""
        return Uri(self.scheme, BUCKET)

    @property
    def env(self) -> Mapping[str, str]:
        """Variables that lead every client to this emulator, as the clients' documentation names
        them."""
        if self.scheme == "gs":
            return {
                "STORAGE_EMULATOR_HOST": self.url,
                "TENSORSTORE_GCS_HTTP_URL": self.url,
                "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # else gcsfs asks Google about it
            }
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
        }


@contextmanager
def gcs_emulator() -> Iterator[Emulator]:
    """Start an emulator of Google Cloud Storage."""
    with _started("gcs_emulator.py") as url:
        yield Emulator("gs", url)


@contextmanager
def s3_emulator() -> Iterator[Emulator]:
    """Start an emulator of Amazon S3."""
    with _started("s3_emulator.py") as url:
        yield Emulator("s3", url)


@contextmanager
def _started(program: str) -> Iterator[str]:
    command = [sys.executable, str(Path(__file__).with_name(program)), BUCKET, str(PAGE)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "MOTO_S3_DEFAULT_MAX_KEYS": str(PAGE)},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert port, f"{program} did not start"
        yield f"http://127.0.0.1:{port}"
        process.stdin.close()
