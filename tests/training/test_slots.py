"""Whenever a writer dies, and whatever happens to the memory, what is read is what was written."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from trainer.slots import HEADER, DamagedRecordError, Slots

SIZES = (5, 0, 70_000)


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    yield descriptor
    os.close(descriptor)


def pieces(number: int) -> list[memoryview]:
    return [memoryview(bytes([number]) * size) for size in SIZES]


def write(memory: int, number: int) -> None:
    Slots(memory, SIZES).write(number, {"what": number}, pieces(number))


def read(memory: int) -> tuple[int, list[bytes]] | None:
    """The newest record, as a later process finds it."""
    found = Slots(memory, SIZES).newest()
    if found is None:
        return None
    assert found.about == {"what": found.number}
    return found.number, [bytes(piece) for piece in Slots(memory, SIZES).read(found, SIZES)]


def test_the_newest_is_read_back(memory: int) -> None:
    assert read(memory) is None
    for number in (1, 2, 3, 7):
        write(memory, number)
        assert read(memory) == (number, [bytes(piece) for piece in pieces(number)])
    Slots(memory, SIZES).clear()
    assert read(memory) is None
    assert os.fstat(memory).st_blocks == 0


class Died(BaseException):
    pass


def test_a_death_between_any_two_writes_leaves_the_record_before(
    memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.pwrite, 0

    def until(last: int) -> None:
        def pwrite(descriptor: int, data: bytes, begin: int) -> int:
            nonlocal calls
            calls += 1
            if calls == last:
                real(descriptor, data[: len(data) // 2], begin)
                raise Died
            return real(descriptor, data, begin)

        monkeypatch.setattr(os, "pwrite", pwrite)

    for number in (1, 2):
        write(memory, number)
    deaths = 0
    while read(memory) == (2, [bytes(piece) for piece in pieces(2)]):
        deaths += 1
        calls = 0
        until(deaths)
        try:
            write(memory, 3)
        except Died:
            assert deaths < 10
        monkeypatch.undo()
    assert read(memory) == (3, [bytes(piece) for piece in pieces(3)])
    assert deaths == 6, "strike out, two pieces, body, prefix; and one that nothing cut short"


@pytest.mark.parametrize("piece", [0, 2])
def test_a_flipped_bit_is_found(memory: int, piece: int) -> None:
    write(memory, 1)
    (size,) = {os.fstat(memory).st_size}
    data = bytearray(os.pread(memory, size, 0))
    place = data.index(bytes(pieces(1)[piece][:5]), HEADER) + (SIZES[0] if piece else 0)
    os.pwrite(memory, bytes([data[place] ^ 4]), place)
    with pytest.raises(DamagedRecordError, match="are not what was written"):
        read(memory)


def test_a_flipped_bit_in_a_header_makes_it_none(memory: int) -> None:
    write(memory, 1)
    write(memory, 2)
    Slots(memory, SIZES).claim()
    second = os.fstat(memory).st_size // 2
    (old,) = os.pread(memory, 1, second + 20)
    os.pwrite(memory, bytes([old ^ 1]), second + 20)
    assert read(memory) == (1, [bytes(piece) for piece in pieces(1)])


def test_what_was_cut_off_is_found(memory: int) -> None:
    write(memory, 1)
    os.ftruncate(memory, HEADER + 10)
    with pytest.raises(DamagedRecordError, match="only 5 of 70000"):
        read(memory)


def test_more_than_the_host_has_is_not_claimed(memory: int) -> None:
    with pytest.raises(OSError, match="they would take 2251799813685248 bytes of memory"):
        Slots(memory, [1 << 50]).claim()
    assert os.fstat(memory).st_size == 0


def test_anything_else_is_no_record(memory: int) -> None:
    os.pwrite(memory, os.urandom(3000), 0)
    assert read(memory) is None
