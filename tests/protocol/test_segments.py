"""A file in segments: few of them, never more written than needed, and always a prefix to read."""

from __future__ import annotations

from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.files.segments import Merge, Segment, merge_objects, next_segment


class Store:
    """Objects by name, and writers that may be killed between any two requests."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.written = 0

    def sizes(self) -> dict[str, int]:
        return {name: len(data) for name, data in self.objects.items()}

    def read(self) -> bytes:
        return b"".join(self.objects[segment.name] for segment in merge_objects(self.sizes()).chain)


class Writer:
    """Writes `data` under an epoch; `requests` are left to it."""

    def __init__(self, store: Store, epoch: int, data: bytes, requests: int = 1 << 30) -> None:
        self.store, self.epoch, self.data, self.requests = store, epoch, data, requests
        self.segments: tuple[Segment, ...] = ()

    def _request(self) -> bool:
        self.requests -= 1
        return self.requests >= 0

    def write(self) -> None:
        plan = next_segment(self.segments, self.epoch, len(self.data))
        if plan is None or not self._request():
            return
        segment, kept = plan
        self.store.objects[segment.name] = self.data[segment.start : segment.end]
        self.store.written += segment.size
        obsolete, self.segments = self.segments[len(kept) :], (*kept, segment)
        for one in obsolete:
            if self._request():
                del self.store.objects[one.name]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60))
def test_all_of_it_is_there_after_each_write_in_few_segments(sizes: list[int]) -> None:
    store = Store()
    writer = Writer(store, 1, b"")
    for number, size in enumerate(sizes):
        writer.data += bytes([number]) * size
        writer.write()
        assert store.read() == writer.data
        assert len(store.objects) <= log2(len(writer.data)) + 1
    assert store.written <= len(writer.data) * (log2(len(writer.data)) + 1)


@given(
    st.lists(st.tuples(st.lists(st.integers(1, 9), max_size=12), st.integers(0, 20)), max_size=5),
    st.lists(st.integers(1, 9), max_size=5),
)
def test_what_a_killed_or_late_owner_writes_harms_nothing(
    owners: list[tuple[list[int], int]], late: list[int]
) -> None:
    store = Store()
    before: Writer | None = None
    for epoch, (sizes, requests) in enumerate(owners):
        writer = Writer(store, epoch, store.read())
        writer.write()  # the whole of it, ahead of anything else
        writer.requests = requests
        for number, size in enumerate(sizes):
            writer.data += bytes([epoch * 16 + number]) * size
            writer.write()
            if before is not None and late:  # it is not dead: it does not know yet
                before.data += bytes([255]) * late[number % len(late)]
                before.write()
        if writer.segments:
            assert store.read() == writer.data[: writer.segments[-1].end]
        before = writer


@pytest.mark.parametrize(
    ("objects", "merge"),
    [
        ({}, Merge()),
        ({"what is this": 3, "00000001-000000000005-000000000005": 0}, Merge()),
        (
            {"00000001-000000000000-000000000004": 4, "00000001-000000000006-000000000009": 3},
            Merge((Segment(1, 0, 4),), (Segment(1, 6, 9),)),
        ),
        (
            {"00000001-000000000000-000000000004": 4, "00000002-000000000004-000000000009": 5},
            Merge((Segment(1, 0, 4),)),
        ),
        (
            {"00000001-000000000000-000000000004": 4, "00000001-000000000004-000000000009": 2},
            Merge((Segment(1, 0, 4),), torn=("00000001-000000000004-000000000009",)),
        ),
        (
            {"00000001-000000000000-000000000004": 4, "00000001-000000000000-000000000009": 9},
            Merge((Segment(1, 0, 9),)),
        ),
    ],
)
def test_what_is_not_whole_is_left_out(objects: dict[str, int], merge: Merge) -> None:
    assert merge_objects(objects) == merge
