"""Paths in a bucket, as Orbax takes them, and what the store knows of its objects.

Orbax writes and reads arrays by tensorstore. It writes everything else by etils and gcsfs, and so
does this module. gcsfs would cache listings for ever, and it does not see what tensorstore writes:
so its cache of listings is turned off here.
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
"""The variable that makes gcsfs ask for the type of a bucket. It is set to `false`: the question
needs credentials and a permission of its own, and without an answer gcsfs asks again before each
request. Nothing here needs the type."""


@dataclass(frozen=True, slots=True)
class Object:
    """The size of an object in bytes, and the MD5 of its content as hex. The store computed the MD5
    when the object was uploaded; None: the store does not know it, as for composed objects."""

    size: int
    md5: str | None


def path_of(place: Path | Uri) -> Path:
    """Return `place` as a path. In a bucket it is a path of etils: that has the methods of `Path`
    that are used here, but is not an instance of `Path`."""
    if isinstance(place, Path):
        return place
    os.environ.setdefault(_PLAIN_GCSFS, "false")
    import fsspec

    fsspec.config.conf.setdefault("gcs", {})["use_listings_cache"] = False
    return cast(Path, epath.Path(str(place)))


def is_in_bucket(path: Path) -> bool:
    """Whether `path` was made from a `Uri`."""
    return not isinstance(path, Path)


def objects(path: Path) -> dict[str, Object]:
    """Return all objects below `path`, by their name relative to it. Takes one request per thousand
    objects."""
    top = f"{str(path).partition('://')[2]}/"
    found: Mapping[str, Any] = _store().find(str(path), detail=True)
    return {
        name.removeprefix(top): Object(int(one["size"]), _hexadecimal(one.get("md5Hash")))
        for name, one in found.items()
        if not name.endswith("/")  # an empty object that a browser shows as a folder
    }


def read(place: Path | Uri, limit: int = SMALL) -> bytes:
    """Return the content of an object of at most `limit` bytes.

    Raises:
        FileNotFoundError: there is no such object.
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
    """Create an object with the content `data`.

    Raises:
        FileExistsError: there is an object with this name already.
    """
    _store().pipe_file(str(path), data, mode="create")


def remove(place: Place, directory: Path, names: Collection[str]) -> None:
    """Remove the objects `names`, given by their path below `directory`, the directory of
    checkpoints. It is no error if one is missing.

    Raises:
        NotOursError: one of the names is not allowed for `place`.
        Exception: whatever the store's client raises.
    """
    removal.remove_objects(place, names, lambda name: _delete(str(directory / name)))


def _delete(uri: str) -> None:
    with suppress(FileNotFoundError):
        _store().rm_file(uri)


def _store(scheme: str = "gs") -> Any:
    import fsspec  # slow to import, so only where there is a bucket

    if scheme == "s3":
        return fsspec.filesystem("s3", use_listings_cache=False)
    return fsspec.filesystem("gcs", finalize_on_close=True)  # the instance that etils has made


def _hexadecimal(digest: str | None) -> str | None:
    return base64.b64decode(digest).hex() if digest else None
