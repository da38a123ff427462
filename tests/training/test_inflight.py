"""Steps that are complete: what is told of their losses."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp

from supervisor.protocol.fault_injection import FaultInjector
from supervisor.protocol.loss_spikes import LossSpike
from supervisor.protocol.reporter import Reporter
from trainer.inflight import InFlight
from trainer.metrics import MetricsWriter
from trainer.throughput import Throughput

from .notices import Notices


class Spikes(Reporter):
    """Keeps the losses that stand out."""

    def __init__(self) -> None:
        super().__init__(None)
        self.told: list[LossSpike] = []

    def loss_spike(self, spike: LossSpike) -> None:
        self.told.append(spike)


def test_a_loss_that_stands_out_is_told_though_its_step_is_not_reported(tmp_path: Path) -> None:
    """Fast steps are reported ten times a second, but each loss is looked at."""
    spikes, said = Spikes(), Notices()
    metrics = MetricsWriter(None, "phase", 1, said)
    faults = FaultInjector((), tmp_path)
    in_flight = InFlight(2, 1000, spikes, metrics, faults, Throughput(said))
    for step in range(1, 61):
        loss = jnp.float32(8.0 if step == 50 else 2.0)
        in_flight.add(step, {"loss": loss, "finite": jnp.bool_(True)})
    in_flight.drain()
    assert [(each.step, each.loss, each.usual) for each in spikes.told] == [(50, 8.0, 2.0)]
    assert said == []
