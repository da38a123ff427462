"""The fence: a trainer whose supervisor no longer owns the job commits nothing.

A host that was frozen, or cut off from its storage, may wake up after another host has taken over
the job. Its trainer may then be in the middle of a save. So before the trainer commits a save or
evicts a step, it reads who owns the job: the owner's token must be the one that the trainer was
started with. If it cannot read the token, it does not commit.

A short moment remains between this check and the commit (a rename, or one request): no file system
and no object store can commit one thing on the condition of another.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from supervisor.protocol import environment, reading
from supervisor.protocol.location import Uri
from trainer import bucket_paths

_PATIENCE = 2.0
"""Seconds to wait for a file that was deleted: the supervisor that owns the job restores it within
one."""
_PAUSE = 0.05


class FencedError(RuntimeError):
    """This trainer may not commit: the job has another owner, or the owner cannot be read."""


@dataclass(frozen=True, slots=True)
class Fence:
    """Asks whether the supervisor that started this trainer still owns the job."""

    token: str
    file: str
    """Where the owner's token is: a path, or the URI of an object."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Fence | None:
        """Return the fence of this trainer; None: it has no owner, for example if it is run by
        hand."""
        token = environ.get(environment.OWNER)
        return None if token is None else cls(token, environ.get(environment.OWNER_FILE, ""))

    def check(self, what: str) -> None:
        """Check that the owner of the job is still ours. `what` names what is about to be done.

        Raises:
            FencedError: the owner is another one, or cannot be read.
        """
        try:
            owner = reading.parse_object(self._read(), self.file).get("token")
        except Exception as error:  # exceptions of stores' clients have no type in common
            raise FencedError(
                f"{what} was not done: cannot read whether this trainer's supervisor still owns "
                f"the job ({type(error).__name__}: {error})"
            ) from error
        if owner != self.token:
            now = "another owner" if owner else "no owner"
            raise FencedError(
                f"{what} was not done: the job has {now} now ({self.file}): the supervisor of this "
                "trainer has lost it"
            )

    def _read(self) -> bytes:
        uri = Uri.parse(self.file)
        if uri is not None:
            return bucket_paths.read(uri)
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                return reading.read(Path(self.file))
            except FileNotFoundError:
                if time.monotonic() > end:
                    raise
                time.sleep(_PAUSE)
