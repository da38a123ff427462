"""A journal is cut or overwritten anywhere: no whole record is lost without being kept, the job
can always go on, and no attempt gets a number twice."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from supervisor.adapters.stores.journal import DamagedJournalError, FileJournal
from supervisor.adapters.stores.storage import LocalStorage
from supervisor.core.decisions import StartWorkers
from supervisor.core.events import SupervisorStarted
from supervisor.core.machine import step
from supervisor.core.state import JobState
from supervisor.files.segments import ARCHIVE, DAMAGED, JOURNAL, TORN
from supervisor.ports import Transition
from supervisor.protocol.reading import UnreadableError, parse_object
from supervisor.repair import repair
from tests.adapters.test_journal import NOW, POLICY, STORY, tell

ATTEMPTS = 3
"""The highest number of an attempt in the story: it has a folder."""


@pytest.fixture(scope="module", params=[3, 4, 1000], ids=lambda after: f"segments of {after}")
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model_dir with a journal that was compacted after so many records."""
    folder = tmp_path_factory.mktemp("job")
    FileJournal(LocalStorage(folder)).record_config(NOW, [{"trainer": {}}], [])
    tell(folder, *STORY, after=request.param)
    for attempt in range(1, ATTEMPTS + 1):
        (folder / f"20250304_050607_restartable/attempts/{attempt:04d}").mkdir(parents=True)
    return folder


def records(folder: Path) -> set[str]:
    """All whole records in the files that a person can find."""
    files = [folder / JOURNAL, *folder.glob(f"{DAMAGED}*"), *folder.glob(f"{TORN}*")]
    files += (folder / ARCHIVE).glob("*")
    return {line for path in files if path.exists() for line in whole(path.read_bytes())}


def whole(data: bytes) -> Iterator[str]:
    for line in data.splitlines():
        try:
            yield json.dumps(json.loads(line))
        except ValueError:
            continue


def goes_on(folder: Path) -> JobState:
    """What a supervisor does that starts there; with a repair first, if it asks for one."""
    storage, before = LocalStorage(folder), records(folder)
    journal = FileJournal(storage)
    try:
        history = journal.read()
    except DamagedJournalError:
        assert repair(storage, NOW, ATTEMPTS) is not None
        history = journal.read()
        assert repair(storage, NOW, ATTEMPTS) is None
    event = SupervisorStarted(0.5, history.state.job or "other", POLICY, 5, attempt=ATTEMPTS)
    state, decisions = step(history.state, event, POLICY)
    journal.append(Transition(event, history.state, state, decisions, NOW), durable=True)
    assert before <= records(folder), "a whole record is lost"
    starts = [decision for decision in decisions if isinstance(decision, StartWorkers)]
    assert all(decision.attempt > ATTEMPTS for decision in starts)
    assert state.attempt >= ATTEMPTS
    again = FileJournal(storage)
    assert again.read().state.durable() == state.durable()
    assert list(again.all_transitions(again.read()))
    return state


def on(job: Path, content: bytes) -> JobState:
    """What becomes of the job where its journal has this content."""
    folder = job.parent / f"{job.name}.copy"
    shutil.copytree(job, folder)
    try:
        (folder / JOURNAL).write_bytes(content)
        return goes_on(folder)
    finally:
        shutil.rmtree(folder)


def test_cut_in_its_first_and_last_line_or_between_lines(job: Path) -> None:
    data = (job / JOURNAL).read_bytes()
    ends = [index + 1 for index, byte in enumerate(data) if byte == ord("\n")]
    last = ends[-2] if len(ends) > 1 else 0
    for size in {0, 1, 100, ends[0] - 1, *ends, last + 1, last + 50, len(data) - 1}:
        on(job, data[:size])


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_cut_or_overwritten_anywhere(job: Path, draw: st.DataObject) -> None:
    data = (job / JOURNAL).read_bytes()
    one, other = (draw.draw(st.integers(0, len(data))) for _ in range(2))
    start, end = min(one, other), max(one, other)
    on(job, data[:start])
    on(job, data[:start] + b"\0" * (end - start) + data[end:])


def test_no_part_of_a_record_is_a_record(job: Path) -> None:
    """So it does not matter at which byte a line is cut: every byte of every line is tried here,
    and what a supervisor does about it at some of them below."""
    for line in (job / JOURNAL).read_bytes().splitlines():
        assert parse_object(line, JOURNAL)
        for size in range(len(line)):
            with pytest.raises(UnreadableError):
                parse_object(line[:size], JOURNAL)


@pytest.mark.slow
def test_cut_in_every_line(job: Path) -> None:
    """At both ends of each line, and at ten places in it that differ from line to line."""
    data, start = (job / JOURNAL).read_bytes(), 0
    for number, line in enumerate(data.splitlines(keepends=True)):
        step = max(1, len(line) // 10)
        inside = range(number % step, len(line), step)
        for size in {0, 1, 2, *inside, len(line) - 2, len(line) - 1}:
            on(job, data[: start + size])
        start += len(line)


@pytest.mark.parametrize("journal", [None, b"", b"\xef\xbb\xbf", b"without its first line"])
def test_what_segments_tell_is_not_lost_with_the_journal(
    tmp_path: Path, journal: bytes | None
) -> None:
    """A snapshot follows from the segment before it."""
    tell(tmp_path, *STORY, after=4)
    path, storage = tmp_path / JOURNAL, LocalStorage(tmp_path)
    before = FileJournal(storage).read()
    assert before.snapshot is not None
    data = path.read_bytes()
    _, _, rest = data.partition(b"\n")
    if journal is None:
        path.unlink()
    elif journal == b"":
        path.write_bytes(b"")
    else:
        path.write_bytes(journal + data if journal.startswith(b"\xef") else rest)
    done = repair(storage, NOW, 0)
    assert done is not None
    assert "its beginning from journal/" in done
    after = FileJournal(storage).read()
    assert after.past.directories == before.past.directories
    if journal:
        assert after.state.durable() == before.state.durable()
        assert len(list(FileJournal(storage).all_transitions(after))) == len(STORY)
    else:
        assert after.state.durable() == before.snapshot.state


def test_every_beginning_may_be_damaged(tmp_path: Path) -> None:
    """Those of the journal and of all segments but the oldest."""
    tell(tmp_path, *STORY, after=3)
    storage = LocalStorage(tmp_path)
    before = FileJournal(storage).read()
    _, *later = sorted((tmp_path / ARCHIVE).iterdir())
    assert len(later) > 1
    for path in (*later, tmp_path / JOURNAL):
        path.write_bytes(b"\0" * 30 + path.read_bytes()[30:])
    assert repair(storage, NOW, 0) is not None
    after = FileJournal(storage).read()
    assert after.state.durable() == before.state.durable()
    everything = [one.event for one in FileJournal(storage).all_transitions(after)]
    assert everything == list(STORY)


def test_a_line_has_one_end(tmp_path: Path) -> None:
    """A carriage return between the tokens of a record is white space, for whoever reads it."""
    tell(tmp_path, *STORY)
    path, storage = tmp_path / JOURNAL, LocalStorage(tmp_path)
    data = path.read_bytes().replace(b'"n":2,', b'"n":2,\r')
    path.write_bytes(data + b"{\n" + b"\r")
    assert len(data.split(b"\r")) == 2
    assert repair(storage, NOW, 0) is not None
    history = FileJournal(storage).read()
    assert len(list(FileJournal(storage).all_transitions(history))) == len(STORY)


def test_a_damaged_first_line_without_segments_costs_that_line_alone(tmp_path: Path) -> None:
    """It holds the config, which is recorded anew."""
    storage = LocalStorage(tmp_path)
    FileJournal(storage).record_config(NOW, [{"trainer": {}}], [])
    tell(tmp_path, *STORY)
    before = FileJournal(storage).read()
    path = tmp_path / JOURNAL
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    done = repair(storage, NOW, 0)
    assert done is not None
    assert "1 line after it is ignored" in done
    after = FileJournal(storage).read()
    assert (after.state.durable(), after.config) == (before.state.durable(), None)
    assert len(list(FileJournal(storage).all_transitions(after))) == len(STORY)


def test_a_newer_journal_is_no_damaged_one(tmp_path: Path) -> None:
    tell(tmp_path, *STORY)
    path, storage = tmp_path / JOURNAL, LocalStorage(tmp_path)
    newer = path.read_bytes().replace(b'{"v":2,', b'{"v":3,')
    first, _, rest = newer.partition(b"\n")
    for content in (newer, first.replace(b'{"v":3,', b'{"v":2,') + b"\n" + rest):
        path.write_bytes(content)
        with pytest.raises(DamagedJournalError, match=r"; run that version, or a later one$"):
            repair(storage, NOW, 0)
        assert path.read_bytes() == content
    path.write_bytes(newer.replace(b'{"v":3,', b'{"v":2,').replace(b'{"v":2,', b'{"v":3,', 1))
    with pytest.raises(DamagedJournalError, match="supervise repair"):
        FileJournal(storage).read()
    assert repair(storage, NOW, 0) is not None
