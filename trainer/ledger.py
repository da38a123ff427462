"""The ledger of a job: which steps in a directory of checkpoints it began, and which it committed.

A folder named `40` may be anybody's: an older run's, a copy in progress, a year of results. So the
step is recorded here durably before its save begins, and after the commit the time of the commit,
which Orbax also stores in the step's metadata. A step that is not in the ledger is never removed
and does not count for `keep`. The same holds for a step whose commit time is not the ledger's.

Each job has its own ledger in the directory, named by the job's id. Trainers that are run by hand
have no id: all of them in one directory count as one job.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from threading import Lock
from typing import Any

from supervisor.protocol import environment, removal
from supervisor.protocol.committed import committed_at
from supervisor.protocol.reading import UnreadableError, parse_object
from trainer import bucket_paths
from trainer.retries import Retries
from trainer.step_files import files_in

_BY_HAND = "by-hand"
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MAX_WARNED = 1000
FOREIGN = "foreign"
"""The folder to which we move things that are not this job's and have a name that a save needs."""


@dataclass
class Entries:
    """The content of a ledger."""

    saving: int | None = None
    """The step whose save has begun, and is not known to be committed."""
    loss: float | None = None
    """The validation loss of that step; None: it was not validated."""
    committed: dict[int, int] = field(default_factory=dict)
    """Time of commit by step (ns since the epoch, from its metadata), without evicted ones."""
    evicting: set[str] = field(default_factory=set)
    """Names of folders whose removal has begun."""
    warned: set[str] = field(default_factory=set)
    """Names of things that are not this job's, of which a person has already been told."""
    pinned: int | None = None
    """The step that the last attempt with an exception or NaN restored or saved last: it is kept,
    so that the failure can be replayed. None: there was no such attempt."""
    checked: int | None = None
    """The last step at which a check for silent corruption passed, or at which such checks began:
    what was saved until then is trusted. None: there are no checks."""
    rolled_back: int | None = None
    """What `checked` was when a check failed: the steps above it are not trusted. None: no check
    failed, or training has gone on from there to another commit."""
    losses: dict[int, float] = field(default_factory=dict)
    """Validation loss by step, of those in `committed` that were validated; all are numbers."""

    def forget(self, step: int) -> None:
        """Forget that `step` was committed, and its loss."""
        self.committed.pop(step, None)
        self.losses.pop(step, None)


class Ledger:
    """The ledger of one job in `directory`, which exists. One process at a time uses it."""

    def __init__(
        self,
        directory: Path,
        environ: Mapping[str, str] = os.environ,
        retries: Retries = Retries(),  # noqa: B008  # it is frozen
    ) -> None:
        """Choose the ledger of this job; nothing is read yet."""
        job = environ.get(environment.JOB, _BY_HAND)
        if not _ID.fullmatch(job):
            raise ValueError(f"{environment.JOB}={job!r} is not a valid job id")
        self._directory = directory
        self._name = f"supervise_ledger_{job}.json"
        self._lock = Lock()
        self._retries = retries
        self._goes_on = False
        """Whether the save that is going on began after the job was rolled back."""
        self.entries = Entries()

    def load(self) -> str | None:
        """Read the ledger. Returns None, or a message why it cannot be used: then no step in the
        directory is known to be this job's.

        Raises:
            OSError: it cannot be read now.
        """
        self.entries = Entries()
        try:
            data = self._retries.run(f"the read of {self._name}", self._read)
            self.entries = _parsed(data, self._name)
        except FileNotFoundError:
            return None
        except UnreadableError as error:
            unknown = f"all steps in {self._directory} count as another job's: none is removed"
            if bucket_paths.is_in_bucket(self._directory):
                return f"{error}; {unknown}"
            path = self._directory / self._name
            moved = removal.set_aside(path, FOREIGN, below=self._directory)
            return f"{error}. It was moved to {moved}; {unknown}"
        return None

    @contextmanager
    def change(self) -> Iterator[Entries]:
        """Context manager to change the entries; they are durable when it ends.

        Raises:
            OSError: they cannot be written.
        """
        with self._lock:
            yield self.entries
            self._retries.run(f"the write of {self._name}", self._write)

    def _read(self) -> bytes:
        return files_in(self._directory).read(self._name)

    def _write(self) -> None:
        files_in(self._directory).replace(self._name, _encoded(self.entries))

    def begin(self, step: int, loss: float | None) -> None:
        """Record that the save of `step` begins, and its validation loss: a kill just after the
        commit must not lose it. Errors as `change`."""
        self._goes_on = self.entries.rolled_back is not None
        with self.change() as entries:
            entries.saving, entries.loss = step, loss
            entries.forget(step)

    def mark_committed(self, step: int) -> None:
        """Record that the save of `step` is over, its time of commit, and its validation loss;
        errors as `change`."""
        at = committed_at(self._directory / f"{step}")
        with self.change() as entries:
            loss, entries.saving, entries.loss = entries.loss, None, None
            if self._goes_on:
                entries.rolled_back = None
            if at is not None:
                entries.committed[step] = at
                if loss is not None and isfinite(loss):
                    entries.losses[step] = loss

    def pin(self, step: int) -> None:
        """Record that `step` is kept until another one is pinned; errors as `change`."""
        if self.entries.pinned != step:
            with self.change() as entries:
                entries.pinned = step

    def check_passed(self, step: int | None) -> None:
        """Record that a check of `step` passed, or that checks begin there; None: that there are
        none any more. Errors as `change`."""
        if self.entries.checked != step:
            with self.change() as entries:
                entries.checked = step

    def roll_back(self) -> None:
        """Record that no step is trusted that was saved after the last check that passed; errors as
        `change`."""
        with self.change() as entries:
            entries.rolled_back = entries.checked or 0

    def rate(self, step: int, loss: float) -> None:
        """Record the validation loss of `step`, which was validated after its commit; errors as
        `change`."""
        if step in self.entries.committed and isfinite(loss):
            with self.change() as entries:
                entries.losses[step] = loss

    def unrate(self, step: int) -> None:
        """Forget the validation loss of `step`, which is not used any more; errors as `change`."""
        if step in self.entries.losses:
            with self.change() as entries:
                entries.losses.pop(step)

    def owns(self, step: int, path: Path) -> bool:
        """Whether the committed step in `path` is the one that this job committed.

        Raises:
            OSError: its metadata cannot be read now.
        """
        at = self.entries.committed.get(step)
        return at is not None and at == committed_at(path)

    def may_own(self, step: int, path: Path) -> bool:
        """Return what `owns` returns, for a step that may be damaged: metadata without a time
        counts as a match.

        Raises:
            OSError: its metadata cannot be read now.
        """
        at = self.entries.committed.get(step)
        return at is not None and committed_at(path) in (at, None)


def _parsed(data: bytes, name: str) -> Entries:
    body = parse_object(data, name)
    try:
        saving = body["saving"]
        return Entries(
            None if saving is None else int(saving),
            None if body.get("loss") is None else float(body["loss"]),
            {int(step): int(at) for step, at in body["committed"].items()},
            {str(one) for one in body["evicting"]},
            {str(one) for one in body["told"]},
            None if body.get("pinned") is None else int(body["pinned"]),
            None if body.get("checked") is None else int(body["checked"]),
            None if body.get("rolled_back") is None else int(body["rolled_back"]),
            {int(step): float(loss) for step, loss in body.get("losses", {}).items()},
        )
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UnreadableError(name, f"is not a ledger ({type(error).__name__})") from None


def _encoded(entries: Entries) -> bytes:
    body: dict[str, Any] = {
        "saving": entries.saving,
        "loss": entries.loss,
        "committed": {str(step): at for step, at in sorted(entries.committed.items())},
        "evicting": sorted(entries.evicting),
        "told": sorted(entries.warned)[:_MAX_WARNED],
        "pinned": entries.pinned,
        "checked": entries.checked,
        "rolled_back": entries.rolled_back,
        "losses": {str(step): loss for step, loss in sorted(entries.losses.items())},
    }
    return json.dumps(body, indent=1).encode() + b"\n"
