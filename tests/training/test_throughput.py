"""How well the devices are used: waiting for data, and operations against the peak."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from supervisor.config.generations import GENERATIONS
from supervisor.config.training.layout import Rung
from supervisor.config.training.resolved import parse
from supervisor.config.training.sections import GrpoConfig
from supervisor.protocol import metrics_file
from supervisor.protocol.messages import NoticeCode
from trainer.batch_sharder import BatchSharder
from trainer.flops import PEAK_FLOPS, peak_flops, step_flops
from trainer.grpo import GroupRelative
from trainer.mesh import make_mesh
from trainer.objective import NextToken
from trainer.step import jit_train_step
from trainer.throughput import Throughput
from trainer.train_state import TrainStateSpec

from .harness import tiny
from .notices import Notices


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def steps(it: Throughput, clock: Clock, number: int, wait: float, work: float) -> list[float]:
    """Takes `number` steps; the shares of waiting that were measured."""
    found = []
    for step in range(1, number + 1):
        with it.waiting():
            clock.now += wait
        clock.now += work
        found += [it.completed(step).get(metrics_file.DATA_WAIT)]
    return [each for each in found if each is not None]


def test_the_share_of_waiting_is_measured_without_evaluations() -> None:
    clock, said = Clock(), Notices()
    it = Throughput(said, clock=clock)
    clock.now += 50
    it.start_over()
    assert steps(it, clock, 8, 0.25, 0.75) == pytest.approx([0.25] * 4)
    assert it.completed(9) == {}
    assert said == []


@pytest.mark.parametrize(
    ("wait", "work", "is_told"), [(0.05, 0.95, True), (0.01, 0.99, False), (0.001, 0.001, False)]
)
def test_waiting_that_goes_on_is_told_once(wait: float, work: float, is_told: bool) -> None:
    """Where steps take milliseconds, a large share is no matter."""
    clock, said = Clock(), Notices()
    steps(Throughput(said, clock=clock), clock, round(70 / (wait + work)), wait, work)
    assert said.codes == [NoticeCode.DATA_SLOW] * is_told


def test_the_use_of_the_devices_is_told_where_their_peak_is_known() -> None:
    clock = Clock()
    it = Throughput(Notices(), 3e14, peak_flops("TPU v4", 4), clock)
    clock.now += 4
    assert it.completed(1)[metrics_file.MFU] == pytest.approx(3e14 / 4 / (4 * 275e12))
    assert peak_flops("cpu", 1) is None


def test_the_use_of_the_devices_is_not_known_where_the_model_makes_completions() -> None:
    init = parse(tiny(Path("/nowhere"))).init
    grpo = GrpoConfig.model_validate({"reward": "rewards:own", "completion_length": 4})
    assert step_flops(init, GroupRelative(grpo, 8, 16), 16) is None
    clock = Clock()
    it = Throughput(Notices(), None, peak_flops("TPU v4", 4), clock)
    clock.now += 4
    assert it.completed(1).keys() == {metrics_file.DATA_WAIT}


def test_the_peaks_have_the_names_of_devices_that_we_know_elsewhere() -> None:
    known = {kind for each in GENERATIONS.values() for kind in each.device_kinds}
    assert {kind for kind in PEAK_FLOPS if kind.startswith("TPU")} <= known


def test_operations_are_counted_as_xla_counts_them() -> None:
    """Of one micro-batch, so that no loop hides any; XLA also counts what is no product."""
    mapping = tiny(Path("/nowhere"))
    mapping["trainer"]["init"]["model"] |= {"hidden_size": 128, "num_layers": 2, "mlp_size": 256}
    init = parse(mapping).init
    one = Rung(1, 1, 1, 8, 1)
    sharder = BatchSharder(make_mesh(one), one)
    spec = TrainStateSpec.of(init, sharder.mesh)
    tokens = sharder.put(np.zeros((8, 65), np.int32))
    lowered = jit_train_step(spec).lower(spec.abstract, tokens)
    counted = lowered.cost_analysis()["flops"]
    assert step_flops(init, NextToken(), 64) == pytest.approx(counted, rel=0.1)
