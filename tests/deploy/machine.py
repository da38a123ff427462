"""A real systemd as PID 1 of namespaces of its own, over the files of this host."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BOOT = Path(__file__).with_name("boot.sh")
SEEN = (str(BOOT.parents[2]), sys.prefix, sys.base_prefix)
"""Folders of this host that the machine must see, wherever they are mounted."""

USER = "supervise"
"""As whom jobs run there, as deploy/sysusers has it."""
NAMESPACES = ("--mount", "--pid", "--fork", "--uts", "--ipc", "--net", "--cgroup")
FROM_SHELL = ("setpriv", "--pdeathsig", "KILL", "sh", "-c")
_POLL = 0.05


class CannotBootError(Exception):
    """This host does not let us; the text says why."""


class Machine:
    """A booted machine. `shared` is a directory that it sees as /shared."""

    def __init__(self, pid: int, shared: Path) -> None:
        self._pid = pid
        self.shared = shared

    def run(self, *argv: str, check: bool = True) -> str:
        """Run a command in the machine; what it prints."""
        enter = ("nsenter", "-t", str(self._pid), "-p", "-m", "-u", "-i", "-n", "-r", "-w/")
        done = subprocess.run(
            [*enter, *argv], capture_output=True, text=True, timeout=30, check=False
        )
        assert done.returncode == 0 or not check, f"{argv}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def add_user(self) -> None:
        """Make the user of the jobs, who can read what the machine sees and write to /shared."""
        self.run("useradd", "--system", "--user-group", "--home-dir", "/var/lib/supervise", USER)
        self.run("chown", USER, "/shared")
        folders = {parent for seen in SEEN for parent in Path(seen).parents}
        self.run("chmod", "a+x", *map(str, folders))  # of the overlay: the host's stay as they are

    def show(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.run("systemctl", "show", "--value", "-p", name, unit)

    def wait_for(self, unit: str, timeout: float = 20.0, **properties: str) -> None:
        """Wait until these properties of a unit contain these texts."""
        end = time.monotonic() + timeout
        while True:
            seen = {name: self.show(unit, name) for name in properties}
            if all(text in seen[name] for name, text in properties.items()):
                return
            assert time.monotonic() < end, f"{seen}\n{self.log(unit)}"
            time.sleep(_POLL)

    def log(self, unit: str) -> str:
        """What a unit has said."""
        return self.run("journalctl", "--no-pager", "-o", "cat", "-u", unit, check=False)


@contextmanager
def booted(directory: Path) -> Iterator[Machine]:
    """A machine that lives as long as the context, and leaves nothing behind.

    Raises:
        CannotBootError: it cannot be had here.
    """
    if os.geteuid() != 0:
        raise CannotBootError("needs root")
    for program in ("unshare", "nsenter", "setpriv", "/lib/systemd/systemd"):
        if shutil.which(program) is None:
            raise CannotBootError(f"there is no {program}")
    folders = [directory / name for name in ("root", "scratch", "shared")]
    for folder in folders:
        folder.mkdir(parents=True)
    cgroup = _cgroup_root() / f"supervise-test-{os.getpid()}"
    try:
        cgroup.mkdir()
    except OSError as error:
        raise CannotBootError(f"no cgroup: {error}") from error
    log = directory / "boot.log"
    # The shell enters the cgroup before unshare makes it the root of the cgroup namespace.
    enter = f'echo $$ > {cgroup}/cgroup.procs && exec unshare --kill-child "$@"'
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*FROM_SHELL, enter, "sh", *NAMESPACES, "sh", str(BOOT), *map(str, folders), *SEEN],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield _wait_until_up(process, folders[2], log)
    finally:
        process.kill()
        process.wait()
        _remove_cgroup(cgroup)


def _wait_until_up(process: subprocess.Popen[bytes], shared: Path, log: Path) -> Machine:
    end = time.monotonic() + 20.0
    while time.monotonic() < end and process.poll() is None:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        if children:
            machine = Machine(int(children[0]), shared)
            state = machine.run("systemctl", "is-active", "basic.target", check=False)
            if state == "active":
                return machine
        time.sleep(_POLL)
    raise CannotBootError(f"systemd does not come up here: {log.read_text().strip() or 'timeout'}")


def _cgroup_root() -> Path:
    root = Path("/sys/fs/cgroup")
    return root / "systemd" if (root / "systemd").is_dir() else root


def _remove_cgroup(cgroup: Path) -> None:
    """The kernel empties it a moment after the last process is gone."""
    for folder in sorted((p for p in cgroup.rglob("*") if p.is_dir()), reverse=True):
        _rmdir(folder)
    _rmdir(cgroup)


def _rmdir(folder: Path) -> None:
    end = time.monotonic() + 10.0
    while True:
        try:
            folder.rmdir()
        except OSError:
            assert time.monotonic() < end, f"{folder} is still in use"
            time.sleep(_POLL)
        else:
            return
