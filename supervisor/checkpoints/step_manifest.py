"""The manifest of a step of a program of one's own: identity and SHA-256 of each of its files.

Orbax restores most flipped bits without an error, and some programs loop for ever on a truncated
file. The supervisor keeps a manifest of each committed step (`manifest_keeper` makes it), and
compares the newest step with it before a launch (`step_check`). Manifests lie under model_dir,
because a program's own folder is not ours to write in.

The last member of a manifest is the digest of the rest. A manifest that is not as it was written
counts as missing: a bit that flips in it must not make a good checkpoint look damaged. So does one
that names another algorithm for its digests than ours: another version of the supervisor made it.

The identity of a file (inode, size, times) tells a disk's error from a program's write. A program
that saves a step again under its name writes the file that commits it again: see `is_saved_anew`.

No link is followed: a step with a link, a FIFO or a mount point in it gets no manifest. Files that
come after the manifest are ignored, since a reader takes only what was there at the commit.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from errno import EIO
from pathlib import Path, PurePosixPath
from typing import TypeVar
from urllib.parse import quote_from_bytes, unquote_to_bytes

from supervisor.protocol import removal
from supervisor.protocol.committed import committed_at, committing_files
from supervisor.protocol.passage import list_tree, opened_path
from supervisor.protocol.reading import UnreadableError, open_file, parse_object, read
from supervisor.protocol.removal import Place

FOLDER = "checkpoint_manifests"
"""The folder of model_dir that holds the manifests."""
SUFFIX = ".json"
"""The end of the name of each manifest."""
_MAX_NAME = 200
"""Bytes of the name of a step that its manifest has whole."""
_MAX_MANIFEST = 64 << 20
"""Bytes. A manifest has about 150 bytes for each file of a step."""
_CHUNK = 1 << 20
_ALGORITHM = "sha256"
"""The algorithm of the digests, as a manifest names it."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ROOT = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC

T = TypeVar("T")
IsStopped = Callable[[], bool]
"""Called again and again during a read; True ends it with a `StoppedError`."""


class StoppedError(Exception):
    """Nobody wants the answer any more."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file of a step, as it was when the manifest was made."""

    size: int
    inode: int
    written: int
    """The time of its content's last change (mtime), in nanoseconds since the epoch. A program can
    set it."""
    changed: int
    """The time of its inode's last change (ctime). No program can set it."""
    digest: str

    def is_written_again(self, found: os.stat_result) -> bool:
        """True if the file with the status `found` is another one, or was written since."""
        return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns) != (
            self.inode,
            self.size,
            self.written,
            self.changed,
        )

    def is_committed_again(self, found: os.stat_result) -> bool:
        """The same for a file that commits. `chmod`, `chown` and a hard link change its ctime, and
        are no commit."""
        return (found.st_ino, found.st_mtime_ns) != (self.inode, self.written)


@dataclass(frozen=True, slots=True)
class StepManifest:
    """The files of a step by their relative paths."""

    path: str
    """The path of the step, for people: quoted as in a URL."""
    committed_at: int | None
    """When the step was committed, by its own metadata; None: it does not say."""
    folder: int
    """The inode of the step's folder."""
    files: Mapping[str, FileRecord]

    @property
    def num_bytes(self) -> int:
        """The size of all files together."""
        return sum(record.size for record in self.files.values())


def manifest_folder(model_dir: Path, directory: Path) -> Path:
    """Returns the folder for the manifests of the steps in `directory`.

    A model_dir that is moved together with its checkpoints keeps them, because the name of the
    folder is made of the path below model_dir.
    """
    is_inside = directory.is_relative_to(model_dir)
    named = directory.relative_to(model_dir) if is_inside else directory
    return model_dir / FOLDER / hashlib.sha256(os.fsencode(named)).hexdigest()[:16]


def manifest_file(folder: Path, step: str) -> Path:
    """Returns the manifest of the step with the name `step`.

    Of a long name the digest takes the place, because a file name has 255 bytes at most.
    """
    if len(os.fsencode(step)) > _MAX_NAME:
        step = hashlib.sha256(os.fsencode(step)).hexdigest()
    return folder / f"{step}{SUFFIX}"


def make_manifest(step: Path, is_stopped: IsStopped = lambda: False) -> StepManifest | None:
    """Read all files of `step`, and return its manifest; None: it changed meanwhile, or is gone.

    Raises:
        NotOursError: something in it is neither a file nor a folder.
        StoppedError, OSError: see `IsStopped`; it cannot be read now.
    """
    try:
        folder = step.stat().st_ino
        before, committed = _files_in(step), committed_at(step)
        digests = {name: _digest(step, name, is_stopped) for name in before}
        if _files_in(step) != before or step.stat().st_ino != folder:
            return None
    except (FileNotFoundError, NotADirectoryError):
        return None
    files = {
        name: FileRecord(size, inode, written, changed, digests[name])
        for name, (inode, size, written, changed) in before.items()
    }
    return StepManifest(quote_from_bytes(os.fsencode(step)), committed, folder, files)


def write_manifest(path: Path, manifest: StepManifest, *, below: Path) -> None:
    """Write `manifest` to the file `path` below model_dir (`below`), atomically and durably.

    Raises:
        OSError: it cannot be written.
    """
    write_durably(path, _encode(manifest), below=below)


def write_durably(path: Path, data: bytes, *, below: Path) -> None:
    """Write the file `path` below model_dir (`below`), and the folders on the way to it.

    Raises:
        OSError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    _make_folder(path.parent, below)
    try:
        with removal.create_temporary(temporary, below=below) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            removal.remove_file(Place.TEMPORARY, temporary, below=below)
        raise


def read_manifest(path: Path, *, below: Path) -> StepManifest | None:
    """Returns the manifest in the file `path` below model_dir (`below`); None: there is none, or it
    is not as we write it.

    Raises:
        OSError: it cannot be read now.
    """
    try:
        data = read(path, _MAX_MANIFEST, below=below)
        body = parse_object(data, path)
        files = {
            os.fsdecode(unquote_to_bytes(name)): FileRecord(
                int(size), int(inode), int(written), int(changed), str(digest)
            )
            for name, (size, inode, written, changed, digest) in body["files"].items()
        }
        manifest = StepManifest(str(body["path"]), body["committed_at"], int(body["folder"]), files)
        is_whole = _encode(manifest) == data and all(map(_is_inside, files))
    except (FileNotFoundError, NotADirectoryError, UnreadableError):
        return None
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None
    return manifest if is_whole else None


def is_saved_anew(step: Path, manifest: StepManifest) -> bool:
    """True if `step` is another save than the recorded one, under the same name: the program has
    gone back, and has come to this step again.

    A save commits again: each file that does is another one or has another time, and so has one of
    the others, if one is left. A step that names the time of its commit names another. If no file
    that commits is left, all others were written again: the save is not complete.

    No time has to be later: a clock may be set back, and a program may give a file an old time. A
    disk's error changes no time, and what damages a file by a write commits nothing.

    Raises:
        OSError: it cannot be read now.
    """
    left = {name: status for name in manifest.files if (status := _status(step / name)) is not None}
    written = {name for name in left if manifest.files[name].is_written_again(left[name])}
    commits = left.keys() & {*committing_files(step.name)}
    others = left.keys() - commits
    if not commits:
        return bool(others) and others == written
    if not all(manifest.files[name].is_committed_again(left[name]) for name in commits):
        return False
    if others and not others & written:
        return False
    return manifest.committed_at is None or committed_at(step) not in (None, manifest.committed_at)


def why_unavailable(step: Path, manifest: StepManifest) -> str | None:
    """Returns why nothing can be said about `step` now, since its disk may not be mounted; None: it
    is there.

    A link that leads nowhere, and an empty folder in place of the recorded one, are no damage.

    Raises:
        OSError: it cannot be read now.
    """
    try:
        folder = step.stat().st_ino
    except (FileNotFoundError, NotADirectoryError):
        return "its link leads nowhere"
    if any(_status(step / name) is not None for name in manifest.files):
        return None
    is_same = folder == manifest.folder and not step.is_symlink()
    return None if is_same else "another folder is in its place, without any of its files"


def damage_of(
    step: Path, manifest: StepManifest, is_stopped: IsStopped = lambda: False
) -> dict[str, str]:
    """Returns what is wrong with each damaged file of `step`; empty: it is as `manifest` says.

    All sizes come first, which is cheap, and contents only if the sizes are right. Two threads
    read.

    Raises:
        StoppedError, OSError: as `make_manifest`.
    """
    files = manifest.files
    sizes = {name: _wrong_size(step / name, record.size) for name, record in files.items()}
    wrong = {name: why for name, why in sizes.items() if why is not None}
    if wrong:
        return wrong
    largest_first = sorted(files, key=lambda name: -files[name].size)
    contents = _in_two_threads(
        largest_first, lambda name: _wrong_content(step, name, files[name].digest, is_stopped)
    )
    return {name: why for name in files if (why := contents[name]) is not None}


def _files_in(step: Path) -> dict[str, tuple[int, int, int, int]]:
    """Returns inode, size and times of the last changes of each file in `step`."""
    top = os.open(step, _DIRECTORY)
    try:
        names = [name for name, is_folder in list_tree(step, top, "", 0) if not is_folder]
        stats = {name: os.stat(name, dir_fd=top, follow_symlinks=False) for name in names}
    finally:
        os.close(top)
    return {
        name: (each.st_ino, each.st_size, each.st_mtime_ns, each.st_ctime_ns)
        for name, each in stats.items()
    }


def _status(path: Path) -> os.stat_result | None:
    """Returns the status of `path`; None: there is nothing."""
    try:
        return path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _wrong_size(path: Path, size: int) -> str | None:
    status = _status(path)
    if status is None:
        return "is missing"
    if not stat.S_ISREG(status.st_mode):
        return "is not a file any more"
    return None if status.st_size == size else f"has {status.st_size} bytes, not {size}"


def _wrong_content(step: Path, name: str, digest: str, is_stopped: IsStopped) -> str | None:
    try:
        found = _digest(step, name, is_stopped)
    except (FileNotFoundError, NotADirectoryError):
        return "is missing"
    except UnreadableError as error:
        return error.why
    except OSError as error:
        if error.errno != EIO:
            raise
        return f"cannot be read: {error.strerror}"
    return None if found == digest else "does not have the content that was committed"


def _digest(step: Path, name: str, is_stopped: IsStopped) -> str:
    digest = hashlib.new(_ALGORITHM)
    with open_file(step / name, below=step) as file:
        while chunk := file.read(_CHUNK):
            if is_stopped():
                raise StoppedError
            digest.update(chunk)  # without the interpreter's lock
    return digest.hexdigest()


def _in_two_threads(names: Iterable[str], compute: Callable[[str], T]) -> dict[str, T]:
    """Returns what `compute` returns for each name. This thread does one half of the work.

    The other thread is a daemon: where a file system hangs, nobody waits for it at the end.
    """
    pending, found, errors = deque(names), dict[str, T](), list[Exception]()

    def work() -> None:
        while not errors:
            try:
                name = pending.popleft()
            except IndexError:
                return
            try:
                found[name] = compute(name)
            except Exception as error:
                errors.append(error)

    other = threading.Thread(target=work, name="digests", daemon=True)
    with suppress(RuntimeError):  # no more threads are allowed
        other.start()
    work()
    if other.ident is not None:
        other.join()
    for error in errors:
        raise error
    return found


def _encode(manifest: StepManifest) -> bytes:
    files = {
        quote_from_bytes(os.fsencode(name)): (
            each.size,
            each.inode,
            each.written,
            each.changed,
            each.digest,
        )
        for name, each in manifest.files.items()
    }
    body = {
        "algorithm": _ALGORITHM,
        "path": manifest.path,
        "committed_at": manifest.committed_at,
        "folder": manifest.folder,
        "files": files,
    }
    digest = hashlib.sha256(json.dumps(body).encode()).hexdigest()
    return json.dumps(body | {"sha256": digest}, indent=1).encode() + b"\n"


def _is_inside(name: str) -> bool:
    """True if a file with this relative path is below its step."""
    path = PurePosixPath(name)
    return bool(name) and "\0" not in name and not path.is_absolute() and ".." not in path.parts


def _make_folder(folder: Path, below: Path) -> None:
    """Make `folder` and its parents below the folder `below`, through no link."""
    root = os.open(below, _ROOT)
    try:
        names = folder.relative_to(below).parts
        for depth, name in enumerate(names):
            with opened_path(folder, root, names[:depth]) as here, suppress(FileExistsError):
                os.mkdir(name, dir_fd=here)
    finally:
        os.close(root)
