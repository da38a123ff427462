"""The copy of a job's folder in a bucket, and what another host makes of it."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from supervisor.adapters.stores.fetch import epoch_after, fetch, read_growing
from supervisor.adapters.stores.journal import DamagedJournalError, FileJournal, History
from supervisor.adapters.stores.mirror import Mirror, MirroredStorage
from supervisor.adapters.stores.requests import ClearQuarantine, take_requests
from supervisor.adapters.stores.storage import LocalStorage
from supervisor.files.segments import ARCHIVE, JOURNAL, SUFFIX, Segment
from supervisor.host.identity import Identity
from supervisor.ports import UnavailableError
from supervisor.protocol import metrics_file
from tests.adapters.test_journal import STORY, tell
from tests.memory_objects import MemoryObjects
from tests.running import eventually

PHASE = "20261121_000000_restartable"
Open = Callable[..., Mirror]


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


@pytest.fixture
def opened(objects: MemoryObjects, folder: Path) -> Iterator[Open]:
    with ExitStack() as stack:

        def mirror(epoch: int = 1, told: list[str] | None = None) -> Mirror:
            made = Mirror(objects, folder, epoch, (told if told is not None else []).append)
            stack.callback(made.close, 5.0)
            made.begin()
            return made

        yield mirror


def write(folder: Path, path: str, data: bytes) -> None:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(data)


def fetched(objects: MemoryObjects, folder: Path) -> list[str]:
    """What was told."""
    folder.mkdir(exist_ok=True)
    told: list[str] = []
    fetch(objects, folder, "old", told.append)
    return told


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_another_host_gets_what_the_job_needs_to_go_on(
    objects: MemoryObjects, folder: Path, opened: Open, tmp_path: Path
) -> None:
    needed = {
        "journal.jsonl": b"a\nb\n",
        f"{PHASE}/run.log": b"[main] the job starts\n",
        f"{PHASE}/params.yaml": b"trainer: {}\n",
        f"{PHASE}/summary.json": b"{}",
        f"{PHASE}/attempts.jsonl": b'{"attempt":1}\n',
        "drills/0": b"",
    }
    stays = {
        f"{PHASE}/attempts/0001/rank0.log": b"step 1\n",
        "compile_cache/SHA256SUMS": b"...",
        "compile_cache/jit_step-1-cache": b"program",
        "compile_cache/executables/step": b"pickle",
        "compile_cache/live/half": b"...",
        ".supervisor.json": b"{}",
        f"{PHASE}/.summary.json.tmp": b"{",
    }
    for path, data in (needed | stays).items():
        write(folder, path, data)
    assert opened().close() is None
    assert objects.objects[f"{PHASE}/attempts/0001/rank0.log"].data == b"step 1\n"
    assert not [path for path in objects.objects if "compile_cache" in path]
    assert f"{PHASE}/attempts.jsonl" not in objects.objects, "it grows: it is in segments"
    fetched(objects, tmp_path / "there")
    assert contents(tmp_path / "there") == needed


def test_the_newest_attempts_are_copied_whatever_their_number(
    objects: MemoryObjects, folder: Path, opened: Open
) -> None:
    attempts = f"{PHASE}/attempts"
    for name in ("1001", "9998", "9999", "10000", "10001", "prefetch2", "prefetch4"):
        write(folder, f"{attempts}/{name}/rank0.failure.json", b"{}")
    assert opened().close() is None
    copied = {path.split("/")[2] for path in objects.objects if path.startswith(attempts)}
    assert copied == {"10000", "10001"}


def test_what_a_link_leads_to_is_not_copied(
    objects: MemoryObjects, folder: Path, opened: Open, tmp_path: Path
) -> None:
    write(tmp_path, "theirs/secret", b"theirs")
    write(folder, f"{PHASE}/run.log", b"")
    (folder / "linked.json").symlink_to(tmp_path / "theirs" / "secret")
    (folder / "drills").symlink_to(tmp_path / "theirs")
    told: list[str] = []
    assert opened(1, told).close() is None
    assert (objects.objects, told) == ({}, [])


def test_what_is_too_large_to_be_ours_is_not_copied(
    objects: MemoryObjects, folder: Path, opened: Open
) -> None:
    record = f"{PHASE}/attempts/0001/rank0.failure.json"
    write(folder, record, b"{}")
    os.truncate(folder / record, 1 << 40)
    told: list[str] = []
    mirror = opened(1, told)
    assert eventually(lambda: len(told) == 1)
    assert mirror.close() is None
    assert len(told) == 1
    assert told[0].startswith(f"not copied to the bucket: {folder / record} has {1 << 40} bytes")
    assert objects.objects == {}


def test_of_a_bucket_only_files_of_ours_are_fetched(objects: MemoryObjects, folder: Path) -> None:
    for name in ("..", ".", ".hidden", "params.yaml"):
        objects.write(f"{PHASE}/{name}", b"x")
    assert fetched(objects, folder) == []
    assert contents(folder) == {f"{PHASE}/params.yaml": b"x"}


def test_durable_means_in_the_bucket(objects: MemoryObjects, folder: Path, opened: Open) -> None:
    storage = MirroredStorage(LocalStorage(folder), opened(), lambda: False)
    for number in range(20):
        line = f"{number}\n".encode()
        storage.append("journal.jsonl", line, durable=True)
        here = storage.read("journal.jsonl", 1 << 20)
        assert read_growing(objects, "journal.jsonl", pytest.fail) == here
    names = [path for path in objects.objects if path.startswith("journal.jsonl.parts/")]
    assert len(names) <= 7


def test_what_is_decided_is_on_its_way_at_once(
    objects: MemoryObjects, folder: Path, opened: Open
) -> None:
    storage = MirroredStorage(LocalStorage(folder), opened(), lambda: False)
    storage.append("journal.jsonl", b"a\n")
    assert eventually(lambda: read_growing(objects, "journal.jsonl", pytest.fail) == b"a\n", 4.0)


def test_a_bucket_that_fails_is_tried_again_and_holds_nobody_up(
    objects: MemoryObjects, folder: Path, opened: Open
) -> None:
    told: list[str] = []
    fails = threading.Event()
    fails.set()

    def fault(operation: str, path: str) -> OSError | None:
        return UnavailableError(errno.EIO, "503 Slow Down") if fails.is_set() else None

    objects.fault = fault
    mirror = opened(1, told)
    storage = MirroredStorage(LocalStorage(folder), mirror, lambda: False)
    storage.append("journal.jsonl", b"a\n")
    assert eventually(lambda: len(told) == 1)
    storage.append("journal.jsonl", b"b\n")
    with pytest.raises(OSError, match="was not copied to the bucket: 503 Slow Down"):
        mirror.flush("journal.jsonl", lambda: False, 0.1)
    with pytest.raises(OSError, match="503 Slow Down"):
        mirror.flush("journal.jsonl", lambda: True)
    fails.clear()
    mirror.flush("journal.jsonl", lambda: False)
    assert read_growing(objects, "journal.jsonl", pytest.fail) == b"a\nb\n"
    assert eventually(lambda: len(told) == 2)
    assert told == [
        "the bucket cannot be written, which is tried again: 503 Slow Down",
        "the bucket can be written again",
    ]
    fails.set()
    storage.append("journal.jsonl", b"c\n")
    assert mirror.close() == "503 Slow Down"


def test_the_next_owner_begins_with_all_of_it_and_clears_up(
    objects: MemoryObjects, folder: Path, opened: Open
) -> None:
    write(folder, "journal.jsonl", b"a\n")
    opened(1).close()
    late = Segment(1, 2, 4)
    write(folder, "journal.jsonl", b"a\nB\n")
    opened(2).close()
    objects.write(f"journal.jsonl.parts/{late.name}", b"X\n")
    assert read_growing(objects, "journal.jsonl", pytest.fail) == b"a\nB\n"
    assert "journal.jsonl.parts/00000001-000000000000-000000000002" not in objects.objects


@pytest.mark.parametrize(
    ("here", "there", "comes_of_it"),
    [
        (b"", b"a\nb\n", b"a\nb\n"),
        (b"a\n", b"a\nb\n", b"a\nb\n"),
        (b"a\nb\nc\n", b"a\nb\n", b"a\nb\nc\n"),  # the bucket did not get the last of it
        (b"a\nX\n", b"a\nb\n", b"a\nb\n"),
        (b"a\nb\n", None, None),
    ],
)
def test_the_bucket_is_the_truth(
    objects: MemoryObjects,
    tmp_path: Path,
    here: bytes,
    there: bytes | None,
    comes_of_it: bytes | None,
) -> None:
    journal = tmp_path / "journal.jsonl"
    journal.write_bytes(here)
    if there is not None:
        objects.write(f"journal.jsonl.parts/{Segment(1, 0, len(there)).name}", there)
    told = fetched(objects, tmp_path)
    assert (journal.read_bytes() if journal.exists() else None) == comes_of_it
    differs = comes_of_it is None or not comes_of_it.startswith(here)
    assert [text for text in told if "set aside" in text] == (told if differs else [])
    aside = tmp_path / ".journal.jsonl.old-1"
    assert (aside.read_bytes() if differs else here) == here


def test_two_files_may_be_set_aside_at_one_time(objects: MemoryObjects, tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    for number in (1, 2):
        journal.write_bytes(b"%d\n" % number)
        fetched(objects, tmp_path)
        assert (tmp_path / f".journal.jsonl.old-{number}").read_bytes() == b"%d\n" % number


def test_an_epoch_is_above_all_others(objects: MemoryObjects) -> None:
    assert epoch_after(objects) == 1
    for epoch in (3, 12, 7):
        objects.write(f"journal.jsonl.parts/{Segment(epoch, 0, 4).name}", b"a\nb\n")
    assert epoch_after(objects) == 13


def test_what_is_missing_in_the_bucket_is_told(objects: MemoryObjects, tmp_path: Path) -> None:
    parts = "journal.jsonl.parts/"
    objects.write(parts + Segment(1, 0, 4).name, b"a\nb\n")
    objects.write(parts + Segment(1, 4, 8).name, b"c")
    objects.write(parts + Segment(1, 8, 10).name, b"e\n")
    told = fetched(objects, tmp_path)
    assert (tmp_path / "journal.jsonl").read_bytes() == b"a\nb\n"
    assert told == [
        f"journal.jsonl: the segment {Segment(1, 4, 8).name} does not hold as many bytes as it "
        "should: left out",
        "journal.jsonl: bytes 4 to 8 are missing in the bucket: what comes after them is left out",
    ]


def test_what_people_ask_in_the_bucket_is_asked_here_once(
    objects: MemoryObjects, folder: Path, opened: Open
) -> None:
    objects.write("requests/1.clear-quarantine.json", b'["3"]')
    too_long = f"requests/{'0' * 240}.clear-quarantine.json"
    objects.write(too_long, b"[]")
    assert opened().close() is None
    assert objects.objects.pop(too_long).data == b"[]"
    assert list(take_requests(folder, print, Identity.of_this_process())) == [
        ClearQuarantine(("3",))
    ]
    assert objects.list("requests").objects == {}


def test_a_large_file_is_not_written_for_every_line(objects: MemoryObjects, folder: Path) -> None:
    """The file grows at the end of each look, so that each look finds that it has changed."""
    log = f"{PHASE}/attempts/0001/rank0.log"
    write(folder, log, b"x" * (1 << 20))
    grows = threading.Event()
    grows.set()

    def grow() -> None:
        if grows.is_set():
            with (folder / log).open("ab") as file:
                file.write(b"one more line\n")

    mirror = Mirror(objects, folder, 1, list[object]().append, grow)
    mirror.begin()
    storage = MirroredStorage(LocalStorage(folder), mirror, lambda: False)
    for number in range(10):
        storage.append("journal.jsonl", f"{number}\n".encode(), durable=True)
    assert eventually(lambda: (folder / log).stat().st_size > (1 << 20))
    assert len(objects.objects[log].data) == 1 << 20
    grows.clear()
    mirror.close()
    assert objects.objects[log].data == (folder / log).read_bytes()


def test_a_journal_that_was_compacted_is_in_the_bucket_behind_its_archive(
    objects: MemoryObjects, folder: Path, opened: Open, tmp_path: Path
) -> None:
    storage = MirroredStorage(LocalStorage(folder), opened(), lambda: False)
    for generation in range(3):
        storage.append("journal.jsonl", b"a record\n" * 100, durable=True)
        storage.make_directory("journal")
        archived = (folder / "journal.jsonl").read_bytes()
        storage.replace(f"journal/{generation}.jsonl", archived)
        storage.replace("journal.jsonl", b"a snapshot\n")
        storage.append("journal.jsonl", b"and more\n", durable=True)
        there = read_growing(objects, "journal.jsonl", print)
        assert there == b"a snapshot\nand more\n" == (folder / "journal.jsonl").read_bytes()
        assert objects.read(f"journal/{generation}.jsonl").data == archived
    late = Segment(1, 0, 4, generation=9)
    objects.write(f"journal.jsonl.parts/{late.name}", b"old\n")
    opened(epoch=2).flush("journal.jsonl", lambda: False)
    fetched(objects, tmp_path / "there")
    assert (tmp_path / "there" / "journal.jsonl").read_bytes() == b"a snapshot\nand more\n"


def compacted(folder: Path) -> None:
    """A job here whose journal has segments."""
    tell(folder, *STORY, after=4)
    assert len(list((folder / ARCHIVE).iterdir())) > 1


def test_a_journal_that_the_bucket_has_lost_begins_no_new_job(
    objects: MemoryObjects, folder: Path, opened: Open, tmp_path: Path
) -> None:
    """Neither on a host that has a copy nor on another; both read the archive in the bucket."""
    compacted(folder)
    assert opened().close() is None
    before = FileJournal(LocalStorage(folder)).peek()
    for host in (folder, tmp_path / "there"):
        fetched(objects, host)
        mirror = Mirror(objects, host, 2, pytest.fail)
        journal = FileJournal(MirroredStorage(LocalStorage(host), mirror, lambda: False))
        assert len(list(journal.all_transitions(journal.read()))) == len(STORY)
    assert not (tmp_path / "there" / ARCHIVE).exists(), "only who needs it reads it"
    assert before.snapshot is not None
    for name in list(objects.list(f"{JOURNAL}{SUFFIX}").objects):
        objects.delete(f"{JOURNAL}{SUFFIX}/{name}")
    for host in (folder, tmp_path / "there", tmp_path / "third"):
        told = fetched(objects, host)
        assert any(text.startswith(JOURNAL) for text in told) == (host.name != "third")
        mirror = Mirror(objects, host, 2, pytest.fail)
        storage = MirroredStorage(LocalStorage(host), mirror, lambda: False)
        with pytest.raises(DamagedJournalError, match=r"is missing, but journal/ has \d segments"):
            FileJournal(storage).read()
    for name in list(objects.list(ARCHIVE).objects):
        objects.delete(f"{ARCHIVE}/{name}")
    mirror = Mirror(objects, folder, 2, pytest.fail)
    fetched(objects, folder)
    storage = MirroredStorage(LocalStorage(folder), mirror, lambda: False)
    assert FileJournal(storage).read().number == 0, "the bucket is the truth: it was emptied"


def test_a_journal_that_is_not_whole_in_the_bucket_begins_no_new_job(
    objects: MemoryObjects, folder: Path, tmp_path: Path
) -> None:
    tell(folder, *STORY)
    data = (folder / JOURNAL).read_bytes()
    cut = data.index(b"\n") + 1
    objects.write(f"{PHASE}/params.yaml", b"")

    def history_of(start: int, kept: bytes, host: Path) -> History:
        """What a new host reads where the one segment of the journal holds what is `kept`."""
        name = f"{JOURNAL}{SUFFIX}/{Segment(1, start, len(data)).name}"
        objects.write(name, kept)
        fetched(objects, host)
        objects.delete(name)
        return FileJournal(LocalStorage(host)).read()

    assert history_of(0, data[:-5], tmp_path / "torn").number == len(STORY) - 1
    for start, kept in ((cut, data[cut:]), (0, b"")):
        with pytest.raises(DamagedJournalError, match="supervise repair"):
            history_of(start, kept, tmp_path / f"{start}")


def test_metrics_that_were_cut_are_copied_anew(
    objects: MemoryObjects, folder: Path, opened: Open, tmp_path: Path
) -> None:
    file = folder / metrics_file.NAME
    lines = [metrics_file.encoded(0.0, "phase1", 1, step, {}) for step in range(1, 9)]
    mirror = opened()
    metrics_file.append(file, b"".join(lines[:6]))
    mirror.flush(metrics_file.NAME, lambda: False)
    metrics_file.cut(file, lambda line: line["step"] > 2)
    metrics_file.append(file, b"".join(lines[2:]))
    assert mirror.close() is None
    fetched(objects, tmp_path / "there")
    assert contents(tmp_path / "there") == {metrics_file.NAME: b"".join(lines)}


def test_metrics_of_another_host_replace_ours_unless_ours_go_on_from_them(
    objects: MemoryObjects, folder: Path, opened: Open, tmp_path: Path
) -> None:
    write(folder, metrics_file.NAME, b"1\n2\n")
    assert opened().close() is None
    there = tmp_path / "there"
    for ours, wanted in ((b"1\n9\n", b"1\n2\n"), (b"1\n", b"1\n2\n"), (b"1\n2\n3\n", b"1\n2\n3\n")):
        write(there, metrics_file.NAME, ours)
        assert fetched(objects, there) == []
        assert contents(there) == {metrics_file.NAME: wanted}
