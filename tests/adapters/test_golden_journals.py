"""Journals of every format that was ever written, and where they must lead.

Each is of a real run. They are never changed: a new format gets files of its own, which
`record_journals` writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from supervisor.adapters.stores.journal import FileJournal, JournalError, archived_name, replay
from supervisor.adapters.stores.storage import LocalStorage
from supervisor.core.decisions import StartWorkers
from supervisor.core.events import SupervisorStarted
from supervisor.core.machine import step
from supervisor.core.state import JobState
from supervisor.files.segments import ARCHIVE, JOURNAL
from supervisor.history.upcasters import FORMAT, UPCASTERS
from supervisor.ports import Transition
from tests.running import Result, command_config

JOURNALS = Path(__file__).with_name("journals")


def told(state: JobState) -> dict[str, Any]:
    """What of a state no format may lose."""
    placement = state.ladder.placement
    return {
        "status": str(state.status),
        "exit_code": state.exit_code,
        "attempt": state.attempt,
        "phase": state.phase,
        "restarts": state.budget.restarts,
        "total": state.budget.total,
        "highest": state.budget.highest,
        "rung": placement.num_devices if placement is not None else None,
        "quarantine": sorted(state.quarantine.units),
    }


ENDS: dict[str, tuple[Any, ...]] = {
    "budget": ("FAILED", 76, 2, 0, 1, 1, 2, None, []),
    "drain": ("DRAINED", 75, 1, 0, 0, 0, 10, None, []),
    "found": ("SUCCEEDED", 0, 3, 0, 1, 2, 2, None, []),
    "midjob": ("BACKOFF", None, 2, 0, 2, 2, None, None, []),
    "older": ("FAILED", 70, 1, 0, 0, 0, None, None, []),
    "phases": ("SUCCEEDED", 0, 2, 1, 0, 0, None, None, []),
    "regrow": ("SUCCEEDED", 0, 3, 0, 0, 0, 300, 3, ["1"]),
    "restart": ("SUCCEEDED", 0, 2, 0, 0, 1, 6, None, []),
    "shrink": ("SUCCEEDED", 0, 3, 0, 1, 1, None, 2, ["1"]),
    "success": ("SUCCEEDED", 0, 1, 0, 0, 0, 6, None, []),
}
FILES = sorted(JOURNALS.glob("format*_*.jsonl"))


def test_there_are_journals_of_every_format() -> None:
    formats = {int(path.stem[len("format")]) for path in FILES}
    assert formats == {*UPCASTERS, FORMAT}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_journal_leads_where_it_always_led(path: Path) -> None:
    history = replay(path.read_bytes(), JOURNAL)
    assert tuple(told(history.state).values()) == ENDS[path.stem.partition("_")[2]]
    assert history.is_outdated == (f"format{FORMAT}" not in path.stem)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_first_record_after_an_upgrade_follows_a_snapshot(path: Path, tmp_path: Path) -> None:
    """So what older rules have to be asked for is found out once."""
    before = path.read_bytes()
    (tmp_path / JOURNAL).write_bytes(before)
    journal = FileJournal(LocalStorage(tmp_path))
    history = journal.read()
    assert history.policy is not None
    event = SupervisorStarted(0.0, history.state.job, history.policy, None)
    after, decisions = step(history.state, event, history.policy)
    wall = history.transitions[-1].wall
    last = Transition(event, history.state, after, decisions, wall)
    journal.append(last, durable=True)
    again = FileJournal(LocalStorage(tmp_path)).read()
    assert told(again.state) == told(last.after)
    assert again.past == history.past.after(last)
    if history.is_outdated:
        archived = archived_name(history, before)
        assert (tmp_path / archived).read_bytes() == before
        assert again.snapshot is not None
        assert again.snapshot.archived == archived
        everything = list(FileJournal(LocalStorage(tmp_path)).all_transitions(again))
        assert [one.event for one in everything] == [
            *(one.event for one in history.transitions),
            event,
        ]
    else:
        assert not (tmp_path / ARCHIVE).exists()


@pytest.mark.parametrize(
    ("recorded", "other"),
    [
        ('"StartWorkers","attempt":2', '"StartWorkers","attempt":7'),
        ('"exit_code":76', '"exit_code":0'),
    ],
)
def test_in_format_1_recorded_decisions_must_not_contradict(recorded: str, other: str) -> None:
    text = (JOURNALS / "format1_budget.jsonl").read_text()
    assert text.count(recorded) == 1
    with pytest.raises(JournalError, match=r"does not follow .*recorded as .*(7|exit code 0), but"):
        replay(text.replace(recorded, other).encode(), JOURNAL)


def test_an_upgrade_in_the_middle_of_a_job(
    supervise: Callable[..., Result], model_dir: Path
) -> None:
    """The supervisor that wrote format 1 was killed while it judged its second attempt."""
    model_dir.mkdir()
    text = (JOURNALS / "format1_midjob.jsonl").read_text()
    lines = [line for line in text.splitlines(keepends=True) if '"config":[' not in line]
    (model_dir / JOURNAL).write_text("".join(lines[:-1]))
    restart = {"max_num_restarts": 3, "backoff": {"first": 0.05}}
    config = command_config(
        model_dir, *("SIGKILL", "--every", "100"), restart=restart, success={"step": 6}
    )
    result = supervise(config)
    assert result.code == 76, result.err
    assert result.has_event("attempt-started", attempt=3)
    assert not result.has_event("attempt-started", attempt=5), (
        "two of three restarts were used before"
    )
    assert result.has_event("budget-used", restarts=3, max_num_restarts=3)
    numbers = [record["attempt"] for record in result.summary["attempts"]]
    assert numbers == [3, 4] or numbers == [1, 2, 3, 4]
    journal = FileJournal(LocalStorage(model_dir))
    history = journal.read()
    assert not history.is_outdated
    first, *_ = (model_dir / JOURNAL).read_bytes().splitlines()
    assert "snapshot" in json.loads(first)
    assert len(list(journal.all_transitions(history))) > len(history.transitions) + 5


def test_a_directory_that_was_found_is_kept() -> None:
    history = replay((JOURNALS / "format2_found.jsonl").read_bytes(), JOURNAL)
    starts = [d for t in history.transitions for d in t.decisions if isinstance(d, StartWorkers)]
    place = "/job/out/checkpoints/actor"
    assert [each.checkpoints for each in starts] == [None, place, place]
    assert history.state.checkpoints == place


def test_a_job_shrinks_without_a_bad_device_and_grows_back_at_a_checkpoint() -> None:
    """As the journal tells it, attempt by attempt."""
    history = replay((JOURNALS / "format2_regrow.jsonl").read_bytes(), JOURNAL)
    starts = [d for t in history.transitions for d in t.decisions if isinstance(d, StartWorkers)]
    assert [each.num_devices for each in starts] == [None, 2, 3], "at first as the config says"
    assert [each.units for each in starts[1:]] == [("0", "2"), ("0", "2", "3")]
    assert history.state.budget.total == 0, "nothing of it was charged"
