"""Compiled programs in a bucket: used only where the config says whom to trust."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.adapters.stores.shared_programs import SharedPrograms, read_key
from supervisor.core.cache_trust import Trust, is_entry, macs_table, parse_macs
from tests.memory_objects import MemoryObjects

KEY = b"k" * 32
HOLDERS = Trust(key=KEY)
WRITERS = Trust(from_bucket=True)
NAME = "jit_step-1-cache"
ROOM = 1 << 20


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects()


class Host:
    """A host with a folder of its own."""

    def __init__(self, folder: Path, objects: MemoryObjects, trust: Trust) -> None:
        folder.mkdir()
        self.cache = folder / "compile_cache"
        self.told: list[str] = []
        self._programs = SharedPrograms(objects, folder, trust)

    def fetch(self, limit: int = ROOM) -> dict[str, bytes]:
        """What is then here."""
        self._programs.fetch(limit, self.told.append)
        return self.entries()

    def entries(self) -> dict[str, bytes]:
        found = self.cache.glob("*-cache")
        return {path.name: path.read_bytes() for path in found}

    def compile(self, name: str = NAME, content: bytes = b"program") -> None:
        """Have an entry, and bring it to the bucket."""
        self.cache.mkdir(mode=0o700, exist_ok=True)
        (self.cache / name).write_bytes(content)
        self.update()

    def update(self) -> None:
        self._programs.update(self.told.append)


Hosts = Callable[..., Host]


@pytest.fixture
def host(tmp_path: Path, objects: MemoryObjects) -> Hosts:
    count = iter(range(100))
    return lambda trust: Host(tmp_path / str(next(count)), objects, trust)


@pytest.mark.parametrize("trust", [HOLDERS, WRITERS])
def test_what_one_host_compiled_another_one_has(
    objects: MemoryObjects, host: Hosts, trust: Trust
) -> None:
    host(trust).compile()
    other = host(trust)
    assert other.fetch() == {NAME: b"program"}
    assert other.cache.stat().st_mode & 0o777 == 0o700
    assert other.told == []
    writes = objects.calls["write"]
    other.update()
    assert objects.calls["write"] <= writes + 1, "the entry is there already"
    assert host(trust).fetch() == {NAME: b"program"}


def test_without_anybody_to_trust_nothing_is_exchanged(objects: MemoryObjects, host: Hosts) -> None:
    nobody = host(Trust())
    nobody.compile()
    assert objects.objects == {}
    host(WRITERS).compile()
    assert host(Trust()).fetch() == {}


def planted(objects: MemoryObjects, name: str = NAME, content: bytes = b"evil") -> None:
    objects.write(f"compile_cache/{name}", content)


@pytest.mark.parametrize(
    "harm",
    [
        lambda objects: planted(objects),
        lambda objects: planted(objects, content=b"progran"),
        lambda objects: objects.delete("compile_cache/HMACS"),
        lambda objects: objects.write("compile_cache/HMACS", b"\xff\0" * 50),
        lambda objects: objects.write(
            "compile_cache/HMACS", macs_table({NAME: Trust(b"o" * 32).sign(NAME, b"program")})
        ),
        lambda objects: objects.write(
            "compile_cache/HMACS", macs_table({NAME: hashlib.sha256(b"program").hexdigest()})
        ),
    ],
)
def test_what_does_not_carry_the_keys_mac_is_not_used(
    objects: MemoryObjects, host: Hosts, harm: Callable[[MemoryObjects], object]
) -> None:
    host(HOLDERS).compile()
    harm(objects)
    other = host(HOLDERS)
    assert other.fetch() == {}
    assert other.told == [
        "1 of the compiled programs in the bucket are not used, as they are not signed with the "
        f"key in compile_cache.key_file: {NAME}"
    ]


def test_a_table_that_is_too_large_is_told(objects: MemoryObjects, host: Hosts) -> None:
    host(HOLDERS).compile()
    table = objects.read("compile_cache/HMACS").data
    objects.write("compile_cache/HMACS", table + bytes(16 << 20))
    other = host(HOLDERS)
    assert other.fetch() == {}
    why = f"it has {len(table) + (16 << 20)} bytes, more than {16 << 20}"
    assert other.told[0].startswith(
        f"the table compile_cache/HMACS in the bucket is not read: {why}"
    )
    assert "not signed" in other.told[1]
    other.compile()
    assert host(HOLDERS).fetch() == {NAME: b"program"}, "the table was replaced"


@pytest.mark.parametrize("trust", [HOLDERS, WRITERS])
def test_a_missing_table_is_not_told(objects: MemoryObjects, host: Hosts, trust: Trust) -> None:
    assert host(trust).fetch() == {}
    assert host(trust).told == []


def test_an_entry_does_not_stand_in_for_another_one(objects: MemoryObjects, host: Hosts) -> None:
    """The MAC binds the name, which is JAX's hash of the program."""
    host(HOLDERS).compile()
    (line,) = objects.read("compile_cache/HMACS").data.splitlines()
    planted(objects, "jit_step-2-cache", b"program")
    objects.write("compile_cache/HMACS", line + b"\n" + line.replace(b"step-1", b"step-2") + b"\n")
    assert host(HOLDERS).fetch() == {NAME: b"program"}


def test_what_is_not_signed_stays_in_the_bucket(objects: MemoryObjects, host: Hosts) -> None:
    planted(objects, "jit_theirs-1-cache")
    ours = host(HOLDERS)
    ours.fetch()
    ours.compile()
    assert objects.read("compile_cache/jit_theirs-1-cache").data == b"evil"


def test_what_was_removed_here_is_removed_there(objects: MemoryObjects, host: Hosts) -> None:
    ours = host(HOLDERS)
    ours.compile()
    ours.compile("jit_other-1-cache")
    (ours.cache / NAME).unlink()
    ours.update()
    assert set(objects.list("compile_cache").objects) == {"jit_other-1-cache", "HMACS"}
    assert list(parse_macs(objects.read("compile_cache/HMACS").data)) == ["jit_other-1-cache"]


def test_checksums_that_cannot_be_read_are_told_once(objects: MemoryObjects, host: Hosts) -> None:
    ours = host(WRITERS)
    ours.compile()
    assert ours.told == [], "there are none yet"
    (ours.cache / "SHA256SUMS").mkdir()
    ours.compile("jit_other-1-cache")
    ours.update()
    (told,) = ours.told
    assert told.startswith("the checksums of the compiled programs are not copied to the bucket: ")
    assert "SHA256SUMS is a directory, not a regular file" in told
    assert "compile_cache/jit_other-1-cache" in objects.objects


def test_no_more_is_fetched_than_the_limit(objects: MemoryObjects, host: Hosts) -> None:
    ours = host(WRITERS)
    ours.compile("jit_a-1-cache", bytes(60))
    ours.compile("jit_b-1-cache", bytes(60))
    other = host(WRITERS)
    assert set(other.fetch(limit=100)) == {"jit_a-1-cache"}
    assert "jit_b-1-cache in the bucket is not copied: it does not fit in" in other.told[0]


@pytest.mark.parametrize("name", ["..-cache", "live/x-cache", ".x-cache", "run.sh"])
def test_only_entries_are_taken(objects: MemoryObjects, host: Hosts, name: str) -> None:
    planted(objects, name)
    assert host(WRITERS).fetch() == {}


def test_what_others_could_have_put_here_is_neither_signed_nor_copied(
    objects: MemoryObjects, host: Hosts
) -> None:
    ours = host(HOLDERS)
    ours.cache.mkdir(mode=0o700)
    ours.cache.chmod(0o777)
    ours.compile()
    assert objects.objects == {}
    ours.fetch()
    assert "no compiled programs are taken from the bucket" in ours.told[0]
    assert "must be a directory of this user that nobody else can write to" in ours.told[0]


# --- the key --------------------------------------------------------------------------------------


def key_file(folder: Path, content: bytes = KEY, mode: int = 0o600) -> Path:
    path = folder / "key"
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_a_key_is_all_that_is_in_its_file(tmp_path: Path) -> None:
    path = key_file(tmp_path, KEY + b"\n", 0o400)
    assert read_key(path) == KEY + b"\n"
    (tmp_path / "mounted").symlink_to(path)
    assert read_key(tmp_path / "mounted") == KEY + b"\n"


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        (KEY, 0o660, r"is open to others \(mode 0660\): chown it, or chmod 600 "),
        (KEY, 0o604, r"mode 0604"),
        (b"k" * 31, 0o600, "has 31 bytes; a key has 32 to 65536: head -c 32 /dev/urandom > "),
        (b"", 0o600, "has 0 bytes"),
        (b"k" * 65537, 0o600, "has 65537 bytes, more than 65536"),
    ],
)
def test_what_is_no_secret_is_no_key(tmp_path: Path, content: bytes, mode: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_key(key_file(tmp_path, content, mode))


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can make it another user's")
def test_a_key_of_another_user_is_refused(tmp_path: Path) -> None:
    path = key_file(tmp_path)
    os.chown(path, 12345, 12345)
    with pytest.raises(ValueError, match=r"belongs to uid 12345, not to us: chown it"):
        read_key(path)


def test_a_pipe_is_no_key(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "key", 0o600)
    with pytest.raises(ValueError, match="is a FIFO, not a regular file"):
        read_key(tmp_path / "key")


# --- the table ------------------------------------------------------------------------------------

names = st.text(st.characters(codec="utf-8", exclude_characters="/\0\n"), min_size=1, max_size=20)


@given(st.dictionaries(names.map(lambda name: f"x{name}-cache").filter(is_entry), st.binary()))
def test_a_table_is_read_as_it_was_written(entries: dict[str, bytes]) -> None:
    macs = {name: HOLDERS.sign(name, content) for name, content in entries.items()}
    assert parse_macs(macs_table(macs)) == macs


def test_the_mac_is_an_hmac_of_name_and_content() -> None:
    text = b"supervise compiled program 1\0" + NAME.encode() + b"\0program"
    assert HOLDERS.sign(NAME, b"program") == hmac.new(KEY, text, "sha256").hexdigest()
    assert "kkkk" not in repr(HOLDERS)
