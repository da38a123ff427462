"""Verifies a checkpoint while it is read, so that the restart takes no longer.

A damaged file could crash the reader, and the restart would read it again. So while a rank reads a
step unverified, a mark file of this rank stands in the step. A rank that finds its own mark
verifies first and reads afterwards. Whatever was read of a damaged step is thrown away. During a
read we use CRC-32, because verification takes CPU time from the reader; before a read we use the
digests (SHA-256).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from supervisor.protocol import removal
from supervisor.protocol.messages import NoticeCode
from supervisor.protocol.removal import Place
from trainer.bucket_paths import is_in_bucket
from trainer.checkpoint_steps import step_of
from trainer.distributed import process_id
from trainer.log import Warn
from trainer.manifest import READING_MARK, Manifest

T = TypeVar("T")


def verified_read(path: Path, manifest: Manifest, read: Callable[[Path], T], warn: Warn) -> T:
    """Return what `read` returns for the step in `path`, if the step is as `manifest` says.

    Raises:
        DamagedError: it is not. Otherwise whatever `read` raises.
    """
    if is_in_bucket(path):  # where verification costs nothing
        return verify_then_read(path, manifest, read)
    manifest.verify_sizes(path)
    mark = path / f"{READING_MARK}{process_id()}"
    if os.path.lexists(mark):
        text = f"the last read of {path} did not complete: it is verified before it is read again"
        warn(text, NoticeCode.CHECKPOINT_READ_BROKEN_OFF, step_of(path.name))
        result = verify_then_read(path, manifest, read)
    elif not _is_made(mark):
        return verify_then_read(path, manifest, read)
    else:
        result = _verify_while_reading(path, manifest, read)
    removal.remove_file(Place.READING_MARK, mark, below=path.parent)
    return result


def _is_made(mark: Path) -> bool:
    """Make the mark; returns whether we can write there. No error of a read may come while one of
    this is handled: it would be taken for a consequence of that."""
    try:
        mark.touch(exist_ok=False)
    except OSError:
        return False
    return True


def verify_then_read(path: Path, manifest: Manifest, read: Callable[[Path], T]) -> T:
    """Verify, then read, without a mark: also for a step that belongs to somebody else."""
    manifest.verify(path)
    return read(path)


def _verify_while_reading(path: Path, manifest: Manifest, read: Callable[[Path], T]) -> T:
    with ThreadPoolExecutor(1, "verification") as thread:
        verifying = thread.submit(manifest.verify_quickly, path)
        try:
            result = read(path)
        finally:
            verifying.result()  # the damage matters more than an error that it caused in the reader
    return result
