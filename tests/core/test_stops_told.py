"""What run.log says a stop saved and lost: nothing that nobody knows."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from supervisor.core.events import (
    CheckpointsFound,
    DeadlineReached,
    Event,
    StopSource,
    SupervisorStarted,
    WorkersGone,
    WorkersObserved,
)
from supervisor.core.liveness import Silence
from supervisor.core.machine import step
from supervisor.core.policy import PhasePolicy
from supervisor.diagnosis.failure import Survivor, WorkerExit
from supervisor.narrative import render
from supervisor.ports import Transition
from supervisor.protocol.messages import Stage
from tests.core.history import RETRY, History, policy, started

UNSEEN = "no checkpoint was found in trainer.init.checkpoint.directory"


def lines(history: History, event: Event) -> list[str]:
    """What is told of an event."""
    before = history.state
    after, decisions = step(before, event, history.policy)
    transition = Transition(event, before, after, decisions, datetime(2026, 1, 1, tzinfo=UTC))
    return [line.text for line in render(transition, history.policy)]


def told(history: History, *, step: int | None, committed: int | None) -> str:
    """What is told of the stop when the group is gone."""
    attempt = history.state.attempt
    gone = WorkersGone(history.now, attempt, RETRY, None, step, committed)
    (line,) = [text for text in lines(history, gone) if "lost" in text]
    return line


def asked(
    *commits: int, source: StopSource = StopSource.SIGTERM, finds_checkpoints: bool = False
) -> History:
    """A job that runs, and is asked to stop after these commits."""
    phase = PhasePolicy("only", 3, finds_checkpoints=finds_checkpoints)
    history = started(policy(phase))
    history.runs()
    for commit in commits:
        history.commits(commit)
    history.stops(source)
    return history


@pytest.mark.parametrize(
    ("committed", "lost"),
    [(60, 0), (None, 0), (50, 0)],
    ids=["it is there", "the store does not answer", "the store tells of an older one"],
)
def test_what_was_seen_committed_is_not_lost(committed: int | None, lost: int) -> None:
    history = asked(50)
    history.commits(60)
    text = told(history, step=60, committed=committed)
    assert (
        text
        == f"stopped: step 60 was saved; lost since then: {lost} steps (last reported step: 60)"
    )


@pytest.mark.parametrize("source", [StopSource.SIGTERM, StopSource.PREEMPTION])
def test_where_the_store_does_not_answer_the_last_commit_counts(source: StopSource) -> None:
    text = told(asked(50, source=source), step=57, committed=None)
    assert "the newest is of step 50; lost since then: 7 steps (last reported step: 57)" in text


def test_a_checkpoint_that_was_moved_away_is_no_longer_the_newest() -> None:
    text = told(asked(50), step=47, committed=40)
    assert "no new checkpoint, the newest is of step 40; lost since then: 7 steps" in text


@pytest.mark.parametrize("source", [StopSource.SIGTERM, StopSource.PREEMPTION])
def test_a_program_may_save_where_nobody_looks(source: StopSource) -> None:
    text = told(asked(source=source), step=60, committed=None)
    assert f"{UNSEEN}; all work is lost, unless the program saved it in a way that" in text


def test_what_was_done_before_the_job_is_not_called_lost() -> None:
    """The program went on from checkpoints of its own, and was stopped before its first save."""
    history = asked()
    gone = WorkersGone(history.now, 1, RETRY, None, 57, None, starting_step=40)
    (line,) = [text for text in lines(history, gone) if "lost" in text]
    assert "the program had begun at step 40; the 17 steps since then are lost, unless it" in line


def test_it_is_told_where_a_job_was_looked_at_whose_config_names_no_directory() -> None:
    history = asked(finds_checkpoints=True)
    text = told(history, step=60, committed=None)
    assert "no checkpoint was found, neither in model_dir nor where the program was seen" in text
    assert "trainer.init" not in text


def test_no_key_is_named_where_found_checkpoints_are_gone() -> None:
    history = started(policy(PhasePolicy("only", 3, finds_checkpoints=True)))
    history.runs()
    history.happens(CheckpointsFound(history.now, 0, "/out/ckpt"))
    history.commits(50)
    event = SupervisorStarted(history.now, "job", history.policy, None)
    (gone,) = (line for line in lines(history, event) if "was committed before" in line)
    assert gone.startswith(
        "no checkpoint is left in the directory in which they were found, but step 50 was committed"
    )


def test_a_hung_group_that_ends_before_it_is_asked_has_saved_nothing() -> None:
    history = started()
    history.runs()
    history.commits(50)
    history.happens(DeadlineReached(history.now, Silence(1, Stage.TRAINING, 9.0)))
    history.ends(WorkerExit(0, signal="SIGUSR2"))
    text = told(history, step=57, committed=50)
    assert text.startswith("stopped: no new checkpoint, the newest is of step 50; lost since")


def test_nor_has_a_group_that_ends_before_it_runs() -> None:
    history = started()
    history.commits(50)
    history.stops()
    text = told(history, step=None, committed=50)
    assert text.startswith("stopped: no new checkpoint, the newest is of step 50; ")


def test_the_end_of_a_rank_is_told_once_also_while_the_group_is_killed() -> None:
    """As where the guard stands still, and its answer to the kill is outstanding for long."""
    history = asked(50)
    history.happens(DeadlineReached(history.now + 1000.0))
    group = history.state.group
    assert group is not None
    assert group.killing
    ended = (WorkerExit(0, 0),)
    observed = WorkersObserved(history.now, group.attempt, (1,), ended)
    assert [line for line in lines(history, observed) if "rank 0 ended" in line]
    history.happens(observed)
    assert not lines(history, observed)


def test_a_stop_is_told_alike_whoever_asked_and_a_notice_besides() -> None:
    history = asked(50, source=StopSource.PREEMPTION)
    history.happens(WorkersGone(history.now, 1, RETRY, None, 57, 50))
    by_name = {line.event: line.keys for line in history.told}
    assert by_name["attempt-stopped"]["lost_steps"] == 7
    assert by_name["notice-used"]["attempt"] == 1


@pytest.mark.parametrize(("committed", "most"), [(50, 10), (None, 60)])
def test_a_complete_step_that_was_not_seen_closed_may_not_be_lost(
    committed: int | None, most: int
) -> None:
    history = asked(*filter(None, [committed]))
    event = WorkersGone(history.now, 1, RETRY, None, 60, committed, unproven=58)
    history.happens(event)
    (line,) = (line for line in history.told if line.event == "attempt-stopped")
    why = "was not seen closed, so it does not count yet: the program may go on from it; "
    assert f"step 58 is complete, but {why}" in line.text
    assert line.text.endswith(f"lost: at most {most} steps (last reported step: 60)")
    assert line.keys["lost_steps"] is None, "not known"


SURVIVOR = Survivor(7, "python train.py")


@pytest.mark.parametrize(
    ("source", "end", "survivors", "is_told"),
    [
        (StopSource.SIGTERM, WorkerExit(0, signal="SIGKILL"), (), True),
        (StopSource.SIGTERM, WorkerExit(0, signal="SIGTERM"), (SURVIVOR,), True),
        (StopSource.SIGTERM, WorkerExit(0, 0), (), False),
        (StopSource.PREEMPTION, WorkerExit(0, signal="SIGKILL"), (), False),
    ],
    ids=["a worker", "below a shell", "it has ended", "the machine goes"],
)
def test_a_save_that_the_grace_period_may_have_cut_off_names_the_key(
    source: StopSource, end: WorkerExit, survivors: tuple[Survivor, ...], is_told: bool
) -> None:
    history = asked(50, source=source)
    exits = () if end.signal == "SIGKILL" else (end,)
    history.happens(WorkersObserved(history.now, 1, (1,), exits, survivors))
    history.happens(DeadlineReached(history.now + 1000.0))
    gone = WorkersGone(history.now, 1, RETRY, None, 57, 50, exits=(end,))
    (text,) = (line for line in lines(history, gone) if line.startswith("stopped: "))
    key = "if a save takes longer, raise trainer.init.autorestart.grace_period; lost since"
    assert (key in text) is is_told
