"""Exchanges compiled programs with the other hosts of a job, through its bucket.

The config says whose programs to trust: see `core.cache_trust`.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from contextlib import suppress
from pathlib import Path

from supervisor.core.cache_trust import (
    FOLDER,
    MACS,
    MIN_KEY,
    SUMS,
    Trust,
    is_entry,
    macs_table,
    parse_macs,
)
from supervisor.files import secret_file
from supervisor.host.notice import Notice, Tell
from supervisor.ports import MAX_OBJECT, Objects
from supervisor.protocol import private_folder, removal
from supervisor.protocol.reading import UnreadableError, read
from supervisor.protocol.removal import Place

_LARGEST_KEY = 1 << 16
_LARGEST_TABLE = 16 << 20
_KEY = "trainer.init.limits.compile_cache"


def read_key(path: Path) -> bytes:
    """Reads the key in the file `path`: all of its bytes.

    Raises:
        ValueError: others may know it (see `files.secret_file`), or its length is wrong.
        OSError: it cannot be read.
    """
    key = secret_file.read(path, _LARGEST_KEY)
    if not MIN_KEY <= len(key) <= _LARGEST_KEY:
        raise ValueError(
            f"{path} has {len(key)} bytes; a key has {MIN_KEY} to {_LARGEST_KEY}: "
            f"head -c {MIN_KEY} /dev/urandom > {path}"
        )
    return key


class SharedPrograms:
    """Keeps the compiled programs of a job the same in its bucket and on this host.

    Entries never change. `compile_cache.CompileCache` applies the size limit on this host; an entry
    that is removed here is then removed from the bucket too.
    """

    def __init__(self, objects: Objects, folder: Path, trust: Trust) -> None:
        """`folder` is the job's folder on this host."""
        self._objects = objects
        self._cache = folder / FOLDER
        self._trust = trust
        self._macs: dict[str, str] = {}
        """The HMAC of each entry that is on this host and in the bucket; without a key, ""."""
        self._table: bytes | None = None
        """The table of HMACs or SHA-256 sums that we last wrote to the bucket."""
        self._unreadable = ""
        """Why the table of SHA-256 sums could not be read last; "": it could."""

    def fetch(self, limit: int, tell: Tell) -> None:
        """Copy the trusted programs to this host, by name, up to `limit` bytes in all.

        `tell` gets a notice about programs that are not trusted, or do not fit.

        Raises:
            OSError: the bucket cannot be read, or the folder cannot be written.
        """
        if not self._trust.shares:
            return
        try:
            private_folder.make(self._cache)
        except PermissionError as error:
            tell(
                Notice(
                    "bucket-programs-refused",
                    f"no compiled programs are taken from the bucket: {error}",
                    reason=str(error),
                )
            )
            return
        there = self._objects.list(FOLDER).objects
        table = self._read_table(MACS if self._trust.key is not None else SUMS, there, tell)
        macs = parse_macs(table) if self._trust.key is not None else {}
        if self._trust.key is None and table:
            _write(self._cache / SUMS, table)
        room, refused = limit, []
        for name, size in sorted(there.items()):
            if not is_entry(name):
                continue
            if self._trust.key is not None and name not in macs:
                refused.append(name)
            elif size > room:
                tell(
                    Notice(
                        "bucket-programs-refused",
                        f"the compiled program {name} in the bucket is not copied: "
                        f"it does not fit in {_KEY}",
                        reason=_KEY,
                    )
                )
            elif not self._take(name, size, macs.get(name, "")):
                refused.append(name)
            else:
                room -= size
        if refused:
            key = "are not signed with the key in compile_cache.key_file"
            why = key if self._trust.key is not None else "changed while they were read"
            text = (
                f"{len(refused)} of the compiled programs in the bucket are not used, as they "
                f"{why}: {', '.join(refused[:3])}"
            )
            tell(Notice("bucket-programs-refused", text, reason=why))

    def update(self, tell: Tell) -> None:
        """Copy new programs to the bucket, signed if there is a key. Remove from it those that were
        removed here. `tell` gets a notice about a table that cannot be copied.

        Raises:
            OSError: the bucket cannot be written.
        """
        if not self._trust.shares or not self._is_private():
            return
        here = [path for path in self._cache.iterdir() if is_entry(path.name)]
        for path in here:
            if path.name not in self._macs:
                # It was damaged and is removed, or is no regular file: `CompileCache` reports it.
                with suppress(FileNotFoundError, UnreadableError):
                    data = read(path, MAX_OBJECT)
                    self._objects.write(f"{FOLDER}/{path.name}", data)
                    self._macs[path.name] = self._trust.sign(path.name, data)
        self._forget(self._macs.keys() - {path.name for path in here})
        self._write_table(tell)

    def _read_table(self, name: str, there: Mapping[str, int], tell: Tell) -> bytes:
        """Returns the table `name` in the bucket. Returns nothing if it is not `there`, or is too
        large, which `tell` gets a notice about."""
        size = there.get(name)
        if size is None:
            return b""
        if size > _LARGEST_TABLE:
            why = f"it has {size} bytes, more than {_LARGEST_TABLE}"
            text = (
                f"the table {FOLDER}/{name} in the bucket is not read: {why}. "
                "The job replaces it when it copies its compiled programs to the bucket"
            )
            tell(Notice("bucket-programs-refused", text, reason=why))
            return b""
        return self._objects.read(f"{FOLDER}/{name}").data

    def _take(self, name: str, size: int, mac: str) -> bool:
        """Have an entry on this host, if it is trusted. False: it is not, or has changed."""
        target = self._cache / name
        try:
            here = read(target, size)
        except (FileNotFoundError, UnreadableError):
            here = b""
        is_here = len(here) == size
        try:
            data = here if is_here else self._objects.read(f"{FOLDER}/{name}", size).data
        except (FileNotFoundError, UnreadableError):
            return False  # it has changed since it was listed
        if not self._trust.accepts(name, data, mac):
            return False
        if not is_here:
            _write(target, data)
        self._macs[name] = mac
        return True

    def _is_private(self) -> bool:
        """True if only this user can write to the cache. Otherwise we sign and copy no entry, and
        `CompileCache` reports why."""
        try:
            private_folder.check(self._cache)
        except (FileNotFoundError, PermissionError):
            return False
        return True

    def _forget(self, names: Set[str]) -> None:
        objects = [f"{FOLDER}/{name}" for name in names]
        removal.remove_objects(Place.COMPILED, objects, self._objects.delete)
        for name in names:
            del self._macs[name]

    def _write_table(self, tell: Tell) -> None:
        """Write the table after the entries: with a key, an entry counts once it is in there."""
        if self._trust.key is not None:
            name, table = MACS, macs_table(self._macs)
        else:
            name = SUMS
            try:
                table = read(self._cache / SUMS, _LARGEST_TABLE)
            except FileNotFoundError:
                return
            except UnreadableError as error:
                self._tell_once(str(error), tell)
                return
            self._unreadable = ""
        if table != self._table:
            self._objects.write(f"{FOLDER}/{name}", table)
            self._table = table

    def _tell_once(self, why: str, tell: Tell) -> None:
        if why != self._unreadable:
            self._unreadable = why
            text = f"the checksums of the compiled programs are not copied to the bucket: {why}"
            tell(Notice("bucket-copy-failed", text, reason=why))


def _write(target: Path, data: bytes) -> None:
    temporary = target.with_name(f".{target.name}.tmp")
    with removal.create_temporary(temporary, below=target.parent) as file:
        file.write(data)
    temporary.replace(target)
