"""Verifying a checkpoint beside the read of it, so that it costs no time of its own.

A damaged file could crash the reader, and the restart would read it again. So a mark stands in the
step while an unverified read of it goes on, one for each rank: who finds its own verifies first and
reads then. Whatever was read of a damaged step is thrown away. Beside a read CRC-32 must do:
what verifies takes its time from the reader. Before one it is SHA-256.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from supervisor.protocol import removal
from supervisor.protocol.removal import Place
from trainer.bucket_paths import is_in_bucket
from trainer.distributed import process_id
from trainer.integrity import Manifest

MARK = "supervise_reading_rank"

T = TypeVar("T")


def read_verified(
    path: Path, manifest: Manifest, read: Callable[[Path], T], say: Callable[[str], None]
) -> T:
    """What `read` makes of the step in `path`, which is what `manifest` says.

    Raises:
        DamagedError: it is not. Otherwise whatever `read` raises.
    """
    if is_in_bucket(path):  # where to verify costs nothing
        return read_after_verification(path, manifest, read)
    manifest.verify_sizes(path)
    mark = path / f"{MARK}{process_id()}"
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        say(f"the last read of {path} did not complete: it is verified before it is read again")
        result = read_after_verification(path, manifest, read)
    except OSError:  # it cannot be written to
        return read_after_verification(path, manifest, read)
    else:
        result = _read_beside_verification(path, manifest, read)
    removal.file(Place.READING_MARK, mark, below=path.parent)
    return result


def read_after_verification(path: Path, manifest: Manifest, read: Callable[[Path], T]) -> T:
    """The same, one after the other, and without a mark: for a step that is somebody else's."""
    manifest.verify(path)
    return read(path)


def _read_beside_verification(path: Path, manifest: Manifest, read: Callable[[Path], T]) -> T:
    with ThreadPoolExecutor(1, "verification") as thread:
        verifying = thread.submit(manifest.verify_quickly, path)
        try:
            result = read(path)
        finally:
            verifying.result()  # damage takes precedence over what it made of the reader
    return result
