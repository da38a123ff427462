"""Where a job whose model_dir is in an object store keeps what must be a local file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path


def state_folder(uri: str, environ: Mapping[str, str] = os.environ) -> Path:
    """The folder on this host of the job in `uri`: the same for every run of it, wherever it is
    started. It may be deleted between two runs: what is in the bucket is the truth.

    Below `XDG_STATE_HOME`, as the XDG Base Directory Specification has it.
    """
    home = environ.get("XDG_STATE_HOME", "")
    base = Path(home) if home.startswith("/") else Path("~/.local/state").expanduser()
    name = uri.rstrip("/").rpartition("/")[2]
    kept = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)
    return base / "supervise" / f"{kept[:40]}-{hashlib.sha256(uri.encode()).hexdigest()[:12]}"
