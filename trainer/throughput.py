"""How well the devices are used: the share of time in which training waits for data, and the model
FLOPs utilisation (`trainer.flops`).

They are averages over some seconds of training alone: what an evaluation or a save takes is left
out. So a number is there after these seconds, and not in a run that is shorter.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from supervisor.protocol import metrics_file
from supervisor.protocol.messages import NoticeCode
from trainer.log import Warn

_INTERVAL = 2.0
"""Least seconds that an average is made of: a single step may be slow anywhere."""
_MOST_WAIT = 0.02
"""The share of waiting that nobody minds."""
_LEAST_SECONDS = 0.002
"""The same, in seconds of a step: where steps take milliseconds, any overhead is a large share."""
_TIMES = 15
"""How many averages in a row must be above both before a person is told."""


class Throughput:
    """Measures one attempt. The thread of the training loop calls it."""

    def __init__(
        self,
        warn: Warn,
        step_flops: float | None = None,
        peak_flops: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`step_flops` are the operations of a step, and `peak_flops` those that all devices can do
        in a second; None: not known."""
        self._warn = warn
        self._step_flops = step_flops
        self._peak = peak_flops
        self._clock = clock
        self._since = clock()
        self._waited, self._steps = 0.0, 0
        self._times = 0
        self._is_told = False

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The time in this context is one of waiting for data."""
        began = self._clock()
        yield
        self._waited += self._clock() - began

    def completed(self, step: int) -> dict[str, float]:
        """Take note of a complete step; returns what was measured, if it is time for that."""
        self._steps += 1
        seconds = self._clock() - self._since
        if seconds < _INTERVAL:
            return {}
        measured = {metrics_file.DATA_WAIT: self._waited / seconds}
        if self._step_flops is not None and self._peak is not None:
            measured[metrics_file.MFU] = self._step_flops * self._steps / seconds / self._peak
        self._judge(step, self._waited / seconds, self._waited / self._steps)
        self.start_over()
        return measured

    def start_over(self) -> None:
        """Leave out what came before: the time of an evaluation or a save is no step's."""
        self._since = self._clock()
        self._waited, self._steps = 0.0, 0

    def _judge(self, step: int, share: float, seconds: float) -> None:
        is_slow = share > _MOST_WAIT and seconds > _LEAST_SECONDS
        self._times = self._times + 1 if is_slow else 0
        if self._times >= _TIMES and not self._is_told:
            self._is_told = True
            self._warn(
                f"training waits for data {share:.0%} of the time, {seconds:.2g} s a step, and has "
                "for a while: look at what the data are read from, and at the CPUs of this host",
                NoticeCode.DATA_SLOW,
                step,
            )
