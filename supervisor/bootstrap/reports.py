"""Reports what a process below a shell writes, where the bootstrap is not on the command line.

`below_shell.sitecustomize` calls this in every Python process of such a command. Nothing else of
the bootstrap is set up there: see docs/adr/0103-programs-below-a-shell-report-what-they-write.md.
"""

from __future__ import annotations

import os
import sys

from .import_watch import ImportWatch
from .written import OurFrames, WrittenPaths, say


def report_written_paths(ours: str) -> None:
    """Report from now on what this process writes that may be a checkpoint, if it has inherited
    the progress pipe. `ours` is the bootstrap's directory."""
    if not say(b""):
        return
    pid = os.getpid()
    paths = WrittenPaths(say, lambda: os.getpid() == pid, only_new=True)
    sys.addaudithook(paths)
    paths.watch_native_writers(ImportWatch().expect, OurFrames(ours))
