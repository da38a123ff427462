"""Resolves the paths of a config on this host, and explains those that lead to nothing."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path


def missing_path_hint(text: str, config: str) -> str:
    """Returns a hint for the message that the path `text` of the file `config` does not exist.

    A relative path is relative to the working directory of `supervise`, as in a shell. Many users
    expect that it is relative to the config. If the file exists there, the hint says so. Empty: the
    path is absolute.
    """
    if text.startswith("~"):
        return f"; ~ is not expanded here: write {Path(text).expanduser()}"
    if text.startswith("$"):
        return "; variables are not expanded here, no shell reads it: write the whole path"
    if Path(text).is_absolute():
        return ""
    beside = Path(config).absolute().parent / text
    told = f"; a relative path begins at the working directory, {Path.cwd()}"
    if os.access(beside, os.F_OK):  # `Path.exists` raises if it has no permission to look
        told += (
            f". There is one beside the config: write {beside}, or run supervise in {beside.parent}"
            if "/" not in text
            else f". There is one beside the config: write {beside}"
        )
    return told


def local_state_directory(uri: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Returns the local folder of a job whose model_dir is `uri`; every run gets the same folder.

    The folder has the files that must be local. It may be deleted between two runs, because the
    bucket is the truth. It is below `XDG_STATE_HOME` (default `~/.local/state`), as the XDG Base
    Directory Specification says.
    """
    home = environ.get("XDG_STATE_HOME", "")
    base = Path(home) if home.startswith("/") else Path("~/.local/state").expanduser()
    name = uri.rstrip("/").rpartition("/")[2]
    kept = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)
    return base / "supervise" / f"{kept[:40]}-{hashlib.sha256(uri.encode()).hexdigest()[:12]}"
