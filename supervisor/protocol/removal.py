"""Removes files, folders and objects, each with a proof that it is ours. No other code removes any.

A supervisor works in folders that people use too. A name that looks like one of ours is no proof:
`checkpoints/2023` may be a folder of results, `attempts/1` a link to another disk. So everything is
removed here, which an architecture test checks. Every `Place` says what is removed, where, and why
it cannot be anybody else's. A caller names a place, and a folder that it vouches for. Below that
folder:

* No link is followed. Each folder on the way is opened by its own name, and an entry is removed by
  its name in the open folder, so that nobody can put a link in between.
* No mount point is crossed, not even a bind mount of the same disk.
* A whole tree is read before any part of it is removed. If it has a link, a FIFO, a device, a
  socket or an unexpected file, it is not what we wrote, and all of it stays.

A refusal is an `OSError` that says why. To set something aside means to rename it to a free name on
the same disk. One exception: the standard library's `TemporaryDirectory` removes what it made
itself, under a random name, for this user alone.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from itertools import count
from pathlib import Path
from typing import BinaryIO, TypeVar

from .passage import NotOursError as NotOursError
from .passage import kind, list_tree, opened_folder, opened_path

Name = TypeVar("Name", str, int)

_ROOT = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class _Removable:
    """One kind of thing that is removed.

    `name` matches the whole path below the folder that the caller vouches for (or the name of an
    object); `proof` says why something with that name and of that kind is ours.
    """

    what: str
    name: str
    proof: str


class Place(Enum):
    """All kinds of things that are ever removed: files and objects first, then trees."""

    TEMPORARY = _Removable(
        "a temporary file that a failed or killed write left beside its target",
        r"(?:[^/]+/)*\.[^/]+\.tmp",
        "nobody else names a hidden `.tmp` after one of our files; it never holds anything whole",
    )
    PROBE = _Removable(
        "the file that shows that model_dir can be written",
        r"\.writable\.[0-9a-f]{32}",
        "made a moment ago with O_EXCL, under a random name",
    )
    REQUEST = _Removable(
        "a request of `supervise quarantine clear`, `stop`, `restart` or `save` that the "
        "supervisor has read",
        r"(?:requests/)?[^/]+\.(?:clear-quarantine|stop|restart|save)\.json",
        "it is addressed to the supervisor, which has read it and keeps what it asks for",
    )
    OUTPUT = _Removable(
        "the output of an attempt that has ended, for a full disk or a limit; or of earlier "
        "standbys",
        r"[^/]+_restartable/attempts/(?:\d+/rank\d+(?:\.first|\.previous)?|standby(?:-[^/]+)?)\.log",
        "the supervisor that holds the lock wrote it, in a folder that it made",
    )
    RECORD = _Removable(
        "a record (stacks, failure, modules) of an attempt that has ended, for a limit",
        r"[^/]+_restartable/attempts/\d+/rank\d+\.(?:(?:native-)?stacks\.txt|(?:failure|modules)\.json)",
        "the supervisor that holds the lock, or its worker, wrote it, in a folder that it made",
    )
    PREFETCH_RECORD = _Removable(
        "the failure record of an earlier prefetch of the same rung",
        r"[^/]+_restartable/attempts/prefetch\d+/rank0\.failure\.json",
        "the supervisor that holds the lock told the compiling process to write it there",
    )
    COMPILED = _Removable(
        "an entry of the compilation cache that is damaged, incomplete, or unused for longest",
        r"(?:live/|compile_cache/)?[^/]+-cache",
        "JAX ends the names of its entries so, and the cache's folder is the job's own",
    )
    EXECUTABLE = _Removable(
        "a compiled step that cannot be used, or is unused for longest; or the mark of its trial",
        r"(?:compile_cache/executables/)?[^/]+-rank\d+-[0-9a-f]{32}\.(?:executable|trial)",
        "only this user can write to the folder (`trainer.private_files`)",
    )
    TOKENS = _Removable(
        "tokens of data that were changed since, or that are damaged",
        r"(?:tokens/)?[0-9a-f]{32}-[0-9a-f]{32}\.tokens",
        "digests of our config and of the data are its name, and the trainer writes it again",
    )
    READING_MARK = _Removable(
        "the mark of an unverified read of a step that is going on",
        r"\d+/supervise_reading_rank\d+",
        "this process made it with O_EXCL, or a process of the same rank before it",
    )
    COMMIT_MARKER = _Removable(
        "the commit marker of a damaged step, in a store that cannot rename the step",
        r"\d+/commit_success\.txt",
        "the note beside it says that it is damaged; it can be made again with `touch`",
    )
    EARLIER_NOTE = _Removable(
        "the note of an earlier version about a save that was going on in a bucket",
        r"supervise_saving\.txt",
        "that version alone wrote it; what it said is kept in the ledger first",
    )
    SEGMENT = _Removable(
        "a piece of the journal or of run.log in the bucket, once it is in a larger one",
        r"(?:[^/]+/)*[^/]+\.parts/[^/]+",
        "its name has its range and epoch; the lease is held, and the larger piece was written",
    )
    LEASE = _Removable(
        "the lease that a run has written which is refused, in a store that ignores preconditions",
        r"lease\.json",
        "this run wrote it a moment ago, where there was none",
    )
    STEP_MANIFEST = _Removable(
        "the manifest of a step that the program has deleted, or that was moved aside",
        r"checkpoint_manifests/[0-9a-f]{16}/[^/]+\.json",
        "only the supervisor that holds the lock writes in this folder of model_dir",
    )
    INSTALLED = _Removable(
        "a wheel, lock or config of `supervise provision` that no slice fetches any more",
        r"provision/files/[0-9a-f]{64}/[^/]+",
        "its name has the digest of its content, and all slices that knew of it are gone",
    )
    QUEUED_RESOURCE = _Removable(
        "a queued resource of `supervise provision`",
        r"\d+",
        "its generation is in the record of the provisioner, who named and made it",
    )
    STEP = _Removable(
        "a step beyond the number that `keep` allows, under the name that it gets for its removal",
        r"(?:\d+|\.supervise-evicted-\d+-[0-9a-f]{32})(?:/.*)?",
        "the job's ledger has it with the time of its commit, which its metadata has too; where it "
        "has a manifest, all of its files are in it",
    )
    KILLED_SAVE = _Removable(
        "the remains of a killed or failed save",
        r"(?:\d+(?:\.orbax-checkpoint-tmp)?|\.supervise-evicted-\d+-[0-9a-f]{32})(?:/.*)?",
        "the job's ledger, written and synced before the save began, says that this step was being "
        "saved",
    )

    def claims(self, name: str) -> bool:
        """True if something of this place can have this name."""
        return re.fullmatch(self.value.name, name) is not None


def remove_file(place: Place, path: Path, *, below: Path) -> bool:
    """Remove the regular file `path`; False: there is no such file.

    Raises:
        NotOursError: it is no file of that place, or a link or a mount is on the way to it.
        OSError: it cannot be removed.
    """
    try:
        with _folder_of(place, path, below) as folder:
            status = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode):
                raise NotOursError(path, f"it is {kind(status.st_mode)}, not a regular file")
            os.unlink(path.name, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def create_temporary(path: Path, *, below: Path, mode: int = 0o666) -> BinaryIO:
    """Create the file `path`, of the place TEMPORARY, and return it open for writing.

    A file that a killed write left under that name is removed first. The file is always a new one,
    so nothing is written through a link that somebody put there.

    Raises:
        NotOursError, OSError: as `remove_file`.
    """
    remove_file(Place.TEMPORARY, path, below=below)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with _folder_of(Place.TEMPORARY, path, below) as folder:
        return os.fdopen(os.open(path.name, flags, mode, dir_fd=folder), "wb")


def remove_tree(
    place: Place,
    path: Path,
    *,
    below: Path,
    is_ours: Callable[[], bool],
    is_expected: Callable[[str], bool] = lambda name: True,
    remove_first: Collection[str] = (),
    remove_last: Collection[str] = (),
    renamed_to: str | None = None,
) -> bool:
    """Remove the folder `path` with all that is in it; False: there is nothing with that name.

    `is_ours` checks the place's proof; it is called after the whole tree was read. `is_expected` is
    True for a file or folder name, relative to `path`, that we use there. The files named
    `remove_first` are removed first, those named `remove_last` are removed last. `renamed_to` is a
    name that the tree gets before it is removed, so that a kill in between leaves no half of it
    under its own name; it is for file systems where a rename moves a folder at once.

    Raises:
        NotOursError: it is not provably ours; all of it stays.
        OSError: not all of it could be removed.
    """
    try:
        with _folder_of(place, path, below) as folder:
            mode = os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode
            if not stat.S_ISDIR(mode):
                raise NotOursError(path, f"it is {kind(mode)}, not a folder")
            with opened_folder(path, folder) as top:
                found = list(list_tree(path, top, "", 0))
                if strange := [name for name, _ in found if not is_expected(name)]:
                    raise NotOursError(path, f"{strange[0]!r} in it is not ours")
                if not is_ours():
                    why = f"nothing proves that it is ours ({place.value.proof})"
                    raise NotOursError(path, why)
                if renamed_to is not None:
                    if not place.claims(renamed_to):
                        raise NotOursError(
                            path, f"{renamed_to!r} is no name for {place.value.what}"
                        )
                    _renamed(path, folder, top, renamed_to)
                _empty(path, top, found, remove_first, remove_last)
                if _is_still(renamed_to or path.name, folder, top):
                    os.rmdir(renamed_to or path.name, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError):
        if any(
            os.path.lexists(path.with_name(name)) for name in (path.name, renamed_to or path.name)
        ):
            raise
        return False
    return True


def _renamed(path: Path, folder: int, top: int, renamed_to: str) -> None:
    """Rename the tree `top`, which was read, to `renamed_to`. If another folder is in its place,
    that one stays."""
    os.rename(path.name, renamed_to, src_dir_fd=folder, dst_dir_fd=folder)
    if not _is_still(renamed_to, folder, top):
        with suppress(OSError):
            os.rename(renamed_to, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        raise NotOursError(path, "another folder has come into its place")


def _is_still(name: str, folder: int, top: int) -> bool:
    """True if `name` in the open `folder` is the folder that is open as `top`."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(status, os.fstat(top))


def _empty(
    path: Path,
    top: int,
    found: Sequence[tuple[str, bool]],
    remove_first: Collection[str],
    remove_last: Collection[str],
) -> None:
    """Remove the files and folders `found` in the open tree `top`, and nothing that came later.

    It is no error if somebody else has removed some of them meanwhile.
    """
    files = [name for name, is_folder in found if not is_folder]
    files.sort(key=lambda name: (name in remove_last, name not in remove_first))
    folders = [name for name, is_folder in found if is_folder]
    folders.sort(key=lambda name: -name.count("/"))
    for names, remove in ((files, os.unlink), (folders, os.rmdir)):
        for each in names:
            *above, name = each.split("/")
            with suppress(FileNotFoundError), opened_path(path, top, above) as inner:
                remove(name, dir_fd=inner)


def remove_objects(place: Place, names: Collection[Name], delete: Callable[[Name], object]) -> None:
    """Call `delete` for each of the objects (or resources) `names`.

    Raises:
        NotOursError: one of them is not of that place; nothing is removed.
        Exception: whatever `delete` raises.
    """
    for name in names:
        if not place.claims(str(name)):
            raise NotOursError(Path(str(name)), f"it is not {place.value.what}")
    for name in names:
        delete(name)


def set_aside(
    path: Path,
    folder: str,
    *,
    below: Path,
    into: Path | None = None,
    suffix: str = "",
    note: str | None = None,
) -> Path:
    """Move `path`, whatever it is, to the free name `folder/<name>-<number><suffix>`; returns its
    new path.

    `folder` is in the folder `into`; None: in `below`. A folder gets that name. Anything else is
    moved, under its own name, into a new folder with that name. Of a link, the link itself is
    moved. The `note` is written before that, to `<name>-<number><suffix>.txt` beside it, so that a
    kill leaves nothing that is moved without it.

    Raises:
        OSError: it cannot be renamed, because it is a mount point, or on another disk.
    """
    parts, goal = path.relative_to(below).parts[:-1], below if into is None else into
    with (
        _opened(below) as root,
        opened_path(path, root, parts) as here,
        _opened(goal) as parent,
    ):
        mode = os.stat(path.name, dir_fd=here, follow_symlinks=False).st_mode
        with suppress(FileExistsError):
            os.mkdir(folder, dir_fd=parent)
        with opened_path(goal / folder, parent, [folder]) as there:
            name = _free_name(path.name, there, suffix)
            target = name if stat.S_ISDIR(mode) else f"{name}/{path.name}"
            is_noted = note is not None and _write_note(f"{name}.txt", note, there)
            try:
                os.rename(path.name, target, src_dir_fd=here, dst_dir_fd=there)
            except OSError:
                os.rmdir(name, dir_fd=there)
                if is_noted:
                    os.unlink(f"{name}.txt", dir_fd=there)
                raise
            return goal / folder / target


def _write_note(name: str, text: str, folder: int) -> bool:
    """Write the new file `name` in the open `folder`, durably; False: it cannot be written, and the
    log says the same."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with suppress(OSError):
        with os.fdopen(os.open(name, flags, 0o666, dir_fd=folder), "wb") as file:
            file.write(text.encode("utf-8", "backslashreplace"))
            file.flush()
            os.fsync(file.fileno())
        return True
    return False


def rename(path: Path, name: str) -> Path:
    """Rename `path` within its folder to `name`; returns the new path.

    Raises:
        FileExistsError: something has that name already.
    """
    target = path.with_name(name)
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, "it is there already", str(target))
    return path.rename(target)


def rename_foreign(path: Path) -> Path:
    """Rename `path`, which has the name of a file of ours but is not ours, to the free name
    `<name>.foreign-<number>` in its folder; returns the new path."""
    return rename_numbered(path, f"{path.name}.foreign")


def rename_numbered(path: Path, name: str) -> Path:
    """Rename `path` within its folder to the first free name `<name>-<number>`; returns the new
    path."""
    for number in count(1):
        with suppress(FileExistsError):
            return rename(path, f"{name}-{number}")
    raise AssertionError("unreachable")


def _free_name(name: str, folder: int, suffix: str = "") -> str:
    """Make a new empty folder in the open `folder` and return its name, `<name>-<number><suffix>`.

    Making it proves that the name was free. A rename then puts another folder in its place.
    """
    for number in count(1):
        with suppress(FileExistsError):
            os.mkdir(f"{name}-{number}{suffix}", dir_fd=folder)
            break
    return f"{name}-{number}{suffix}"


@contextmanager
def _folder_of(place: Place, path: Path, below: Path) -> Iterator[int]:
    """Open the folder that holds `path`, without a link or a mount on the way from `below`; yields
    its descriptor."""
    parts = path.relative_to(below).parts
    if ".." in parts or not place.claims("/".join(parts)):
        raise NotOursError(path, f"it is not {place.value.what}")
    with _opened(below) as root, opened_path(path, root, parts[:-1]) as folder:
        yield folder


@contextmanager
def _opened(root: Path) -> Iterator[int]:
    """Open the folder that the caller vouches for, which may be a link; yields its descriptor."""
    descriptor = os.open(root, _ROOT)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
