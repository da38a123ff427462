"""Makes the loss curves of a job from the lines of `metrics.jsonl`, of which there may be millions.

Where an attempt goes on from an earlier step, the losses of the steps that were lost are dropped:
what is left is the training that counts. Lines that cannot be used are counted. Pure.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from itertools import groupby
from statistics import median

from supervisor.protocol import metrics_file
from supervisor.protocol.loss_spikes import LossSpike, SpikeDetector
from supervisor.report.job_report import LossCurve, LossPoint

MOST_POINTS = 1000
"""A curve has at most twice as many points."""
_SPIKES_IN_REPORT = 20
"""Losses that stand out which are told of a phase: the newest."""
MAX_LINE = 1 << 16
"""Bytes. A longer line is not used."""


@dataclass(slots=True)
class _Curve:
    """The curve of a phase so far."""

    points: list[LossPoint] = field(default_factory=list)
    """By step, rising."""
    width: int = 1
    """How many steps a point stands for."""
    attempt: int | None = None
    restarts: list[int] = field(default_factory=list)
    not_finite: int = 0
    detector: SpikeDetector = field(default_factory=SpikeDetector)
    spikes: deque[LossSpike] = field(default_factory=lambda: deque(maxlen=_SPIKES_IN_REPORT))
    how: dict[str, deque[float]] = field(default_factory=dict)
    """How the steps were run: the newest of what was measured."""

    def ran(self, how: Mapping[str, float]) -> None:
        for name, value in how.items():
            self.how.setdefault(name, deque(maxlen=MOST_POINTS)).append(value)

    def median(self, name: str) -> float | None:
        return median(self.how[name]) if name in self.how else None

    def add(self, step: int, loss: float, attempt: int | None) -> None:
        while self.spikes and self.spikes[-1].step >= step:
            self.spikes.pop()
        spike = self.detector.hear(step, loss)
        if spike is not None:
            self.spikes.append(spike)
        while self.points and self.points[-1].step >= step:
            self.points.pop()
        if attempt != self.attempt and self.attempt is not None:
            while self.restarts and self.restarts[-1] >= step - 1:
                self.restarts.pop()
            self.restarts.append(max(0, step - 1))
        self.attempt = attempt
        if not math.isfinite(loss):
            self.not_finite += 1
            return
        point = LossPoint(step, loss, loss, loss)
        if self.points and self.points[-1].step // self.width == step // self.width:
            point = _joined(self.points.pop(), point)
        self.points.append(point)
        if len(self.points) > 2 * MOST_POINTS:
            self._grow()

    def _grow(self) -> None:
        """Let each point stand for more steps, until there are few enough."""
        while len(self.points) > 2 * MOST_POINTS:
            self.width *= 2
            buckets = groupby(self.points, lambda each: each.step // self.width)
            self.points = [reduce(_joined, bucket) for _, bucket in buckets]


def _joined(earlier: LossPoint, later: LossPoint) -> LossPoint:
    low, high = min(earlier.low, later.low), max(earlier.high, later.high)
    return LossPoint(later.step, low, high, later.last)


def loss_curves(lines: Iterable[bytes], phases: Mapping[int, str]) -> tuple[list[LossCurve], int]:
    """Returns the curve of each phase, and how many lines could not be used; `phases` has the phase
    of each attempt."""
    curves: dict[str, _Curve] = {}
    unusable = 0
    names = iter(phases.values())
    phase = next(names, "")
    for told in map(_parsed, lines):
        if told is None:
            unusable += 1
            continue
        attempt, step, loss, how = told
        if loss is None:
            continue
        phase = phases.get(attempt, phase) if attempt is not None else phase
        curve = curves.setdefault(phase, _Curve())
        curve.add(step, loss, attempt)
        curve.ran(how)
    return list(_told(curves)), unusable


def _told(curves: Mapping[str, _Curve]) -> Iterator[LossCurve]:
    for phase, each in curves.items():
        yield LossCurve(
            phase,
            tuple(each.points),
            tuple(each.restarts),
            each.not_finite,
            tuple(each.spikes),
            each.median(metrics_file.DATA_WAIT),
            each.median(metrics_file.MFU),
        )


def _parsed(line: bytes) -> tuple[int | None, int, float | None, dict[str, float]] | None:
    """Returns the attempt, the step and the loss in a line, None for a loss that it does not have,
    and how the step was run; None: it cannot be used."""
    if len(line) > MAX_LINE:
        return None
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):
        return None
    match body:
        case {"step": int(step)} if not isinstance(step, bool) and 0 <= step < 1 << 53:
            attempt, loss = body.get("attempt"), body.get("loss")
            how = {name: _number(body.get(name)) for name in metrics_file.DEVICE_USE}
            known = {name: value for name, value in how.items() if value is not None}
            known = {name: value for name, value in known.items() if math.isfinite(value)}
            return attempt if type(attempt) is int else None, step, _number(loss), known
    return None


def _number(loss: object) -> float | None:
    """Returns the loss as a number; a text such as "NaN" is one, too."""
    if isinstance(loss, bool) or not isinstance(loss, int | float | str):
        return None
    try:
        return float(loss)
    except (ValueError, OverflowError):
        return None
