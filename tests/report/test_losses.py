"""Losses of a job: the training that counts, in few points."""

from __future__ import annotations

import json

import pytest

from supervisor.report.job_report import LossPoint
from supervisor.report.losses import MAX_LINE, MOST_POINTS, loss_curves

PHASES = {1: "one", 2: "one", 3: "two"}


def line(attempt: int, step: int, loss: object) -> bytes:
    return json.dumps({"time": 1.0, "attempt": attempt, "step": step, "loss": loss}).encode()


def test_steps_that_were_lost_are_dropped_and_the_restart_is_marked() -> None:
    lines = [line(1, 1, 3.0), line(1, 2, 2.5), line(1, 3, 9.0), line(2, 2, 2.4), line(2, 4, 2.0)]
    (curve,), unusable = loss_curves(lines, PHASES)
    assert [(each.step, each.last) for each in curve.points] == [(1, 3.0), (2, 2.4), (4, 2.0)]
    assert (curve.phase, curve.restarts, unusable) == ("one", (1,), 0)


def test_each_phase_has_a_curve_of_its_own() -> None:
    curves, _ = loss_curves([line(2, 9, 1.0), line(3, 1, 4.0)], PHASES)
    assert [(each.phase, each.points[0].step) for each in curves] == [("one", 9), ("two", 1)]


def test_millions_of_steps_become_few_points_that_keep_the_extremes() -> None:
    lines = (line(1, step, 5.0 if step != 77_777 else 50.0) for step in range(1, 100_001))
    (curve,), _ = loss_curves(lines, PHASES)
    assert MOST_POINTS / 2 <= len(curve.points) <= 2 * MOST_POINTS
    assert max(each.high for each in curve.points) == 50.0
    assert curve.points[-1].step == 100_000


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), "NaN", "-inf"])
def test_what_is_not_finite_is_counted(loss: object) -> None:
    (curve,), unusable = loss_curves([line(1, 1, 2.0), line(1, 2, loss)], PHASES)
    assert curve.points == (LossPoint(1, 2.0, 2.0, 2.0),)
    assert (curve.not_finite, unusable) == (1, 0)


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"\n",
        b"{",
        b"\xff\xfe",
        b"[" * 50_000,
        b"[1]",
        b'{"loss": 1}',
        b'{"step": "7", "loss": 1}',
        b'{"step": true, "loss": 1}',
        b'{"step": -1, "loss": 1}',
        b'{"step": 1%s, "loss": 1}' % (b"0" * 5000),
        b'{"step": 1, "loss": 2, "x": "%s"}' % (b"x" * MAX_LINE),
    ],
)
def test_a_line_that_cannot_be_used_is_counted_and_the_others_are_used(bad: bytes) -> None:
    (curve,), unusable = loss_curves([line(1, 1, 3.0), bad, line(1, 2, 2.0)], PHASES)
    assert (len(curve.points), unusable) == (2, 1)


@pytest.mark.parametrize("loss", [None, True, "small", [1], {"x": 1}])
def test_a_line_without_a_loss_is_no_point(loss: object) -> None:
    assert loss_curves([line(1, 1, loss)], PHASES) == ([], 0)
