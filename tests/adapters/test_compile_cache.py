"""The compilation cache: what is whole goes in, what is not does not, and damage is found."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.adapters.stores.compile_cache import CompileCache, is_whole
from supervisor.protocol import removal

ENTRY = zlib.compress(os.urandom(3_000_000), 1)
NAME = "jit_f-0123-cache"
_BLOCK = (
    "350400c6d11d86111111101b001b001b00386f88def8bcd4044ef55128a77bfe32e128cc4fedb2bff1c2ee3927e24"
    "4a1666222e987b7888ae7756074ee840f5c35b247b476e72231e029560a1589550e14e4bf6f377137fb38a658aff4"
    "7b18cf33350d7faf97b217c4884c90c111cdd0fc01815b1868a6004afea5913a0414060107afe999445c370a"
)
ZSTD = {
    "with its size": bytes.fromhex("28b52ffd602c00" + _BLOCK),
    "with a checksum": bytes.fromhex("28b52ffd642c00" + _BLOCK + "d2c67b27"),
    "without its size": bytes.fromhex("28b52ffd0000" + _BLOCK),
    "several blocks": bytes.fromhex(
        "28b52ffda0801a06005400001000000100fbff39c002020010000200100003d40000"
    ),
}
"""What `zstandard.ZstdCompressor` makes of 300 bytes, and of 400,000 zeros."""


def whole(content: bytes) -> bool:
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        return is_whole(file)


@pytest.mark.parametrize("stream", [ENTRY, *ZSTD.values()], ids=["zlib", *ZSTD])
def test_a_stream_is_whole_only_from_beginning_to_end(stream: bytes) -> None:
    assert whole(stream)
    assert not whole(stream + b"\0")
    for length in (0, 1, 4, 5, len(stream) // 2, len(stream) - 1):
        assert not whole(stream[:length]), length


def test_what_is_no_stream_is_not_whole() -> None:
    flipped = bytearray(ENTRY)
    flipped[len(flipped) // 2] ^= 1
    assert not whole(bytes(flipped))
    assert not whole(b"anything else")
    assert not is_whole(io.BytesIO(bytes(100)))


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def cache(tmp_path: Path, said: list[str]) -> Callable[[], CompileCache]:
    """The cache as each new supervisor finds it."""
    return lambda: CompileCache(tmp_path / "cache", said.append)


@pytest.fixture
def live(tmp_path: Path) -> Path:
    """Where JAX reads and writes."""
    path = tmp_path / "cache" / "live"
    path.mkdir(parents=True)
    for folder in (path.parent, path):
        folder.chmod(0o700)
    return path


def found(cache: CompileCache, live: Path) -> set[str]:
    """What a new attempt finds."""
    assert cache.environment({})["JAX_COMPILATION_CACHE_DIR"] == str(live)
    return {path.name for path in live.iterdir() if path.is_file()}


def test_what_one_attempt_compiled_the_next_finds(
    cache: Callable[[], CompileCache], live: Path, said: list[str]
) -> None:
    (live / NAME).write_bytes(ENTRY)
    (live / "jit_torn-4567-cache").write_bytes(ENTRY[:-9])
    (live / "xla_gpu_per_fusion_autotune_cache_dir").mkdir()
    running = cache()
    running.finish_attempt()
    assert said == ["the compiled program jit_torn was not kept: it is incomplete"]
    assert (live.parent / NAME).read_bytes() == ENTRY
    assert not (live.parent / "jit_torn-4567-cache").exists()
    assert found(running, live) == {NAME}
    sums = (live.parent / "SHA256SUMS").read_text()
    assert sums == f"{hashlib.sha256(ENTRY).hexdigest()}  {NAME}\n"

    (live / NAME).unlink()
    assert found(running, live) == {NAME}
    assert found(cache(), live) == {NAME}


def test_the_next_supervisor_takes_over_what_a_killed_one_could_not(
    cache: Callable[[], CompileCache], live: Path, said: list[str]
) -> None:
    (live / NAME).write_bytes(ENTRY)
    (live / "jit_torn-4567-cache").write_bytes(ENTRY[:-9])
    assert found(cache(), live) == {NAME}
    assert (live.parent / NAME).exists()
    assert len(said) == 1


def test_an_entry_of_a_living_process_is_taken_over_only_when_it_is_whole(
    cache: Callable[[], CompileCache], live: Path, said: list[str]
) -> None:
    running = cache()
    with (live / NAME).open("wb") as file:
        file.write(ENTRY[:-9])
        file.flush()
        assert running._take_over() == {NAME: "is incomplete"}
        assert not (live.parent / NAME).exists()
        file.write(ENTRY[-9:])
    assert running._take_over() == {}
    assert (live.parent / NAME).read_bytes() == ENTRY
    assert said == []


@pytest.mark.parametrize("entry", [ENTRY, ZSTD["with its size"]], ids=["zlib", "zstd"])
@pytest.mark.parametrize("same_supervisor", [True, False])
def test_damage_is_found_and_removed(
    cache: Callable[[], CompileCache],
    live: Path,
    said: list[str],
    entry: bytes,
    same_supervisor: bool,
) -> None:
    (live / NAME).write_bytes(entry)
    running = cache()
    running.finish_attempt()
    flipped = bytearray(entry)
    flipped[len(flipped) // 2] ^= 1
    (live.parent / NAME).write_bytes(flipped)

    later = running if same_supervisor else cache()
    assert found(later, live) == set()
    assert said == ["the compiled program jit_f was removed from the cache: it is damaged"]
    assert not (live.parent / NAME).exists()

    (live / NAME).write_bytes(entry)
    later.finish_attempt()
    assert found(cache(), live) == {NAME}


def test_a_foreign_entry_is_judged_by_itself(
    cache: Callable[[], CompileCache], live: Path, said: list[str]
) -> None:
    (live.parent / NAME).write_bytes(ENTRY)
    (live.parent / "jit_torn-4567-cache").write_bytes(ENTRY[:100])
    assert found(cache(), live) == {NAME}
    assert said == ["the compiled program jit_torn was removed from the cache: it is damaged"]


@pytest.mark.parametrize(
    "given",
    [{"JAX_COMPILATION_CACHE_DIR": "/elsewhere"}, {"JAX_COMPILATION_CACHE_MAX_SIZE": "1000"}],
)
def test_a_cache_of_their_own_is_left_alone(
    tmp_path: Path, cache: Callable[[], CompileCache], given: dict[str, str]
) -> None:
    assert cache().environment(given) == {}
    assert list(tmp_path.iterdir()) == []


def test_what_they_set_of_the_rest_stays(tmp_path: Path, cache: Callable[[], CompileCache]) -> None:
    given = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "2", "OTHER": "x"}
    assert cache().environment(given) == {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache" / "live"),
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    assert (tmp_path / "cache" / "live").stat().st_mode & 0o777 == 0o700


def test_a_directory_that_cannot_be_made_costs_only_the_cache(
    tmp_path: Path, cache: Callable[[], CompileCache], said: list[str]
) -> None:
    (tmp_path / "cache").write_text("in the way")
    running = cache()
    assert running.environment({}) == {}
    running.finish_attempt()
    assert said == [f"the compilation cache cannot be used: {tmp_path / 'cache'} {REMEDY}"]


REMEDY = (
    "must be a directory of this user that nobody else can write to: remove it, and it is made so"
)


@pytest.mark.parametrize("folder", ["cache", "cache/live"])
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_cache_that_others_can_write_to_is_not_used(
    tmp_path: Path,
    cache: Callable[[], CompileCache],
    live: Path,
    said: list[str],
    folder: str,
    mode: int,
) -> None:
    (live / NAME).write_bytes(ENTRY)
    (tmp_path / folder).chmod(mode)
    running = cache()
    assert running.environment({}) == {}
    running.finish_attempt()
    running.keep_within(0)
    assert said == [f"the compilation cache cannot be used: {tmp_path / folder} {REMEDY}"]
    assert (live / NAME).exists()
    assert not (live.parent / NAME).exists()


@pytest.mark.parametrize("folder", ["cache", "cache/live"])
def test_a_cache_that_is_a_link_is_not_used(
    tmp_path: Path, cache: Callable[[], CompileCache], live: Path, said: list[str], folder: str
) -> None:
    (tmp_path / folder).rename(tmp_path / "moved")
    (tmp_path / folder).symlink_to(tmp_path / "moved")
    assert cache().environment({}) == {}
    assert said == [f"the compilation cache cannot be used: {tmp_path / folder} {REMEDY}"]


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can make it another user's")
@pytest.mark.parametrize("folder", ["cache", "cache/live"])
def test_a_cache_of_another_user_is_not_used(
    tmp_path: Path, cache: Callable[[], CompileCache], live: Path, said: list[str], folder: str
) -> None:
    os.chown(tmp_path / folder, 12345, 12345)
    assert cache().environment({}) == {}
    assert said == [f"the compilation cache cannot be used: {tmp_path / folder} {REMEDY}"]


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can make it another user's")
def test_an_entry_of_another_user_is_removed_and_told_as_such(
    cache: Callable[[], CompileCache], live: Path, said: list[str]
) -> None:
    for folder in (live.parent, live):
        (folder / NAME).write_bytes(ENTRY)
        os.chown(folder / NAME, 12345, 12345)
        assert found(cache(), live) == set()
    assert said == [
        "the compiled program jit_f was removed from the cache: it belongs to uid 12345, not to us",
        "the compiled program jit_f was not kept: it belongs to uid 12345, not to us",
    ]


def test_an_entry_that_is_too_large_is_told_as_such(
    cache: Callable[[], CompileCache], live: Path, said: list[str]
) -> None:
    (live / NAME).touch()
    os.truncate(live / NAME, (2 << 30) + 1)
    assert found(cache(), live) == set()
    told = "has 2 GiB, more than any compiler writes"
    assert said == [f"the compiled program jit_f was not kept: it {told}"]


@pytest.fixture
def irremovable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be removed: the file system is read-only now, for example."""

    def refuse(place: object, path: Path, **_: object) -> bool:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(removal, "remove_file", refuse)


@pytest.mark.usefixtures("irremovable")
def test_an_entry_that_cannot_be_removed_costs_only_the_cache(
    cache: Callable[[], CompileCache], live: Path, said: list[str]
) -> None:
    for name in (NAME, "jit_torn-4567-cache"):
        (live / name).write_bytes(ENTRY[:-9])
    running = cache()
    running.finish_attempt()
    assert running.environment({}) == {}
    assert said == [f"the compilation cache cannot be used: Read-only file system ({live / NAME})"]


@pytest.mark.usefixtures("irremovable")
def test_a_damaged_entry_that_cannot_be_removed_costs_only_the_cache(
    cache: Callable[[], CompileCache], live: Path, said: list[str]
) -> None:
    (live.parent / NAME).write_bytes(ENTRY[:-9])
    assert cache().environment({}) == {}
    assert len(said) == 1


def test_where_there_are_no_hard_links_both_copies_count(
    cache: Callable[[], CompileCache], live: Path, said: list[str]
) -> None:
    size = 0
    for used, name in ((30, "a"), (10, "b")):
        for folder in (live, live.parent):
            (folder / f"jit_{name}-0-cache").write_bytes(zlib.compress(name.encode()))
            size = (folder / f"jit_{name}-0-cache").stat().st_size
        os.utime(live.parent / f"jit_{name}-0-cache", (5, 5))
        os.utime(live / f"jit_{name}-0-cache", (used, 5))
    cache().keep_within(4 * size)
    assert said == []
    cache().keep_within(4 * size - 1)
    for folder in (live, live.parent):
        assert [path.name for path in folder.glob("*-cache")] == ["jit_a-0-cache"]
    assert f"deleted 1 of 2 compiled programs, {2 * size} B" in said[0]


def test_what_was_not_used_for_longest_is_deleted_for_the_limit(
    cache: Callable[[], CompileCache], live: Path, said: list[str]
) -> None:
    running = cache()
    for used, name in ((30, "a"), (10, "b"), (20, "c")):
        (live / f"jit_{name}-0-cache").write_bytes(zlib.compress(name.encode()))
        os.utime(live / f"jit_{name}-0-cache", (used, 5))
    running.finish_attempt()
    size = len(zlib.compress(b"a"))
    running.keep_within(2 * size)
    left = {"jit_a-0-cache", "jit_c-0-cache"}
    assert {path.name for path in live.iterdir()} == left, "reading them did not count as use"
    assert {path.name for path in live.parent.glob("*-cache")} == left
    assert (live.parent / "SHA256SUMS").read_text().count("\n") == 2
    assert said == [
        f"deleted 1 of 3 compiled programs, {size} B: together they may take {2 * size} B "
        "(trainer.init.limits.compile_cache)"
    ]
    assert found(running, live) == left
    assert found(cache(), live) == left
