"""Which reported losses the core is told of: those that are not finite, of programs not ours."""

from __future__ import annotations

import json
from dataclasses import replace
from math import nan
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from supervisor.core.events import LossesNotFinite, LossSpiked, WorkerReported, WorkersGone
from supervisor.engines.group import WorkerGroup
from supervisor.engines.loss_watch import LossWatch
from supervisor.protocol.loss_spikes import LossSpike
from supervisor.protocol.messages import (
    Message,
    NoticeMessage,
    StepMessage,
    encode,
)
from tests.engines.benches import OnThisHost


def saying(folder: Path, *messages: Message) -> OnThisHost:
    """A program that sends these messages at once."""
    bench = OnThisHost(folder)
    lines = b"".join(map(encode, messages)).decode()
    (folder / "said").write_text(lines)
    program = folder / "train.sh"
    program.write_text(
        f"cat {json.dumps(str(folder / 'said'))} > /proc/self/fd/$SUPERVISE_PROGRESS_FD\n"
        "exec sleep 1000\n"
    )
    return bench


def heard(bench: OnThisHost, last: int) -> list[LossesNotFinite]:
    """What is told until the step `last` was reported."""
    bench.engine.start(bench.launch)
    bench.first(
        WorkerReported,
        lambda event: isinstance(event.message, StepMessage) and event.message.step == last,
    )
    bench.engine.kill(bench.launch, ())
    bench.first(WorkersGone)
    return bench.of(LossesNotFinite)


def step(number: int, loss: float) -> StepMessage:
    return StepMessage(number, {"loss": loss})


def test_the_first_one_is_told_exactly_although_reports_are_read_together(tmp_path: Path) -> None:
    steps = (step(4, 2.0), step(5, 1.0), step(6, nan), step(7, nan))
    (told,) = heard(saying(tmp_path, *steps), 7)
    assert (told.attempt, told.since, told.times) == (3, 6, 1)
    assert (told.finite, told.before) == (5, None)
    assert told.last == 7


def test_one_that_recovers_is_told_and_forgotten(tmp_path: Path) -> None:
    steps = (step(4, 2.0), step(5, nan), step(6, 1.0), step(7, nan), step(8, 1.0))
    told = heard(saying(tmp_path, *steps), 8)
    assert [(each.since, each.times, each.finite) for each in told] == [(5, 1, 4), (7, 1, 6)]


def test_the_losses_of_our_trainer_are_its_own_affair(tmp_path: Path) -> None:
    bench = saying(tmp_path, step(4, 2.0), step(5, nan))
    ours = replace(bench.launch.plan, is_command=False)
    bench.launch = replace(bench.launch, plan=ours)
    assert heard(bench, 5) == []


@pytest.mark.parametrize(("code", "times"), [("resume-differs", 1), ("of-its-own", 2)])
def test_where_a_library_cannot_resume_is_told_once(tmp_path: Path, code: str, times: int) -> None:
    notice = NoticeMessage("a restart of this run goes on", code)
    bench = saying(tmp_path, notice, notice, step(1, 1.0))
    heard(bench, 1)
    told = [each.message for each in bench.of(WorkerReported)]
    assert told.count(notice) == times


def watched(phase: int = 0, attempt: int = 1) -> WorkerGroup:
    """A group of a program, of which only that is known."""
    launch = SimpleNamespace(phase=phase, attempt=attempt, plan=SimpleNamespace(is_command=True))
    return cast(WorkerGroup, SimpleNamespace(launch=launch, committed=None, commits=()))


def test_losses_that_are_only_recognised_decide_nothing() -> None:
    watch, group = LossWatch(), watched()
    watch.hear(group, step(4, 2.0), 0.0)
    seen = replace(step(5, nan), in_output=True, recognised=True)
    assert watch.hear(group, seen, 1.0) is None
    told = watch.hear(group, step(6, nan), 2.0)
    assert told is not None
    assert (told.since, told.times) == (6, 1)


def test_each_phase_has_losses_of_its_own() -> None:
    watch = LossWatch()
    watch.hear(watched(0), step(4, 2.0), 0.0)
    watch.hear(watched(0), step(5, nan), 1.0)
    told = watch.hear(watched(1, attempt=2), step(7, nan), 2.0)
    assert told is not None
    assert (told.since, told.times, told.finite) == (7, 1, None)
    told = watch.hear(watched(1, attempt=2), step(8, nan), 3.0)
    assert told is not None
    assert (told.since, told.times) == (7, 2)


def test_of_lines_that_were_read_together_the_loss_is_of_the_last() -> None:
    watch, group = LossWatch(), watched()
    lines = StepMessage(9, {"loss": nan}, first=5, in_output=True)
    told = watch.hear(group, lines, 0.0)
    assert told is not None
    assert (told.since, told.last) == (9, 9)
    reports = StepMessage(9, {"loss": nan}, first=5)
    told = LossWatch().hear(group, reports, 0.0)
    assert told is not None
    assert (told.since, told.last) == (5, 9)


def test_a_loss_that_stands_out_is_found_for_a_command_and_told_by_our_trainer(
    tmp_path: Path,
) -> None:
    watch, group = LossWatch(), watched()
    for number in range(1, 50):
        assert watch.spike(group, step(number, 2.0)) is None
    assert watch.spike(group, replace(step(50, 9.0), recognised=True)) is None
    assert watch.spike(watched(1), step(50, 9.0)) is None, "another phase"
    found = watch.spike(group, step(50, 9.0))
    assert found == LossSpike(50, 9.0, 2.0, 2.1)
    bench = saying(tmp_path, found, step(51, 2.0))
    heard(bench, 51)
    assert [(each.attempt, each.spike) for each in bench.of(LossSpiked)] == [(3, found)]
