"""Paths in a bucket, as Orbax takes them, and what the store tells of its objects.

Arrays go there and back by tensorstore. All else that Orbax writes goes by etils and gcsfs, and so
does what we add. gcsfs would remember listings for ever, and not hear of what tensorstore writes:
here it is told to remember none.
"""

# mypy: allow-untyped-calls, disable-error-code="attr-defined"
from __future__ import annotations

import base64
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from etils import epath

from supervisor.protocol import removal
from supervisor.protocol.location import Uri
from supervisor.protocol.reading import SMALL, UnreadableError
from supervisor.protocol.removal import Place

_PLAIN_GCSFS = "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"
"""Otherwise it asks of what kind the bucket is, which takes credentials and a permission of its
own, and where it gets no answer it asks again for each request. Nothing here needs to know."""


@dataclass(frozen=True, slots=True)
class Object:
    """An object's size in bytes, and the MD5 of its content as the store computed it when it came
    (hexadecimal; None: the store does not know it, as of objects that were put together)."""

    size: int
    md5: str | None


def path_of(place: Path | Uri) -> Path:
    """`place` as a path. In a bucket it is one of etils, which does what is asked of a `Path`
    here, and is none."""
    if isinstance(place, Path):
        return place
    os.environ.setdefault(_PLAIN_GCSFS, "false")
    import fsspec

    fsspec.config.conf.setdefault("gcs", {})["use_listings_cache"] = False
    return cast(Path, epath.Path(str(place)))


def is_in_bucket(path: Path) -> bool:
    """Whether `path` came from a `Uri`."""
    return not isinstance(path, Path)


def objects(path: Path) -> dict[str, Object]:
    """All objects below `path`, by their name relative to it; one request for each thousand."""
    top = f"{str(path).partition('://')[2]}/"
    found: Mapping[str, Any] = _store().find(str(path), detail=True)
    return {
        name.removeprefix(top): Object(int(one["size"]), _hexadecimal(one.get("md5Hash")))
        for name, one in found.items()
        if not name.endswith("/")  # what a browser shows as a folder
    }


def read(place: Path | Uri, limit: int = SMALL) -> bytes:
    """All that an object of at most `limit` bytes holds.

    Raises:
        FileNotFoundError: there is none.
        UnreadableError: it is too large.
        Exception: whatever the store's client raises.
    """
    uri = str(place)
    files = _store(uri.partition("://")[0])
    data: bytes = files.cat_file(uri, start=0, end=limit + 1)
    if len(data) > limit:
        raise UnreadableError(uri, f"has more than {limit} bytes")
    return data


def create(path: Path, data: bytes) -> None:
    """Make an object that is not there yet.

    Raises:
        FileExistsError: it is there.
    """
    _store().pipe_file(str(path), data, mode="create")


def remove(place: Place, directory: Path, names: Collection[str]) -> None:
    """Remove these objects, named by their path below `directory`, the checkpoints'.

    Raises:
        NotOursError: one has no name of that place.
        Exception: whatever the store's client raises.
    """
    removal.remote(place, names, lambda name: _delete(str(directory / name)))


def _delete(uri: str) -> None:
    with suppress(FileNotFoundError):
        _store().rm_file(uri)


def _store(scheme: str = "gs") -> Any:
    import fsspec  # only where there is a bucket: it takes its time

    if scheme == "s3":
        return fsspec.filesystem("s3", use_listings_cache=False)
    return fsspec.filesystem("gcs", finalize_on_close=True)  # the one that etils made


def _hexadecimal(digest: str | None) -> str | None:
    return base64.b64decode(digest).hex() if digest else None
