"""The two places for a lease, a bucket and a file; how each lets only one of several writers win.

* In a bucket the store refuses a write that does not replace the expected version. So exactly one
  supervisor wins, whenever each of them writes. A supervisor that has lost the lease can never
  write it again, and a write that was under way for long fails too.
* A shared file system only has to replace a file. To take the lease over, a supervisor writes it,
  waits for `settle` seconds, and reads it back. If two write within that time, the later one wins.
  A supervisor that is delayed by more than `settle` between its last read and its write wins later;
  the earlier one notices at its next renewal. On one host `flock`, where it works, prevents this.
"""

from __future__ import annotations

import errno
import hashlib
import time
from contextlib import suppress

from supervisor.ports import ConflictError, Objects, Storage, StoredObject
from supervisor.protocol import removal
from supervisor.protocol.reading import UnreadableError
from supervisor.protocol.removal import Place

LEASE = "lease.json"
MAX_LEASE = 64 << 10
"""Bytes; a lease has a few hundred."""
UNREADABLE = b'{"token": "unreadable"}'
"""The content that stands for a lease that is no regular file, or is far too large."""


class LeaseFile:
    """A lease in a file."""

    def __init__(self, storage: Storage, settle: float) -> None:
        """`settle`: seconds between writing over another's lease and reading it back."""
        self._storage = storage
        self._settle = settle
        self._own: str | None = None

    def read(self) -> StoredObject:
        """See `lease.LeasePlace`."""
        try:
            data = self._storage.read(LEASE, MAX_LEASE)
        except FileNotFoundError:
            data = b""
        except UnreadableError:  # no living owner wrote this: it never changes, so it is replaced
            data = UNREADABLE
        return StoredObject(data, hashlib.sha256(data).hexdigest() if data else "")

    def write(self, data: bytes, expected: str) -> str:
        """See `lease.LeasePlace`. A write over another's version must last `settle` seconds."""
        self._expect(expected)
        self._storage.replace(LEASE, data)
        version = hashlib.sha256(data).hexdigest()
        if expected != self._own:
            time.sleep(self._settle)
            self._expect(version)
        self._own = version
        return version

    def _expect(self, version: str) -> None:
        if self.read().version != version:
            raise ConflictError(errno.ESTALE, "somebody else has written it", LEASE)


class LeaseObject:
    """A lease in a bucket."""

    def __init__(self, objects: Objects) -> None:
        """`objects` should answer within `renew` seconds: the next look waits for the answer."""
        self._objects = objects
        self._is_proven = False

    def read(self) -> StoredObject:
        """See `lease.LeasePlace`."""
        try:
            return self._objects.read(LEASE, MAX_LEASE)
        except FileNotFoundError:
            return StoredObject(b"", "")

    def write(self, data: bytes, expected: str) -> str:
        """See `lease.LeasePlace`.

        Raises:
            OSError: as `ports.Objects`; also if the store ignores preconditions, so that it cannot
                keep two supervisors apart.
        """
        version = self._objects.write(LEASE, data, expected=expected)
        if not self._is_proven:
            self._prove(data, expected)
        return version

    def _prove(self, data: bytes, replaced: str) -> None:
        """Check that the store refuses to replace the version `replaced`, which is gone by now.

        Some S3-compatible stores accept any write.
        """
        try:
            self._objects.write(LEASE, data, expected=replaced)
        except ConflictError:
            self._is_proven = True
        else:
            if not replaced:  # nothing of ours stays in a store that we refuse
                with suppress(OSError):
                    removal.remove_objects(Place.LEASE, [LEASE], self._objects.delete)
            text = "the store ignores preconditions, so it cannot keep two supervisors apart"
            raise OSError(errno.ENOTSUP, f"{text}: use another store", LEASE)
