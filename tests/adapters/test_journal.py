"""The journal: what is written is what is read, a torn end is cut, and damage is never ignored."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from supervisor.adapters.stores.journal import (
    COMPACT_AFTER,
    DamagedJournalError,
    FileJournal,
    JournalError,
    phases_on_record,
    replay,
)
from supervisor.adapters.stores.storage import LocalStorage
from supervisor.core.budget import Charge
from supervisor.core.decisions import Decision
from supervisor.core.events import (
    VOLATILE,
    CheckpointCommitted,
    DeadlineReached,
    Event,
    Noticed,
    PhaseBegun,
    SupervisorStarted,
    WorkersGone,
    WorkersObserved,
    WorkersStarted,
)
from supervisor.core.machine import step
from supervisor.core.policy import PhasePolicy, RestartPolicy
from supervisor.core.state import JobState, Status
from supervisor.diagnosis.failure import Failure, Verdict, WorkerExit
from supervisor.diagnosis.success import Success
from supervisor.files.segments import ARCHIVE, JOURNAL
from supervisor.history.past import Past
from supervisor.history.writer import writer
from supervisor.host.notice import Notice
from supervisor.ports import Transition
from supervisor.protocol.messages import Stage

NOW = datetime(2025, 3, 4, 5, 6, 7, 890, tzinfo=UTC)
POLICY = RestartPolicy((PhasePolicy("one", 2, 3, Success(step=10, committed=True)),))
KILLED = Failure("killed", Verdict.RESTART, "rule", "why", "what", "SIGKILL", 0, "exit",
                 Charge.RESTARTS, traceback="trace\nback")  # fmt: skip
EXITS = (WorkerExit(0, signal="SIGKILL", told_to_stop=True),)

STORY: tuple[Event, ...] = (
    SupervisorStarted(0.0, "job", POLICY, None),
    PhaseBegun(0.1, 0, "20250304_050607_restartable", None),
    WorkersStarted(0.2, 1, (7,)),
    CheckpointCommitted(3.0, 0, 5),
    WorkersObserved(4.0, 1, (7,), EXITS),
    WorkersGone(4.2, 1, KILLED, None, 6, 5),
    WorkersStarted(4.4, 2, (8,)),
    WorkersObserved(5.0, 2, (8,), EXITS),
    WorkersGone(5.2, 2, KILLED, 5, None, 5),
    DeadlineReached(1e9),
    SupervisorStarted(0.5, "job", POLICY, 5),
)


def golden(name: str) -> bytes:
    """A journal that some version has written; see `record_journals`."""
    return (Path(__file__).with_name("journals") / f"{name}.jsonl").read_bytes()


def journal(folder: Path) -> FileJournal:
    return FileJournal(LocalStorage(folder))


def unchecked(folder: Path) -> list[Transition]:
    """What is recorded, whether it follows or not."""
    return replay((folder / JOURNAL).read_bytes(), JOURNAL, checked=False).transitions


def tell(
    folder: Path, *events: Event, after: int = COMPACT_AFTER, policy: RestartPolicy = POLICY
) -> list[Transition]:
    """Journal what the core makes of `events`, as the runtime does; compact it `after` records."""
    state, told = JobState(), []
    journal = FileJournal(LocalStorage(folder), compact_after=after)
    for event in events:
        then, decisions = step(state, event, policy)
        told.append(Transition(event, state, then, decisions, NOW))
        journal.append(told[-1], durable=False)
        state = then
    return told


@pytest.mark.parametrize("length", range(len(STORY) + 1))
def test_replaying_is_folding(length: int, tmp_path: Path) -> None:
    told = tell(tmp_path, *STORY[:length])
    history = journal(tmp_path).read()
    assert history.transitions == [
        replace(one, before=one.before.durable(), after=one.after.durable()) for one in told
    ]
    assert history.state.durable() == (told[-1].after.durable() if told else JobState())
    assert history.torn_bytes == 0


def test_the_story_goes_somewhere() -> None:
    """Else the test above says nothing."""
    state = JobState()
    kinds = set()
    for event in STORY:
        state, decisions = step(state, event, POLICY)
        kinds |= {type(decision).__name__ for decision in decisions}
    assert kinds >= {"BeginPhase", "StartWorkers", "KillWorkers", "Wait"}
    assert state.attempt == 3


numbers = st.floats(-1e15, 1e15)
st.register_type_strategy(float, numbers)  # others are damage: see `history.encoding`
policies = st.builds(
    RestartPolicy,
    phases=st.lists(
        st.builds(
            PhasePolicy,
            name=st.text(),
            success=st.from_type(Success),
            deadlines=st.dictionaries(st.sampled_from(Stage), numbers),
        )
    ).map(tuple),
    grace_period=numbers,
)


def events(kind: type) -> st.SearchStrategy[Any]:
    """Any event of this kind."""
    if kind is SupervisorStarted:
        return st.builds(SupervisorStarted, policy=policies)
    return st.from_type(kind)


JOURNALLED = [kind for kind in get_args(Event) if kind not in VOLATILE]


@pytest.mark.parametrize("kind", JOURNALLED, ids=lambda kind: kind.__name__)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_event_is_read_back(kind: type, tmp_path: Path, data: st.DataObject) -> None:
    event = data.draw(events(kind))
    if isinstance(event, PhaseBegun):
        event = replace(event, directory="20250304_050607_restartable")
    (tmp_path / JOURNAL).unlink(missing_ok=True)
    first, second = STORY[0], Transition(event, JobState(), JobState(), (), NOW)
    tell(tmp_path, first)
    journal(tmp_path).append(second, durable=True)
    read = unchecked(tmp_path)[1]
    assert repr(read.event) == repr(event)  # repr: nan is not itself
    assert read.wall == NOW


@pytest.mark.parametrize("kind", get_args(Decision), ids=lambda kind: kind.__name__)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_decision_is_read_back(kind: type, tmp_path: Path, data: st.DataObject) -> None:
    decisions = tuple(data.draw(st.lists(st.from_type(kind), max_size=3)))
    (tmp_path / JOURNAL).unlink(missing_ok=True)
    transition = Transition(STORY[0], JobState(), JobState(), decisions, NOW)
    journal(tmp_path).append(transition, durable=False)
    assert repr(unchecked(tmp_path)[0].decisions) == repr(decisions)


def test_text_that_is_no_unicode_does_not_make_it_unreadable(tmp_path: Path) -> None:
    """File names may hold anything; a journal that cannot be read stops the job for good."""
    event = Noticed(0.1, Notice("observer-failed", "dir\udcff"))
    transition = Transition(event, JobState(), JobState(), (), NOW)
    tell(tmp_path, STORY[0])
    journal(tmp_path).append(transition, durable=False)
    assert len(journal(tmp_path).read().transitions) == 2


def test_no_journal_is_a_new_job(tmp_path: Path) -> None:
    history = journal(tmp_path).read()
    assert (history.state, history.config, history.transitions) == (JobState(), None, [])


def test_the_last_config_is_kept(tmp_path: Path) -> None:
    for seed in (1, 2):
        journal(tmp_path).record_config(NOW, [{"trainer": {"seed": seed}}], ["what changed"])
    tell(tmp_path, *STORY[:2])
    history = journal(tmp_path).read()
    assert history.config == [{"trainer": {"seed": 2}}]
    assert len(history.transitions) == 2


def hosts(lost_after: float) -> list[dict[str, Any]]:
    """A config with so long a time for hosts that are lost."""
    return [{"trainer": {"init": {"hosts": {"engine": "ray", "lost_after": lost_after}}}}]


@pytest.mark.parametrize("compact_after", [1, COMPACT_AFTER])
def test_the_longest_time_of_a_lost_host_counts_until_an_attempt_under_a_shorter_one_has_ended(
    tmp_path: Path, compact_after: int
) -> None:
    def reopened() -> FileJournal:
        return FileJournal(LocalStorage(tmp_path), compact_after=compact_after)

    def longest() -> float:
        told = reopened().read().longest_lost_after
        assert told == reopened().peek().longest_lost_after
        return told

    def tell_more(*events: Event) -> None:
        state = reopened().read().state
        for event in events:
            after, decisions = step(state, event, POLICY)
            transition = Transition(event, state, after, decisions, NOW)
            reopened().append(transition, durable=True)
            state = after

    assert longest() == 0.0
    reopened().record_config(NOW, hosts(45.0), [])
    tell_more(*STORY[:3])
    assert longest() == 45.0
    for _ in range(2):
        reopened().record_config(NOW, hosts(4.0), [])
        tell_more(SupervisorStarted(0.3, "job", POLICY, None))
        assert longest() == 45.0
    reopened().record_config(NOW, [{"trainer": {"init": {}}}], [])
    assert longest() == 45.0, "who runs no hosts waits for it too"
    reopened().record_config(NOW, hosts(4.0), [])
    attempt = reopened().read().state.attempt
    tell_more(WorkersGone(0.5, attempt, KILLED, None, None, None))
    assert longest() == 4.0


def test_a_torn_end_is_cut_and_kept_wherever_it_tore(tmp_path: Path) -> None:
    told = tell(tmp_path, *STORY[:3])
    path = tmp_path / JOURNAL
    whole = path.read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for cut in (last + 1, last + 40, len(whole) - 2):
        path.write_bytes(whole[:cut])
        assert journal(tmp_path).peek().torn_bytes == cut - last
        assert path.read_bytes() == whole[:cut], "who only looks on mends nothing"
        history = journal(tmp_path).read()
        assert history.torn_bytes == cut - last
        assert [one.event for one in history.transitions] == [one.event for one in told[:2]]
        assert path.read_bytes() == whole[:last]
        assert (tmp_path / history.torn_file).read_bytes() == whole[last:cut]
        assert journal(tmp_path).read().torn_bytes == 0


def test_a_record_that_lacks_only_its_end_counts(tmp_path: Path) -> None:
    told = tell(tmp_path, *STORY[:3])
    path = tmp_path / JOURNAL
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    history = journal(tmp_path).read()
    assert [one.event for one in history.transitions] == [one.event for one in told]
    assert history.torn_bytes == 0
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "content",
    [b"\0" * 3000, b"my precious notes", b"x" * 100_000, b'{"v":2,"by":"0.1', b"\0\n", b"\n"],
)
def test_what_is_no_journal_begins_no_new_job(tmp_path: Path, content: bytes) -> None:
    (tmp_path / JOURNAL).write_bytes(content)
    for look in (journal(tmp_path).peek, journal(tmp_path).read):
        with pytest.raises(DamagedJournalError, match=r"line 1 is damaged: .*; bring back"):
            look()
    assert (tmp_path / JOURNAL).read_bytes() == content


@pytest.mark.parametrize("content", [None, b""])
def test_a_journal_that_is_gone_begins_no_new_job(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / JOURNAL).write_bytes(content)
    assert journal(tmp_path).read().number == 0, "there never was one"
    (tmp_path / ARCHIVE).mkdir()
    (tmp_path / ARCHIVE / "mine.txt").touch()
    assert journal(tmp_path).read().number == 0
    (tmp_path / ARCHIVE / "000000000013-0123abcd.jsonl").touch()
    what = "missing" if content is None else "empty"
    with pytest.raises(DamagedJournalError, match=f"is {what}, but journal/ has 1 segment of its"):
        journal(tmp_path).read()


def test_a_journal_is_not_empty_where_a_job_has_run(tmp_path: Path) -> None:
    (tmp_path / "20250304_050607_restartable").mkdir()
    assert journal(tmp_path).read().number == 0, "somebody has moved it away"
    (tmp_path / JOURNAL).touch()
    with pytest.raises(DamagedJournalError, match=r"is empty, but the job has run: .*_restartable"):
        journal(tmp_path).read()


def test_who_reads_a_segment_sees_that_it_was_changed_or_is_gone(tmp_path: Path) -> None:
    tell(tmp_path, *STORY[:7], after=3)
    history = journal(tmp_path).read()
    (oldest, *_) = sorted((tmp_path / ARCHIVE).iterdir())
    data = oldest.read_bytes()
    oldest.write_bytes(data.replace(b'"attempt":1', b'"attempt":2'))
    with pytest.raises(DamagedJournalError, match=rf"{oldest.name} is damaged or was changed"):
        list(journal(tmp_path).all_transitions(history))
    oldest.unlink()
    with pytest.raises(JournalError, match=rf"{oldest.name} is missing"):
        list(journal(tmp_path).all_transitions(history))


LINE = {"v": 1, "time": NOW.isoformat(), "decisions": []}


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"garbage",
        b"\xff\xfe",
        b"3",
        b"[]",
        b"[" * 100_000,
        b"{}",
        b'{"v": 1}',
        json.dumps({**LINE, "event": {"kind": "Nonsense"}}).encode(),
        json.dumps({**LINE, "event": {"kind": "Wait", "seconds": 1, "reason": ""}}).encode(),
        json.dumps({**LINE, "event": {"kind": ["x"]}}).encode(),
        json.dumps({**LINE, "event": {"at": 1}}).encode(),
        json.dumps({**LINE, "event": {"kind": "DeadlineReached", "at": "soon"}}).encode(),
        json.dumps({**LINE, "event": {"kind": "DeadlineReached"}}).encode(),
        json.dumps({**LINE, "event": "DeadlineReached"}).encode(),
        json.dumps({**LINE, "time": 3, "event": {"kind": "DeadlineReached", "at": 1}}).encode(),
        json.dumps(
            {**LINE, "decisions": [{"kind": "DeadlineReached", "at": 1}],
             "event": {"kind": "DeadlineReached", "at": 1}}
        ).encode(),
    ],
)  # fmt: skip
def test_a_damaged_line_in_the_middle_stops_everything(line: bytes, tmp_path: Path) -> None:
    tell(tmp_path, *STORY[:4])
    path = tmp_path / JOURNAL
    lines = path.read_bytes().splitlines()
    damaged = b"\n".join([*lines[:2], line, *lines[3:]]) + b"\n"
    path.write_bytes(damaged)
    with pytest.raises(JournalError, match=r"journal\.jsonl line 3 is damaged"):
        journal(tmp_path).read()
    assert path.read_bytes() == damaged


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            json.dumps({**LINE, "v": 3, "by": "9.0+x"}) + "\n",
            r"line 1 has format 3, which a newer version of supervise has written \(9\.0\+x\)",
        ),
        (
            json.dumps({**LINE, "event": {"kind": "DeadlineReached", "at": 1}}) + "\n",
            "line 1 comes before any SupervisorStarted",
        ),
    ],
)
def test_a_journal_of_another_kind_is_refused(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_text(content)
    with pytest.raises(JournalError, match=message):
        journal(tmp_path).read()


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../victim", "/tmp/x/victim", "a\0b", "20250304_050607_restartable/..",
     "20250304_050607_restartable\n", "x_restartable", "٢0250304_050607_restartable"],
)  # fmt: skip
def test_no_folder_but_that_of_a_phase_is_taken_from_it(name: str, tmp_path: Path) -> None:
    tell(tmp_path, STORY[0], PhaseBegun(0.1, 0, name, None))
    with pytest.raises(
        DamagedJournalError, match=r"journal\.jsonl line 2 names the folder .*; bring back"
    ):
        journal(tmp_path).peek()


def test_what_cannot_be_written_or_read_is_a_journal_error(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).mkdir()
    with pytest.raises(
        JournalError, match=r"journal\.jsonl is a directory, not a regular file; move"
    ):
        journal(tmp_path).read()
    nowhere = tmp_path / "nowhere"
    with pytest.raises(JournalError, match="cannot be written: No such file"):
        journal(nowhere).record_config(NOW, [], [])


def test_a_torn_end_that_cannot_be_cut_is_a_journal_error(tmp_path: Path) -> None:
    tell(tmp_path, *STORY[:3])
    (tmp_path / JOURNAL).write_bytes((tmp_path / JOURNAL).read_bytes() + b"torn")
    (tmp_path / f".{JOURNAL}.tmp").mkdir()  # where the mended one would be written
    with pytest.raises(JournalError, match=r"cannot be repaired: .*it is a folder"):
        journal(tmp_path).read()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"hello": 1}', "'v' is missing in it"),
        (
            '{"v": 1, "time": "2025-01-01T00:00Z", "event": {"kind": "Hello"}, "decisions": []}',
            "'Hello'",
        ),
        ('{"v": 1, "time": "2025-01-01T00:00Z", "event": {"kind": "PhaseBegun"}}', "at is missing"),
        ('{"v": 1, "time": "2025-01-01"}', "time is no time of a clock"),
        ('{"v": 1, "time": "9999-12-31T23:59:59-23:59"}', "time is no time of a clock"),
        ('{"v": 1, "time": "0001-01-01T00:00:00+23:59"}', "time is no time of a clock"),
        ('{"v": 1, "config": 3}', "it does not have the form that supervise writes"),
    ],
)
def test_what_is_wrong_with_a_line_is_told_in_words(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / JOURNAL).write_text(f"{line}\n")
    with pytest.raises(DamagedJournalError, match=r"line 1 is damaged: .*; bring back") as error:
        journal(tmp_path).read()
    assert said in str(error.value)
    assert "Error" not in str(error.value)


def test_the_folders_of_the_phases_are_looked_up(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    assert phases_on_record(storage) == ()
    tell(tmp_path, *STORY)
    assert phases_on_record(storage) == ("20250304_050607_restartable",)
    (tmp_path / JOURNAL).write_text("none\n")
    assert phases_on_record(storage) == ()


def test_in_an_older_journal_every_fatal_failure_was_certain(tmp_path: Path) -> None:
    """Its lines do not know of guesses: the job ended at once."""
    (tmp_path / JOURNAL).write_bytes(golden("format1_older"))
    state = journal(tmp_path).read().state
    assert (state.status, state.exit_code, state.attempt) == (Status.FAILED, 70, 1)
    assert state.last_failure is not None
    assert (state.last_failure.rule, state.last_failure.is_certain) == ("missing-file", True)


def test_an_edited_journal_does_not_lead_to_another_past(tmp_path: Path) -> None:
    tell(tmp_path, *STORY[:5])
    path = tmp_path / JOURNAL
    text = path.read_text()
    for there, other, line, recorded in (
        ('"WorkersStarted","at":0.2,"attempt":1', '"WorkersStarted","at":0.2,"attempt":7', 3, ""),
        ('"StartWorkers","attempt":1', '"StartWorkers","attempt":7', 2, "7"),
        ('"highest":5', '"highest":50', 4, "50"),
    ):
        assert there in text
        path.write_text(text.replace(there, other))
        said = rf"jsonl line {line} \(\w+\) does not follow .* recorded as {recorded}.*, but"
        with pytest.raises(DamagedJournalError, match=said):
            journal(tmp_path).read()
    path.write_text(text)
    journal(tmp_path).read()


def test_what_another_version_decided_stays_decided(tmp_path: Path) -> None:
    """Whatever its rules were: no step of ours is asked where the job stands."""
    tell(tmp_path, *STORY[:5])
    path = tmp_path / JOURNAL
    text = path.read_text().replace(writer(), "0.0.1+other")
    path.write_text(text.replace('"StartWorkers","attempt":1', '"StartWorkers","attempt":7'))
    history = journal(tmp_path).read()
    assert history.state.attempt == 1, "as its state says"
    assert "StartWorkers(attempt=7" in repr(history.transitions[1].decisions)


def test_a_record_that_is_missing_or_there_twice_is_told(tmp_path: Path) -> None:
    tell(tmp_path, *STORY[:5])
    path = tmp_path / JOURNAL
    lines = path.read_bytes().splitlines(keepends=True)
    for damaged in ([*lines[:2], *lines[3:]], [*lines[:3], *lines[2:]], lines[1:]):
        path.write_bytes(b"".join(damaged))
        with pytest.raises(DamagedJournalError, match=r"is record \d where \d should be"):
            journal(tmp_path).read()


class Killed(BaseException):
    """The process ends here."""


class Dying(LocalStorage):
    """Ends the process before its write number `writes`."""

    def __init__(self, root: Path, writes: int) -> None:
        super().__init__(root)
        self.writes = writes

    def _write(self) -> None:
        self.writes -= 1
        if self.writes < 0:
            raise Killed

    def replace(self, path: str, data: bytes) -> None:
        """See `ports.Storage`."""
        self._write()
        super().replace(path, data)

    def append(
        self, path: str, data: bytes, *, at: int | None = None, durable: bool = False
    ) -> None:
        """See `ports.Storage`."""
        self._write()
        super().append(path, data, at=at, durable=durable)


@pytest.mark.parametrize("writes", range(40))
def test_compaction_loses_nothing_wherever_it_is_killed(tmp_path: Path, writes: int) -> None:
    """Every third record is followed by a compaction; whoever is killed goes on behind it."""
    state, storage, told = JobState(), Dying(tmp_path, writes), 0
    current = FileJournal(storage, compact_after=3)
    for event in STORY * 2:
        after, decisions = step(state, event, POLICY)
        transition = Transition(event, state, after, decisions, NOW)
        try:
            current.append(transition, durable=True)
        except Killed:
            storage.writes = 1 << 30
            current = FileJournal(storage, compact_after=3)
            history = current.read()
            assert len(list(current.all_transitions(history))) == told
            current.append(transition, durable=True)
        state, told = after, told + 1
    history = journal(tmp_path).read()
    assert history.state.durable() == state.durable()
    assert len(history.transitions) <= 3
    everything = list(journal(tmp_path).all_transitions(history))
    assert [one.event for one in everything] == [*STORY, *STORY]
    assert history.past == reduce(Past.after, everything, Past())


def test_a_view_of_the_past_is_in_every_snapshot(tmp_path: Path) -> None:
    kept = FileJournal(LocalStorage(tmp_path), compact_after=3)
    kept.add_view("summary", lambda: {"attempts": 3})
    kept.add_view("broken", lambda: None)
    state = JobState()
    for event in STORY:
        after, decisions = step(state, event, POLICY)
        kept.append(Transition(event, state, after, decisions, NOW), durable=False)
        state = after
    snapshot = journal(tmp_path).read().snapshot
    assert snapshot is not None
    assert snapshot.views == {"summary": {"attempts": 3}}
