"""Optimizer steps that are dispatched and not yet complete.

JAX returns before the devices are done. A few steps in flight hide the host's work; without a limit
the host would run ahead until memory is full. A step is reported only when it is complete. Only
then do we know whether its results are finite, so nothing is saved before that.
"""

from __future__ import annotations

import time
from collections import deque

import jax

from supervisor.protocol.fault_injection import FaultInjector
from supervisor.protocol.loss_spikes import SpikeDetector
from supervisor.protocol.messages import NoticeCode
from supervisor.protocol.reporter import Reporter
from trainer import distributed
from trainer.log import WorkerLog, log
from trainer.metrics import MetricsWriter, OnHost, on_host
from trainer.step import Metrics
from trainer.throughput import Throughput


class NotFiniteError(FloatingPointError):
    """A step produced NaN or Inf in its loss, gradients or state: the state must not be saved."""


class StateNotFiniteError(NotFiniteError):
    """The state to be saved holds NaN or Inf, although the loss and gradients of its steps did
    not."""


class InFlight:
    """Keeps at most `limit` steps in flight. A complete step is reported and logged, and faults
    that the config injects after it are fired."""

    def __init__(
        self,
        limit: int,
        log_every: int,
        reporter: Reporter,
        metrics: MetricsWriter,
        faults: FaultInjector,
        throughput: Throughput,
    ) -> None:
        self._limit = limit
        self._log_every = log_every
        self._reporter = reporter
        self._metrics = metrics
        self._faults = faults
        self.throughput = throughput
        self._spikes = SpikeDetector() if distributed.is_first() else None
        self._steps: deque[tuple[int, Metrics]] = deque()
        self._logged: tuple[int, float] | None = None

    def add(self, step: int, metrics: Metrics) -> None:
        """Add the dispatched step `step`; if there are `limit` steps now, wait for the oldest."""
        self._steps.append((step, metrics))
        if len(self._steps) >= self._limit:
            self._complete_oldest()

    def drain(self) -> None:
        """Wait for all steps in flight; errors as `_complete_oldest`."""
        while self._steps:
            self._complete_oldest()

    @property
    def finite(self) -> jax.Array | None:
        """Boolean array, perhaps not computed yet: whether the newest step's results are finite.
        None: it is complete, and they are."""
        return self._steps[-1][1]["finite"] if self._steps else None

    @property
    def pending(self) -> list[tuple[int, Metrics]]:
        """Return the steps in flight, in order, with metrics that may not be computed yet."""
        return [(step, dict(metrics)) for step, metrics in self._steps]

    def skip(self, step: int) -> None:
        """Report step `step`, whose batch is skipped, after the steps before it are complete."""
        self.drain()
        text = f"step {step}: its batch is skipped, because it gave NaN or Inf before"
        WorkerLog(self._reporter).warn(text, NoticeCode.BATCH_SKIPPED, step)
        self._reporter.step(step)
        self._metrics.step(step, {})
        self._faults.after_step(step)

    def _complete_oldest(self) -> None:
        """Wait for the oldest step in flight, and report it.

        Raises:
            NotFiniteError: its loss or gradients have NaN or Inf.
        """
        step, on_devices = self._steps.popleft()
        metrics = on_host(on_devices)
        if not bool(metrics.pop("finite")):
            loss, norm = float(metrics["loss"]), float(metrics["gradient_norm"])
            raise NotFiniteError(
                f"step {step}: NaN or Inf in the training (loss {loss}, gradient norm {norm}); "
                "its state is not saved"
            )
        how = self.throughput.completed(step)
        self._reporter.step(step, {**metrics, **how}, always=bool(how))
        self._metrics.step(step, metrics, how)
        self._look_at_loss(step, float(metrics["loss"]))
        if step % self._log_every == 0:
            self._log(step, metrics)
        self._faults.after_step(step)

    def _look_at_loss(self, step: int, loss: float) -> None:
        spike = self._spikes.hear(step, loss) if self._spikes is not None else None
        if spike is not None:
            self._reporter.loss_spike(spike)

    def _log(self, step: int, metrics: OnHost) -> None:
        now = time.monotonic()
        keys = {name: float(metrics[name]) for name in ("loss", "learning_rate")}
        if self._logged is not None:
            since, at = self._logged
            keys["steps_per_second"] = (step - since) / (now - at)
        log.info("step-completed", step=step, **keys)
        self._logged = step, now
