"""What the supervisor asks an attempt to do otherwise: as far as it goes, and no numbers change."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.config.training.layout import rung
from supervisor.config.training.resolved import parse
from supervisor.config.training.sections import LoopConfig
from supervisor.protocol.adjustments import Adjustments
from supervisor.protocol.environment import ADJUST

from .harness import MakeTrainer, tiny

SIZES = st.integers(1, 64)


@given(SIZES, SIZES, st.integers(1, 8), st.integers(1, 64))
def test_more_accumulation_leaves_the_global_batch(
    share: int, micro: int, devices: int, factor: int
) -> None:
    loop = LoopConfig(max_steps=1, global_batch_size=share * devices, micro_batch_size=micro)
    init = parse(tiny(Path("/tmp/checkpoints"))).init.model_copy(update={"loop": loop})
    before, after = rung(init, devices), rung(init, devices, factor)
    assert before is not None
    assert after is not None
    assert after.per_device_batch * after.accumulation == share
    assert after.accumulation >= min(share, factor * before.accumulation)
    assert after.per_device_batch <= max(1, before.per_device_batch // factor)


@given(st.integers(1, 9), st.integers(1, 9), st.lists(st.integers(1, 10**6)))
def test_adjustments_survive_the_way_to_the_worker(
    inflight: int, accumulation: int, steps: list[int]
) -> None:
    asked = Adjustments(inflight, accumulation, tuple(steps))
    assert Adjustments.from_environment(asked.to_environment()) == asked


def test_nothing_is_said_where_nothing_is_to_be_adjusted() -> None:
    assert Adjustments().to_environment() == {}
    assert Adjustments.from_environment({}) == Adjustments()


@pytest.mark.slow
def test_a_run_with_more_accumulation_ends_with_the_same_numbers(make_trainer: MakeTrainer) -> None:
    plain = make_trainer("plain", max_steps=5)
    assert "accumulation 1" in plain.finish()
    adjusted = make_trainer("adjusted", max_steps=5)
    adjusted.extra[ADJUST] = json.dumps({"inflight": 2, "accumulation": 2})
    assert "4 sequences a device at a time, accumulation 2" in adjusted.finish()
    pairs = zip(
        jax.tree.leaves(plain.state(5).params),
        jax.tree.leaves(adjusted.state(5).params),
        strict=True,
    )
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
