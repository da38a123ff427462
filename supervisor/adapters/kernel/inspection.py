"""Inspects a process from outside, such as a worker that hangs and may not be able to answer."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

import psutil

from supervisor.files.writing import opened
from supervisor.host import tree
from supervisor.ports import ProcessStarter


def dump_native_stacks(starter: ProcessStarter, pid: int, path: Path) -> int | None:
    """Start py-spy to write the Python and native stacks of `pid` to `path`.

    Returns at once a pidfd of py-spy for the caller to close; None if py-spy is not installed, so
    that nothing is written. py-spy is a process of the job: if it takes too long, it is killed
    together with the worker.

    Raises:
        OSError: `path` cannot be opened, or py-spy cannot be started.
    """
    tool = shutil.which("py-spy", path=sysconfig.get_path("scripts")) or shutil.which("py-spy")
    if tool is None:
        return None
    with opened(path, new=True) as file:
        argv = [tool, "dump", "--native", "--full-filenames", "--pid", str(pid)]
        return starter.start(argv, os.environ, file.fileno(), file.fileno()).pidfd


def cpu_seconds(pid: int) -> float:
    """Returns the CPU seconds of a process, its descendants, and their children that have ended."""
    below = [child for child, _ in tree.descendants(pid, frozenset())]
    return sum(map(_cpu_seconds, (pid, *below)))


def _cpu_seconds(pid: int) -> float:
    try:
        used = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(used.user + used.system + used.children_user + used.children_system)


def describe_process(pid: int) -> str:
    """Returns psutil's word for a process's state (`running`, `disk-sleep`, ...), or `gone`."""
    try:
        return str(psutil.Process(pid).status())
    except psutil.NoSuchProcess:
        return "gone"
