"""Check of a model_dir in a bucket: whether a supervisor can read, write and own a place there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

from supervisor.adapters.stores.bucket import bucket
from supervisor.doctor.examination import Finding, ok, wrong
from supervisor.model_dir_check import probe_name
from supervisor.ports import ConflictError, Objects, UnavailableError
from supervisor.protocol import removal
from supervisor.protocol.location import Uri
from supervisor.protocol.removal import Place

BUCKET = "bucket"
PATIENCE = 6.0
"""Seconds that the bucket gets to answer a request. `run` waits longer; here a person waits."""
BOUND = 5 * PATIENCE
"""Seconds for the whole check: a store that answers at all is quick, one that does not ends it."""


def place_in_bucket(place: Uri) -> Iterator[Finding]:
    """Yields whether `place` can be listed, written and read, and whether the store refuses to
    replace another version than the one that is named."""
    try:
        objects = bucket(place, PATIENCE)
    except ImportError as error:
        yield wrong(BUCKET, str(error))
        return
    try:
        objects.list("")
    except UnavailableError as error:
        text = f"{place} cannot be reached: {_why(error, place)}"
        yield wrong(BUCKET, text, f"check the network, and {_endpoint(place)}")
        return
    except OSError as error:
        yield wrong(BUCKET, f"{place} cannot be used: {_why(error, place)}")
        return
    yield ok(BUCKET, f"{place} answers")
    yield from _written(objects, place)


def _written(objects: Objects, place: Uri) -> Iterator[Finding]:
    name = probe_name()
    try:
        version = objects.write(name, b"supervise doctor\n", expected="")
        found = objects.read(name)
        is_same = (found.data, found.version) == (b"supervise doctor\n", version)
        is_kept = _refuses(objects, name)
    except OSError as error:
        text = f"{place} can be listed, but no object can be written there and read: "
        yield wrong(BUCKET, f"{text}{_why(error, place)}")
        return
    finally:
        with suppress(OSError):
            removal.remove_objects(Place.PROBE, [name], objects.delete)
    if not is_same:
        text = f"{place} gives back something else, or another generation, than was written"
        yield wrong(BUCKET, text, "use another store, or one that is no cache")
    if not is_kept:
        text = f"{place} ignores preconditions, so it cannot keep two supervisors apart"
        yield wrong(BUCKET, text, "use another store")
    if is_same and is_kept:
        yield ok(BUCKET, "an object can be written, read with its generation, and deleted")


def _refuses(objects: Objects, name: str) -> bool:
    """Returns whether the store refuses to make an object that is there."""
    try:
        objects.write(name, b"twice\n", expected="")
    except ConflictError:
        return True
    return False


def _why(error: OSError, place: Uri) -> str:
    return str(error.strerror or error).removeprefix(f"{place}: ")


def _endpoint(place: Uri) -> str:
    """Returns what decides where requests go."""
    name = {"gs": "STORAGE_EMULATOR_HOST", "s3": "AWS_ENDPOINT_URL"}[place.scheme]
    text = os.environ.get(name)
    return f"{name} (now {text})" if text else f"the credentials; {name} is not set"
