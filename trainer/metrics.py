"""Writes what each step measured to metrics.jsonl, and on request for TensorBoard.

The file has each step of the history that counts exactly once. Two rules make it so. What is
restored decides what is kept: lines of later steps are cut off before training goes on. And a step
is written before anything is kept from which training may go on after it: a checkpoint, or a
snapshot in memory. Otherwise lines wait up to a second, so that fast steps do not pay for a write.

Only process 0 writes, and only under a supervisor, which says where.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from supervisor.protocol import environment, metrics_file
from supervisor.protocol.environment import WorkerIdentity
from supervisor.protocol.location import Uri
from supervisor.protocol.messages import NoticeCode
from trainer import distributed
from trainer.fence import Fence, FencedError
from trainer.log import Warn
from trainer.step import Metrics

if TYPE_CHECKING:
    from trainer.tensorboard import TensorBoardFile

_INTERVAL = 1.0
"""Seconds between two writes."""
_MAX_WAITING = 100_000
"""Lines that wait while the file cannot be written: the newest."""

_EVALUATED = f"{metrics_file.EVALUATION}loss"

OnHost = dict[str, np.ndarray]
"""What a step has measured, as arrays of the host without dimensions."""

Point = tuple[float, int, Mapping[str, float]]
"""Unix time, step, and what was measured."""


class MetricsWriter:
    """Writes the metrics of one attempt of a phase. Thread-safe."""

    def __init__(self, path: Path | None, phase: str, attempt: int, warn: Warn) -> None:
        """`path` is the file; None: nothing is written."""
        self._path = path
        self._phase = phase
        self._attempt = attempt
        self._warn = warn
        self._fence = _local_fence()
        self._is_cut = False
        """Whether the lines of later steps are cut off."""
        self._plots: TensorBoardFile | None = None
        self._waiting: list[Point] = []
        self._last = 0
        """The last step that was added."""
        self._written_at = 0.0
        self._is_broken = False
        self._is_superseded: Callable[[metrics_file.Record], bool] = lambda line: False
        self._lock = Lock()

    @classmethod
    def of(cls, phase: str, warn: Warn) -> MetricsWriter:
        """Return the writer of this process."""
        path = os.environ.get(environment.METRICS_FILE)
        is_writer = path is not None and distributed.is_first()
        identity = WorkerIdentity.from_environment()
        attempt = identity.attempt if identity is not None else 1
        return cls(Path(path) if path is not None and is_writer else None, phase, attempt, warn)

    def begin(self, step: int, *, evaluates: bool = False, tensorboard: bool = False) -> None:
        """Go on after `step`: the lines of later steps of this phase are cut off. If the attempt
        `evaluates` that step, an evaluation of it is cut off, too. With `tensorboard`, write for it
        too, into a folder beside the file."""
        self._last = step
        if self._path is None:
            return
        if tensorboard:
            from trainer.tensorboard import TensorBoardFile  # slow to import

            folder = self._path.parent / "tensorboard" / self._phase
            self._plots = TensorBoardFile(folder, self._attempt, step)
        self._is_superseded = lambda line: (
            line.get("phase") == self._phase
            and (line["step"] > step or (evaluates and line["step"] == step and _EVALUATED in line))
        )
        with self._lock:
            self._write()

    def step(
        self, step: int, metrics: Metrics | OnHost, how: Mapping[str, float] | None = None
    ) -> None:
        """Add the complete step `step`, unless it was added already. `how` says how it was run
        (`metrics_file.OF_THE_RUN`)."""
        if self._path is None:
            return
        with self._lock:
            if step > self._last:
                self._last = step
                self._waiting.append((time.time(), step, {**numbers(metrics), **(how or {})}))
            if time.monotonic() >= self._written_at + _INTERVAL:
                self._write()

    def evaluated(self, step: int, loss: float) -> None:
        """Add the evaluation after `step`."""
        if self._path is None:
            return
        with self._lock:
            self._waiting.append((time.time(), step, {_EVALUATED: loss}))

    def flush(self, pending: Sequence[tuple[int, Metrics]] = ()) -> None:
        """Write all that waits, after adding the steps `pending`, which are in order. An error is
        told, and training goes on."""
        if self._path is None:
            return
        for step, metrics in pending:
            self.step(step, metrics)
        with self._lock:
            self._write()

    def sync(self) -> None:
        """Return once all that was written is on stable storage. An error is told."""
        if self._path is None or self._is_broken:
            return
        try:
            metrics_file.sync(self._path)
        except OSError as error:
            self._complain(error)

    def _write(self) -> None:
        """Write all that waits. After an error the next call tries again."""
        if self._path is None:
            return
        self._written_at = time.monotonic()
        lines = b"".join(
            metrics_file.encoded(at, self._phase, self._attempt, step, measured)
            for at, step, measured in self._waiting
        )
        try:
            if self._fence is not None:
                self._fence.check("a write of metrics")
            if not self._is_cut:
                metrics_file.cut(self._path, self._is_superseded)
                self._is_cut = True
            if self._plots is not None:
                self._plots.add(self._waiting)
            if lines:
                metrics_file.append(self._path, lines)
        except (OSError, FencedError) as error:
            del self._waiting[:-_MAX_WAITING]
            self._complain(error)
        else:
            self._waiting.clear()
            self._is_broken = False

    def _complain(self, error: Exception) -> None:
        if not self._is_broken:
            self._is_broken = True
            text = f"metrics are not written now, which is tried again: {error}"
            self._warn(text, NoticeCode.METRICS_UNWRITABLE)


def _local_fence() -> Fence | None:
    """Return the fence, if asking it is quick. A job in a bucket needs none here: only this host
    has its model_dir."""
    fence = Fence.from_environment()
    return fence if fence is not None and Uri.parse(fence.file) is None else None


def numbers(metrics: Metrics | OnHost) -> dict[str, float]:
    """Return the metrics of a complete step, as short as their type allows: 0.1, not
    0.10000000149011612."""
    found = {name: np.asarray(value) for name, value in metrics.items() if name != "finite"}
    first = {"loss": found.pop("loss")} if "loss" in found else {}
    return {name: float(str(value)) for name, value in {**first, **found}.items()}


def on_host(metrics: Metrics) -> OnHost:
    """Wait for the metrics of a step, and return them. It is `jax.device_get` without what that
    does in Python for trees of any kind."""
    for value in metrics.values():
        value.copy_to_host_async()  # all in one go: each copy is a round trip
    return {name: np.asarray(value) for name, value in metrics.items()}
