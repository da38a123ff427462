"""Optimizer steps that are dispatched and not yet complete.

JAX returns before the devices are done. A few steps in flight hide the host's work; without a bound
the host would run ahead until memory is full. A step is told of when it is complete, not before.
"""

from __future__ import annotations

import time
from collections import deque

from supervisor.protocol.drills import Drills
from supervisor.protocol.reporter import Reporter
from trainer.step import Metrics


class InFlight:
    """At most `limit` steps at once; a complete one is reported, logged, and drilled."""

    def __init__(self, limit: int, log_every: int, reporter: Reporter, drills: Drills) -> None:
        self._limit = limit
        self._log_every = log_every
        self._reporter = reporter
        self._drills = drills
        self._steps: deque[tuple[int, Metrics]] = deque()
        self._logged: tuple[int, float] | None = None

    def add(self, step: int, metrics: Metrics) -> None:
        """Step `step` was dispatched; wait for the oldest if there are `limit` now."""
        self._steps.append((step, metrics))
        if len(self._steps) >= self._limit:
            self._retire()

    def drain(self) -> None:
        """Wait for all of them."""
        while self._steps:
            self._retire()

    def _retire(self) -> None:
        step, metrics = self._steps.popleft()
        metrics["loss"].block_until_ready()
        self._reporter.step(step, metrics)
        if step % self._log_every == 0:
            self._log(step, metrics)
        self._drills.after_step(step)

    def _log(self, step: int, metrics: Metrics) -> None:
        now = time.monotonic()
        rate = ""
        if self._logged is not None:
            since, at = self._logged
            rate = f"  {(step - since) / (now - at):.2f} steps/s"
        self._logged = step, now
        loss, learning_rate = float(metrics["loss"]), float(metrics["learning_rate"])
        print(f"step {step}  loss {loss:.4f}  lr {learning_rate:.2e}{rate}", flush=True)
