"""What the first host tells the others through model_dir: the token of its cluster, and the end."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from supervisor.adapters.stores.bucket import bucket
from supervisor.adapters.stores.storage import make_durably
from supervisor.ports import Objects
from supervisor.protocol import removal
from supervisor.protocol.location import Uri
from supervisor.protocol.reading import parse_object, read

NAME = "gang.json"
_VERSION = 1
_LIMIT = 4096
_START_AGAIN = 60.0
"""Seconds in which the first host starts again, where it does."""
_ANSWER_WITHIN = 15.0
"""Seconds that a bucket has for an answer."""


@dataclass(frozen=True, slots=True)
class GangRecord:
    """One start of the first host."""

    launch: str
    """See `which_host.Place`."""
    token: str
    """The token of the Ray cluster; also tells this start from every other one."""
    code: int | None = None
    """The exit code of `supervise run`; None: it has not ended."""


class EndWatch:
    """Finds the end of the job in what the first host tells. What is there at the start may be left
    of an earlier start."""

    def __init__(self, launch: str, again: Collection[int]) -> None:
        """`again`: the exit codes after which the first host is to start again."""
        self._launch = launch
        self._again = again
        self._is_first = True
        self._old: GangRecord | None = None

    def look(self, found: GangRecord | None, waited: float) -> int | None:
        """Returns the exit code with which the job has ended, by the record `found`, after `waited`
        seconds; None: it has not ended."""
        if self._is_first:
            self._is_first, self._old = False, found
        if found is None or found.code is None:
            return None
        if found == self._old and not self._counts(found, found.code, waited):
            return None
        return found.code

    def _counts(self, old: GangRecord, code: int, waited: float) -> bool:
        """Whether the end that was there at the start is that of this job: this host was started
        late. After some codes the first host is to start again, which it may do just now."""
        is_this_launch = self._launch != "" and self._launch == old.launch
        return is_this_launch and (code not in self._again or waited > _START_AGAIN)


class RecordPlace:
    """The record in model_dir."""

    def __init__(self, model_dir: Path | Uri) -> None:
        """`model_dir` is shared by all hosts."""
        self._model_dir = model_dir
        self._objects: Objects | None = None
        if isinstance(model_dir, Uri):
            self._objects = bucket(model_dir, _ANSWER_WITHIN)
        self.interval = 1.0 if self._objects is None else 10.0
        """Seconds between two looks at it."""

    def read(self) -> GangRecord | None:
        """Returns what the first host has told last; None: nothing yet.

        Raises:
            OSError, ValueError: it cannot be read now, or is no record.
        """
        try:
            if isinstance(self._model_dir, Uri):
                assert self._objects is not None
                data = self._objects.read(NAME, _LIMIT).data
            else:
                data = read(self._model_dir / NAME, _LIMIT, below=self._model_dir)
        except FileNotFoundError:
            return None
        return _parsed(parse_object(data, NAME))

    def write(self, record: GangRecord) -> None:
        """Tell the other hosts. Nobody else may read it in a directory: it has the token.

        Raises:
            OSError: it cannot be written.
        """
        data = json.dumps({"v": _VERSION, **asdict(record)}).encode()
        if isinstance(self._model_dir, Uri):
            assert self._objects is not None
            self._objects.write(NAME, data)
            return
        make_durably(self._model_dir)
        temporary = self._model_dir / f".{NAME}.tmp"
        with removal.create_temporary(temporary, below=self._model_dir, mode=0o600) as file:
            file.write(data)
        temporary.replace(self._model_dir / NAME)


def _parsed(value: dict[str, Any]) -> GangRecord:
    launch, token, code = value.get("launch"), value.get("token"), value.get("code")
    if value.get("v") != _VERSION or not isinstance(launch, str) or not isinstance(token, str):
        raise ValueError(f"{NAME} in model_dir is of another version of supervise, or damaged")
    if code is not None and (type(code) is not int or code not in range(256)):
        raise ValueError(f"{NAME} in model_dir has {code!r} in place of an exit code")
    return GangRecord(launch, token, code)
