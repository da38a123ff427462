"""Where a lease is kept, and how surely of several writers only one replaces what was there.

* In a bucket the store itself refuses a write that does not replace what was expected: of several
  takers one is the owner, at whatever moment each of them writes, and who has lost the lease can
  never write it again, nor can a write that was long under way.
* No shared file system is asked for more than replacing a file: taking over is writing, waiting for
  `settle` seconds, and reading back. Of two that write in that time the later one wins. One that is
  delayed by more than `settle` between its last look and its write wins later, and is found at the
  earlier one's next renewal. Where `flock` works it rules this out on one host.
"""

from __future__ import annotations

import errno
import hashlib
import time

from supervisor.ports import ConflictError, Objects, Storage, Stored
from supervisor.protocol.reading import UnreadableError

LEASE = "lease.json"
MAX_LEASE = 64 << 10
"""Bytes: it has some hundred."""
UNREADABLE = b'{"token": "unreadable"}'
"""What is read of a lease that is no file, or far too large."""


class LeaseFile:
    """A lease in a file."""

    def __init__(self, storage: Storage, settle: float) -> None:
        """`settle` in seconds."""
        self._storage = storage
        self._settle = settle
        self._own: str | None = None

    def read(self) -> Stored:
        """See `lease.LeasePlace`."""
        try:
            data = self._storage.read(LEASE, MAX_LEASE)
        except FileNotFoundError:
            data = b""
        except UnreadableError:  # which is no living owner's: it never changes, and is replaced
            data = UNREADABLE
        return Stored(data, hashlib.sha256(data).hexdigest() if data else "")

    def write(self, data: bytes, expected: str) -> str:
        """See `lease.LeasePlace`. What another wrote is replaced only once it stays replaced."""
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
        """`objects` had better answer within a `renew`: the next look waits for it."""
        self._objects = objects
        self._is_proven = False

    def read(self) -> Stored:
        """See `lease.LeasePlace`."""
        try:
            return self._objects.read(LEASE, MAX_LEASE)
        except FileNotFoundError:
            return Stored(b"", "")

    def write(self, data: bytes, expected: str) -> str:
        """See `lease.LeasePlace`.

        Raises:
            OSError: also where the store heeds no preconditions: it could not keep two apart.
        """
        version = self._objects.write(LEASE, data, expected=expected)
        if not self._is_proven:
            self._prove(data, expected)
        return version

    def _prove(self, data: bytes, replaced: str) -> None:
        """Some that speak S3 take any write. What this one replaced cannot be there any more."""
        try:
            self._objects.write(LEASE, data, expected=replaced)
        except ConflictError:
            self._is_proven = True
        else:
            text = "it heeds no preconditions, so it cannot keep two supervisors apart"
            raise OSError(errno.ENOTSUP, f"{text}: use another store", LEASE)
