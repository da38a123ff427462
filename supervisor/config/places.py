"""Where the paths of a config lead on this host."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path


def where_it_is(text: str, config: str) -> str:
    """Return what to add to a complaint that the path `text` of the file `config` leads to nothing.

    A relative path is against the working directory of `supervise`, as everywhere in a shell. Many
    expect it to be against the config: where the file is there, the complaint says so.
    """
    if text.startswith("~"):
        return f"; ~ is not expanded here: write {Path(text).expanduser()}"
    if text.startswith("$"):
        return "; variables are not expanded here, no shell reads it: write the whole path"
    if Path(text).is_absolute():
        return ""
    beside = Path(config).absolute().parent / text
    told = f"; a relative path is against the working directory, {Path.cwd()}"
    if os.access(beside, os.F_OK):  # `Path.exists` raises where it may not look
        told += (
            f". There is one beside the config: write {beside}, or run supervise in {beside.parent}"
            if "/" not in text
            else f". There is one beside the config: write {beside}"
        )
    return told


def state_folder(uri: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder on this host of the job in `uri`, a bucket: the same for every run of it.

    It holds what must be a local file, and may be deleted between two runs: what is in the bucket
    is the truth.

    Below `XDG_STATE_HOME`, as the XDG Base Directory Specification has it.
    """
    home = environ.get("XDG_STATE_HOME", "")
    base = Path(home) if home.startswith("/") else Path("~/.local/state").expanduser()
    name = uri.rstrip("/").rpartition("/")[2]
    kept = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)
    return base / "supervise" / f"{kept[:40]}-{hashlib.sha256(uri.encode()).hexdigest()[:12]}"
