"""The journal: what is written is what is read, a torn end is cut, and damage is never ignored."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from supervisor.adapters.stores.journal import (
    DamagedJournalError,
    FileJournal,
    JournalError,
    phases_on_record,
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
from supervisor.ports import Transition
from supervisor.protocol.messages import Stage
from supervisor.protocol.segments import JOURNAL

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


def journal(folder: Path) -> FileJournal:
    return FileJournal(LocalStorage(folder))


def tell(folder: Path, *events: Event) -> list[Transition]:
    """Journal what the core makes of `events`, as the runtime does."""
    state, told = JobState(), []
    for event in events:
        after, decisions = step(state, event, POLICY)
        told.append(Transition(event, state, after, decisions, NOW))
        journal(folder).append(told[-1], durable=False)
        state = after
    return told


@pytest.mark.parametrize("length", range(len(STORY) + 1))
def test_replaying_is_folding(length: int, tmp_path: Path) -> None:
    told = tell(tmp_path, *STORY[:length])
    history = journal(tmp_path).read()
    assert history.transitions == told
    assert history.state == (told[-1].after if told else JobState())
    assert history.torn == 0


def test_the_story_goes_somewhere() -> None:
    """Else the test above says nothing."""
    state = JobState()
    kinds = set()
    for event in STORY:
        state, decisions = step(state, event, POLICY)
        kinds |= {type(decision).__name__ for decision in decisions}
    assert kinds >= {"BeginPhase", "StartWorkers", "KillWorkers", "Wait"}
    assert state.attempt == 3


policies = st.builds(
    RestartPolicy,
    phases=st.lists(
        st.builds(
            PhasePolicy,
            name=st.text(),
            success=st.from_type(Success),
            deadlines=st.dictionaries(st.sampled_from(Stage), st.floats()),
        )
    ).map(tuple),
    grace_period=st.floats(),
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
    read = journal(tmp_path).read().transitions[1]
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
    assert repr(journal(tmp_path).read().transitions[0].decisions) == repr(decisions)


def test_text_that_is_no_unicode_does_not_make_it_unreadable(tmp_path: Path) -> None:
    """File names may hold anything; a journal that cannot be read stops the job for good."""
    event = Noticed(0.1, "dir\udcff")
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


def test_a_torn_end_is_cut_and_counted_wherever_it_tore(tmp_path: Path) -> None:
    told = tell(tmp_path, *STORY[:3])
    path = tmp_path / JOURNAL
    whole = path.read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for cut in (last + 1, last + 40, len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert journal(tmp_path).look().torn == cut - last
        assert path.read_bytes() == whole[:cut], "who only looks on mends nothing"
        history = journal(tmp_path).read()
        assert history.torn == cut - last
        assert history.transitions == told[:2]
        assert path.read_bytes() == whole[:last]
        assert journal(tmp_path).read().torn == 0
    path.write_bytes(whole[:10])  # nothing but a torn line
    assert journal(tmp_path).read().torn == 10
    assert journal(tmp_path).read().state == JobState()


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
        (json.dumps({**LINE, "v": 2}) + "\n", "line 1 has format 2, not 1"),
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
    with pytest.raises(DamagedJournalError, match=r"journal\.jsonl line 2 says .* folder .*: move"):
        journal(tmp_path).look()


def test_what_cannot_be_written_or_read_is_a_journal_error(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).mkdir()
    with pytest.raises(JournalError, match="cannot be written: Is a directory"):
        tell(tmp_path, STORY[0])
    with pytest.raises(
        JournalError, match=r"journal\.jsonl is a directory, not a regular file: move"
    ):
        journal(tmp_path).read()
    nowhere = tmp_path / "nowhere"
    with pytest.raises(JournalError, match="cannot be written: No such file"):
        journal(nowhere).record_config(NOW, [], [])


def test_a_torn_end_that_cannot_be_cut_is_a_journal_error(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_bytes(b"torn")
    (tmp_path / f".{JOURNAL}.tmp").mkdir()  # where the mended one would be written
    with pytest.raises(JournalError, match=r"cannot be mended: .*it is a folder"):
        journal(tmp_path).read()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"hello": 1}', "'v' is missing in it, or unknown"),
        ('{"v": 1, "event": {"kind": "Hello"}, "time": "2025-01-01", "decisions": []}', "'Hello'"),
        ('{"v": 1, "event": {"kind": "PhaseBegun"}}', "at is not as we write it (Field required)"),
        ('{"v": 1, "config": 3}', "it is not as we write it"),
    ],
)
def test_what_is_wrong_with_a_line_is_told_in_words(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / JOURNAL).write_text(f"{line}\n")
    with pytest.raises(DamagedJournalError, match=r"line 1 is damaged: .*; move it away") as error:
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
    (tmp_path / JOURNAL).write_bytes(Path(__file__).with_name("older_journal.jsonl").read_bytes())
    state = journal(tmp_path).read().state
    assert (state.status, state.exit_code, state.attempt) == (Status.FAILED, 70, 1)
    assert state.last_failure is not None
    assert (state.last_failure.rule, state.last_failure.is_certain) == ("missing-file", True)
