"""Opens folders that others can write to, without following a link or crossing a mount point.

Each folder is opened by its name, relative to the descriptor of its parent. All work is done on the
descriptor. `protocol.removal` reaches everything that it removes in this way.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PASSAGE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DEEPEST = 32  # levels of folders in a tree: Orbax makes four


class NotOursError(PermissionError):
    """The file or folder is not provably ours, so it stays; the text says why."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(errno.EPERM, f"is left as it is: {why}", str(path))

    def __str__(self) -> str:
        return f"{self.filename} {self.strerror}"


@contextmanager
def opened_path(path: Path, root: int, names: Collection[str]) -> Iterator[int]:
    """Open the folder that `names`, one for each level, lead to from the open folder `root`; yields
    its descriptor."""
    here = os.dup(root)
    try:
        for name in names:
            above, here = here, _enter(path, here, name, _PASSAGE)
            os.close(above)
        yield here
    finally:
        os.close(here)


def _enter(path: Path, folder: int, name: str, flags: int) -> int:
    """Open the folder `name` in the open `folder`; it must be on the same mount."""
    try:
        inner = os.open(name, flags, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP or _is_link(name, folder):
            raise NotOursError(path, f"{name!r} is a link") from error
        raise OSError(error.errno, error.strerror, str(path)) from error
    if _mount(inner) != _mount(folder):
        os.close(inner)
        raise NotOursError(path, f"{name!r} is a mount point")
    return inner


@contextmanager
def opened_folder(path: Path, folder: int) -> Iterator[int]:
    """Open the top of the tree `path` in the open `folder`; yields its descriptor, which a later
    rename does not change."""
    here = _enter(path, folder, path.name, _DIRECTORY)
    try:
        yield here
    finally:
        os.close(here)


def _is_link(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _mount(descriptor: int) -> tuple[int, bytes]:
    """Identify the mount of an open folder by its device and, where /proc has it, the mount's id,
    which differs between bind mounts of one device."""
    try:
        lines = Path(f"/proc/self/fdinfo/{descriptor}").read_bytes().splitlines()
    except OSError:
        lines = []
    number = next((line for line in lines if line.startswith(b"mnt_id:")), b"")
    return os.fstat(descriptor).st_dev, number


def list_tree(path: Path, here: int, prefix: str, depth: int) -> Iterator[tuple[str, bool]]:
    """Yield every file and folder below the open folder `here` as (path, whether it is a folder).
    Paths are relative to the top of the tree, where `here` has the path `prefix`.

    Raises:
        NotOursError: something in it is neither a regular file nor a folder of the same mount.
    """
    if depth > _DEEPEST:
        raise NotOursError(path, "it is nested too deeply")
    for name in os.listdir(here):
        mode = os.stat(name, dir_fd=here, follow_symlinks=False).st_mode
        whole = f"{prefix}/{name}" if prefix else name
        if stat.S_ISDIR(mode):
            inner = _enter(path, here, name, _DIRECTORY)
            try:
                yield whole, True
                yield from list_tree(path, inner, whole, depth + 1)
            finally:
                os.close(inner)
        elif stat.S_ISREG(mode):
            yield whole, False
        else:
            raise NotOursError(path, f"{whole!r} in it is {kind(mode)}")


def kind(mode: int) -> str:
    """Return in words what kind of file has the mode `mode`."""
    kinds = {
        stat.S_IFLNK: "a link",
        stat.S_IFDIR: "a folder",
        stat.S_IFREG: "a file",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "a device")
