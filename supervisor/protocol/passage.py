"""Ways into folders that somebody else can write to, which no link and no mount leads away from.

Each folder is opened by its own name in the one above it, and what was opened is what is worked
with. All that is removed (`protocol.removal`) is reached so.
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
    """What is there is not provably ours, and stays; the text says why."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(errno.EPERM, f"is left as it is: {why}", str(path))

    def __str__(self) -> str:
        return f"{self.filename} {self.strerror}"


@contextmanager
def passage(path: Path, root: int, names: Collection[str]) -> Iterator[int]:
    """The folder below the open one `root` that is reached by `names`, each a folder itself."""
    here = os.dup(root)
    try:
        for name in names:
            above, here = here, _enter(path, here, name, _PASSAGE)
            os.close(above)
        yield here
    finally:
        os.close(here)


def _enter(path: Path, folder: int, name: str, flags: int) -> int:
    """Open the folder `name`, which is on the same mount as the one it is in."""
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
def entered(path: Path, folder: int) -> Iterator[int]:
    """The tree `path`, in the open `folder`: from here on its name does not matter."""
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
    """What an open folder is mounted by: its device, and the mount's number where /proc has it,
    which tells bind mounts of one device apart."""
    try:
        lines = Path(f"/proc/self/fdinfo/{descriptor}").read_bytes().splitlines()
    except OSError:
        lines = []
    number = next((line for line in lines if line.startswith(b"mnt_id:")), b"")
    return os.fstat(descriptor).st_dev, number


def read(path: Path, here: int, prefix: str, depth: int) -> Iterator[tuple[str, bool]]:
    """All that is in the open folder `here`, whose path from the top of the tree is `prefix`, by
    that path, and whether it is a folder.

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
                yield from read(path, inner, whole, depth + 1)
            finally:
                os.close(inner)
        elif stat.S_ISREG(mode):
            yield whole, False
        else:
            raise NotOursError(path, f"{whole!r} in it is {kind(mode)}")


def kind(mode: int) -> str:
    """What has that mode, in words."""
    kinds = {
        stat.S_IFLNK: "a link",
        stat.S_IFDIR: "a folder",
        stat.S_IFREG: "a file",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "a device")
