"""Words about a path of a config that leads to nothing.

A relative path is against the working directory of `supervise`, as everywhere in a shell. Many
expect it to be against the config: where the file is there, the complaint says so.
"""

from __future__ import annotations

import os
from pathlib import Path


def where_it_is(text: str, config: str) -> str:
    """What to add to a complaint that the path `text` of the file `config` leads to nothing."""
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
