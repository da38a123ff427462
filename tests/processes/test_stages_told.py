"""What the time of a job went into, and how far it was when: by its journal alone."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

from supervisor.adapters.stores.journal import FileJournal
from supervisor.adapters.stores.storage import LocalStorage
from supervisor.core.decisions import TellStages
from supervisor.core.events import CheckpointCommitted, WorkersGone, WorkersStarted
from supervisor.core.stage_times import CHANGES
from supervisor.files.segments import JOURNAL
from supervisor.ports import Transition
from tests.running import Start, command_config, eventually


def recorded(model_dir: Path) -> list[Transition]:
    """All that the journal tells."""
    journal = FileJournal(LocalStorage(model_dir))
    return list(journal.all_transitions(journal.peek()))


def told(transitions: list[Transition], attempt: int) -> list[TellStages]:
    """What is told of the stages of an attempt."""
    decisions = (decision for each in transitions for decision in each.decisions)
    return [one for one in decisions if isinstance(one, TellStages) and one.attempt == attempt]


def test_the_journal_tells_how_long_each_stage_took_and_how_far_it_was_at_each_commit(
    start: Start, model_dir: Path
) -> None:
    """The worker tells of its checkpoint, changes its stage two thousand times, and is killed."""
    running = start(command_config(model_dir, "change-stages", "--once"))
    running.wait_for("changed")
    journal = model_dir / JOURNAL
    assert eventually(lambda: b'"kind":"CheckpointCommitted"' in journal.read_bytes())
    os.kill(running.wait_for_event("workers-started")["pids"][0], signal.SIGKILL)
    assert running.result().code == 0

    transitions = recorded(model_dir)
    began = {e.attempt: e.at for t in transitions if isinstance(e := t.event, WorkersStarted)}
    ended = {e.attempt: e for t in transitions if isinstance(e := t.event, WorkersGone)}
    assert began.keys() == ended.keys() == {1, 2}
    for attempt, at in began.items():
        seconds = Counter[str]()
        for one in told(transitions, attempt):
            seconds.update(one.seconds)
        first = "STARTING" if attempt == 1 else "RESTORING"  # what there is to restore is told
        assert {first, "TRAINING"} < seconds.keys(), "each stage has its time"
        assert abs(seconds.total() - (ended[attempt].at - at)) < 1e-6, "and they are all there is"

    flood = told(transitions, 1)
    assert len(flood) < CHANGES.at_once + 10
    assert 100 < sum(one.untold for one in flood) < 2100
    commits = {
        event.step: [one.step for one in t.decisions if isinstance(one, TellStages)]
        for t in transitions
        if isinstance(event := t.event, CheckpointCommitted)
    }
    (known,) = commits[2]
    assert known in (1, 2, 3), "as far as was reported when it was seen; as a rule all three"
    assert (ended[1].step, ended[2].step) == (3, 6)
    assert [told(transitions, attempt)[-1].step for attempt in (1, 2)] == [3, 6]
