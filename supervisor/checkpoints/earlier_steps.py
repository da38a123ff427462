"""The steps that were in a directory before the job began: another program may have saved them.

Only what this job saved is verified, and moved if it is damaged. The folder may be shared with a
program that writes its own steps there, or hold a base model, and no step says who saved it. So the
first keeper of a directory records what was committed before its attempt began. What comes later
counts as the job's, and so does a step of before that is committed again under its name.

Two programs that save at the same time under names of the same form cannot be told apart. Where the
forms differ (`a_100`, `b_100`), nothing tells which is the job's, and nothing is verified.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote_from_bytes

from supervisor.checkpoints.step_manifest import write_durably
from supervisor.protocol.committed import committing_files
from supervisor.protocol.reading import UnreadableError, parse_object, read

_FILE = "earlier_steps"
"""In the folder of the manifests of a directory. It has no suffix, as no manifest has."""
_MAX_BYTES = 64 << 20

Commit = list[list[object]]
"""Name, inode and time of each file that commits a step."""
EarlierSteps = Mapping[str, Commit]
"""The commit of each step of before, by its name, quoted as in a URL."""


def note_earlier(folder: Path, steps: Iterable[Path], began: float, *, below: Path) -> EarlierSteps:
    """Returns the steps of before, of which `folder` has the record; where there is none yet, those
    of `steps` that were committed before the time `began` are recorded.

    Raises:
        OSError: it cannot be read or written now.
    """
    known = read_earlier(folder, below=below)
    if known is not None:
        return known
    found = {_quoted(step.name): commit for step in steps if (commit := _commit_of(step, began))}
    write_durably(folder / _FILE, json.dumps({"steps": found}).encode(), below=below)
    return found


def read_earlier(folder: Path, *, below: Path) -> EarlierSteps | None:
    """Returns the steps of before; None: there is no record of them.

    Raises:
        OSError: it cannot be read now.
    """
    try:
        found = parse_object(read(folder / _FILE, _MAX_BYTES, below=below), folder / _FILE)["steps"]
    except (FileNotFoundError, NotADirectoryError, UnreadableError, KeyError):
        return None
    return found if isinstance(found, dict) else None


def is_earlier(step: Path, earlier: EarlierSteps) -> bool:
    """True if `step` is in the folder as it was before the job began.

    Raises:
        OSError: it cannot be read now.
    """
    recorded = earlier.get(_quoted(step.name))
    return recorded is not None and recorded == _commit_of(step)


def form_of(name: str) -> str:
    """Returns the form of a step's name: the same for all steps of one program."""
    return re.sub(r"\d+", "0", name)


def _commit_of(step: Path, before: float | None = None) -> Commit | None:
    """Returns the commit of `step`; None: it has none, or it is not from before the time
    `before`."""
    found: Commit = []
    for name in committing_files(step.name):
        with suppress(FileNotFoundError, NotADirectoryError):
            status = os.lstat(step / name)
            if before is not None and status.st_ctime >= before:
                return None
            found.append([name, status.st_ino, status.st_mtime_ns])
    return found or None


def _quoted(name: str) -> str:
    return quote_from_bytes(os.fsencode(name))
