"""The compilation cache: what is whole goes in, what is not does not, and damage is found."""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.adapters.compile_cache import CompileCache, is_whole

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
    return lambda: CompileCache(tmp_path / "shared", said.append)


def filled(cache: CompileCache, private: Path) -> set[str]:
    """What a new attempt finds in its directory."""
    assert cache.environment({}, private)["JAX_COMPILATION_CACHE_DIR"] == str(private)
    return {path.name for path in private.iterdir()} if private.is_dir() else set()


def test_what_one_attempt_compiled_the_next_finds(
    tmp_path: Path, cache: Callable[[], CompileCache], said: list[str]
) -> None:
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    running = cache()
    assert filled(running, first) == set()
    first.mkdir()  # as JAX does
    (first / NAME).write_bytes(ENTRY)
    (first / "jit_torn-4567-cache").write_bytes(ENTRY[:-9])
    (first / "xla_gpu_per_fusion_autotune_cache_dir").mkdir()
    running.retire(first)
    assert not first.exists()
    assert said == ["the compilation of jit_torn was not kept: written in part only"]

    assert filled(running, second) == {NAME}
    assert (second / NAME).read_bytes() == ENTRY
    running.retire(second)
    assert filled(cache(), third) == {NAME}
    sums = (tmp_path / "shared" / "SHA256SUMS").read_text()
    assert sums == f"{hashlib.sha256(ENTRY).hexdigest()}  {NAME}\n"
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o700


def test_an_entry_of_a_living_process_is_taken_over_only_when_it_is_whole(
    tmp_path: Path, cache: Callable[[], CompileCache], said: list[str]
) -> None:
    private = tmp_path / "private"
    private.mkdir()
    running = cache()
    with (private / NAME).open("wb") as file:
        file.write(ENTRY[:-9])
        file.flush()
        assert running._take_over(private) == [NAME]
        file.write(ENTRY[-9:])
    assert running._take_over(private) == []
    assert (private / NAME).read_bytes() == ENTRY  # its process may look for it again
    assert filled(running, tmp_path / "next") == {NAME}
    assert said == []


@pytest.mark.parametrize("entry", [ENTRY, ZSTD["with its size"]], ids=["zlib", "zstd"])
@pytest.mark.parametrize("same_supervisor", [True, False])
def test_damage_is_found_and_removed(
    tmp_path: Path,
    cache: Callable[[], CompileCache],
    said: list[str],
    entry: bytes,
    same_supervisor: bool,
) -> None:
    private = tmp_path / "private"
    private.mkdir()
    (private / NAME).write_bytes(entry)
    running = cache()
    running.retire(private)
    flipped = bytearray(entry)
    flipped[len(flipped) // 2] ^= 1
    (tmp_path / "shared" / NAME).write_bytes(flipped)

    later = running if same_supervisor else cache()
    assert filled(later, tmp_path / "next") == set()
    assert said == ["the cached compilation of jit_f is damaged: removed"]
    assert not (tmp_path / "shared" / NAME).exists()

    (tmp_path / "next").mkdir()
    (tmp_path / "next" / NAME).write_bytes(entry)
    later.retire(tmp_path / "next")
    assert filled(cache(), tmp_path / "last") == {NAME}


def test_a_foreign_entry_is_judged_by_itself(
    tmp_path: Path, cache: Callable[[], CompileCache], said: list[str]
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / NAME).write_bytes(ENTRY)
    (shared / "jit_torn-4567-cache").write_bytes(ENTRY[:100])
    assert filled(cache(), tmp_path / "private") == {NAME}
    assert said == ["the cached compilation of jit_torn is damaged: removed"]


@pytest.mark.parametrize(
    "given",
    [
        {"JAX_COMPILATION_CACHE_DIR": "/elsewhere"},
        {"JAX_COMPILATION_CACHE_MAX_SIZE": "1000"},
        {"JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "all"},
    ],
)
def test_a_cache_of_their_own_is_left_alone(
    tmp_path: Path, cache: Callable[[], CompileCache], given: dict[str, str]
) -> None:
    assert cache().environment(given, tmp_path / "private") == {}


def test_what_they_set_of_the_rest_stays(tmp_path: Path, cache: Callable[[], CompileCache]) -> None:
    given = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "2", "OTHER": "x"}
    environ = cache().environment(given, tmp_path / "private")
    assert environ == {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "private"),
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
    }


def test_a_directory_that_cannot_be_written_costs_only_the_cache(
    tmp_path: Path, cache: Callable[[], CompileCache], said: list[str]
) -> None:
    (tmp_path / "shared").write_text("in the way")
    private = tmp_path / "private"
    private.mkdir()
    (private / NAME).write_bytes(ENTRY)
    running = cache()
    assert running.environment({}, tmp_path / "other") != {}
    running.retire(private)
    assert not private.exists()
    assert len(said) == 1
    assert "the compilation cache cannot be used: Not a directory" in said[0]
