"""The fence: a trainer whose supervisor does not own the job any more commits nothing.

A host that was frozen, or cut off from its storage, may wake up after another host has taken the
job over. Its trainer then has a save under way. Before that save is committed, and before a step is
evicted, the trainer reads who owns the job: the owner's token must be the one that it was started
with. What it cannot read, it does not trust.

Between the answer and the commit there is still a moment, of a rename or one request: no file
system and no object store commits one thing on the condition of another.
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
"""Seconds for a file that was deleted: a supervisor that owns the job restores it within one."""
_PAUSE = 0.05


class FencedError(RuntimeError):
    """This trainer may not commit: the job has another owner, or nobody can tell."""


@dataclass(frozen=True, slots=True)
class Fence:
    """Asks whether the supervisor that started this trainer still owns the job."""

    token: str
    file: str
    """The path, or the URI of the object, that has the owner's token."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Fence | None:
        """None: this trainer has no owner, as where it is run by hand."""
        token = environ.get(environment.OWNER)
        return None if token is None else cls(token, environ.get(environment.OWNER_FILE, ""))

    def check(self, what: str) -> None:
        """See that the job's owner is who it was; `what` is about to be done.

        Raises:
            FencedError: it is not, or cannot be known.
        """
        try:
            owner = reading.parse_object(self._read(), self.file).get("token")
        except Exception as error:  # what a store's client raises has no type in common
            raise FencedError(
                f"{what} was not done: nobody can tell whether this trainer's supervisor still "
                f"owns the job ({type(error).__name__}: {error})"
            ) from error
        if owner != self.token:
            now = "has another owner" if owner else "has no owner"
            raise FencedError(
                f"{what} was not done: the job {now} by now ({self.file}), and this trainer "
                "belongs to a supervisor of the past"
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
