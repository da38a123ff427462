"""Checks of what this process, and so a job that it would start, may use, and which signals reach
it."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

from supervisor.config.quantities import size_text
from supervisor.doctor.examination import Finding, note, ok, wrong
from supervisor.host import cgroups
from supervisor.protocol.reading import read

LIMITS, SIGNALS = "limits", "signals"
_FILES_NEEDED, _FILES_USUAL = 256, 1024
"""Open files: what jax and the supervisor need, and what data loaders count on."""
_PROCESSES_NEEDED = 512
"""Processes and threads: jax starts several threads for each core."""
_SPACE_NEEDED, _SPACE_USUAL = 2 << 30, 64 << 30
"""Bytes of address space: jax reserves some GiB, and an accelerator's runtime more."""
_FILE_NEEDED = 1 << 30
"""Bytes: checkpoints have larger files."""
_IN_A_UNIT = "in the shell that starts the job, or {} in its unit"
_SMALL = 64


def limits() -> Iterator[Finding]:
    """Yields the limits of files, processes, address space and the size of a file."""
    yield _files()
    yield _processes()
    found = [*_bytes()]
    yield from found
    if not found:
        yield ok(LIMITS, "address space and size of a file: no limit")


def _files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _FILES_USUAL:
        return ok(LIMITS, f"open files: {_shown(soft)}")
    raised = "unlimited" if hard == resource.RLIM_INFINITY else max(hard, _FILES_USUAL)
    how = f"ulimit -n {raised} {_IN_A_UNIT.format('LimitNOFILE=')}"
    if soft < _FILES_NEEDED:
        return wrong(LIMITS, f"open files: {soft}, and a job needs {_FILES_NEEDED}", how)
    return note(LIMITS, f"open files: {soft}, which may be few for data loaders", how)


def _processes() -> Finding:
    """Returns whether enough processes and threads may be started. The limit of the user does not
    hold for root; that of the cgroup does."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY and soft < _PROCESSES_NEEDED and os.geteuid() != 0:
        text = f"processes and threads of this user: {soft}, and a job needs {_PROCESSES_NEEDED}"
        return wrong(LIMITS, text, f"ulimit -u 4096 {_IN_A_UNIT.format('LimitNPROC=')}")
    left = _left_in_cgroup()
    if left is not None and left < _PROCESSES_NEEDED:
        text = f"processes and threads: the cgroup has room for {left} more"
        how = "raise pids.max: TasksMax= in the unit, --pids-limit of the container"
        return wrong(LIMITS, f"{text}, and a job needs {_PROCESSES_NEEDED}", how)
    return ok(LIMITS, f"processes and threads: {_shown(soft if left is None else left)}")


def _left_in_cgroup() -> int | None:
    """Returns how many processes and threads may be started in our cgroup; None: no limit is
    seen."""
    found = []
    for folder in cgroups.own():
        try:
            most, now = (int(read(Path(folder, f"pids.{n}"), _SMALL)) for n in ("max", "current"))
        except (OSError, ValueError):  # no such controller, or `max`
            continue
        found.append(most - now)
    return min(found, default=None)


def _bytes() -> Iterator[Finding]:
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if space != resource.RLIM_INFINITY and space < _SPACE_USUAL:
        how = f"ulimit -v unlimited {_IN_A_UNIT.format('LimitAS=infinity')}"
        tell = wrong if space < _SPACE_NEEDED else note
        text = f"address space: {size_text(space)}, and jax reserves more than it uses"
        yield tell(LIMITS, text, how)
    size, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if size != resource.RLIM_INFINITY:
        how = f"ulimit -f unlimited {_IN_A_UNIT.format('LimitFSIZE=infinity')}"
        tell = wrong if size < _FILE_NEEDED else note
        yield tell(LIMITS, f"size of a file: {size_text(size)}: larger checkpoints fail", how)


def _shown(limit: int) -> str:
    return "no limit" if limit == resource.RLIM_INFINITY else str(limit)


def signals() -> Iterator[Finding]:
    """Yields which signals do not reach a job that is started as this command was."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGHUP,
        signal.SIGCHLD,
    }
    if blocked:
        names = ", ".join(sorted(signal.Signals(each).name for each in blocked))
        text = f"{names} is blocked by what has started this command: no job would hear it"
        yield wrong(SIGNALS, text, "start it from a shell, or unblock the signals before exec")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield note(
            SIGNALS,
            "SIGINT is ignored, as in the background of a script: Ctrl-C does not stop a job",
            "kill -TERM its supervisor, or supervise stop MODEL_DIR",
        )
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        yield ok(SIGNALS, "SIGHUP is ignored (nohup): a job outlives its terminal")
    elif not blocked:
        yield ok(SIGNALS, "SIGHUP drains a job: under nohup it outlives its terminal")
