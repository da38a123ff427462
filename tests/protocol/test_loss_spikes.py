"""Which losses stand out: none of a smooth curve, each that was planted."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from supervisor.history.encoding import decode, encode
from supervisor.protocol.loss_spikes import LossSpike, SpikeDetector


@st.composite
def curves(draw: st.DrawFn) -> tuple[list[float], float]:
    """Losses that fall along a curve with normal noise, and the deviation of that."""
    begin, end = draw(st.floats(0.5, 12)), draw(st.floats(0, 4))
    decay, noise = draw(st.floats(5, 2000)), draw(st.floats(0, 0.3))
    dice = random.Random(draw(st.integers(0, 2**32)))
    curve = [end + begin * math.exp(-step / decay) for step in range(400)]
    return [each + dice.gauss(0, noise) for each in curve], noise


def spikes(losses: Iterable[float], detector: SpikeDetector | None = None) -> list[LossSpike]:
    detector = detector or SpikeDetector()
    told = (detector.hear(step, loss) for step, loss in enumerate(losses, 1))
    return [each for each in told if each is not None]


@given(curves())
def test_losses_that_fall_with_noise_are_usual(curve: tuple[list[float], float]) -> None:
    losses, _ = curve
    assert spikes(losses) == []


@given(curves(), st.integers(150, 399))
def test_a_planted_spike_is_told_with_what_was_usual(
    curve: tuple[list[float], float], at: int
) -> None:
    losses, noise = curve
    before = losses[at - 100 : at]
    losses[at] = max(before) + 15 * noise + 10 * (max(before) - min(before)) + 0.2 * max(before) + 1
    (found,) = spikes(losses)
    assert (found.step, found.loss) == (at + 1, losses[at])
    assert min(before) <= found.usual <= max(before)
    assert found.usual < found.bound < found.loss


def falling(seed: int) -> tuple[list[float], float]:
    """Losses as they fall in training, with noise of their own size and of a fixed one; and the
    largest noise of one of them, as a share of it."""
    dice = random.Random(seed)
    begin, end, fixed = dice.uniform(1, 12), dice.uniform(0, 2), dice.choice([0, 0.003])
    slow, own = 10 ** dice.uniform(0.9, 3), dice.choice([0, 0.01, 0.1])
    kind = dice.choice(["exponential", "power", "after a plateau", "by halves"])
    power = dice.uniform(0.1, 1.5)
    curves = {
        "exponential": [math.exp(-step / slow) for step in range(250)],
        "power": [(1 + step / 10) ** -power for step in range(250)],
        "after a plateau": [min(1.0, math.exp((60 - step) / slow)) for step in range(250)],
        "by halves": [0.5 ** (step // 70) for step in range(250)],
    }
    values = [end + begin * (0.02 + each) for each in curves[kind]]
    noise = (dice.gauss(0, 1) for _ in values)
    found = [each * (1 + own * one) + fixed * one for each, one in zip(values, noise, strict=True)]
    return found, own + fixed / min(values)


def test_a_doubled_loss_is_told_while_losses_fall_fast() -> None:
    """And never one of the losses that only fall."""
    missed = list[int]()
    for seed in range(100):
        losses, noise = falling(seed)
        assert spikes(losses) == [], seed
        at = 45 + seed % 100
        losses[at] *= 2
        if noise < 0.02 and [each.step for each in spikes(losses[: at + 1])] != [at + 1]:
            missed.append(seed)
    assert len(missed) <= 5, missed  # the medians of all losses alone miss about thirty


def test_a_fall_that_ends_is_no_spike() -> None:
    fall = [10 * 0.9**step for step in range(60)]
    assert spikes([*fall, *[fall[-1]] * 60, *[fall[-1] * 1.04] * 20]) == []
    assert len(spikes([*fall, fall[-8] * 1.06])) == 1


def test_losses_at_zero_or_below_are_compared_with_all_alone() -> None:
    losses = [math.sin(step) for step in range(100)]
    assert spikes(losses) == []
    assert [each.step for each in spikes([*losses, 20.0])] == [101]


def test_too_few_losses_tell_nothing() -> None:
    assert spikes([2.0] * 31 + [9.0]) == []
    assert [each.step for each in spikes([2.0] * 32 + [9.0])] == [33]


def test_losses_that_stay_high_are_told_once_and_become_usual() -> None:
    jump = [2.0] * 100 + [9.0] * 200
    assert [each.step for each in spikes(jump)] == [101]
    assert [each.step for each in spikes([*jump, 40.0])] == [101, 301]


def test_a_step_that_is_run_again_is_told_again_and_counts_once() -> None:
    detector = SpikeDetector()
    assert len(spikes([2.0] * 40 + [9.0], detector)) == 1
    for step in range(41, 90):
        assert detector.hear(step, 2.0) is None
    detector.hear(35, 2.0)
    detector.hear(36, math.nan)
    assert detector.hear(37, 9.0) == LossSpike(37, 9.0, 2.0, 2.1)


def test_after_a_restart_the_same_spike_is_told_again() -> None:
    detector = SpikeDetector()
    (first,) = spikes([2.0] * 40 + [9.0, 2.0, 2.0], detector)
    for step in range(38, 41):
        assert detector.hear(step, 2.0) is None
    assert detector.hear(41, 9.0) == first
    assert detector.hear(42, 9.0) is None, "the same episode"
    assert detector.hear(42, 9.0) is None, "going back into it does not end it"


def test_losses_below_the_usual_ones_are_no_spike() -> None:
    assert spikes([2.0] * 50 + [0.1]) == []


def test_losses_may_be_as_large_as_numbers_are() -> None:
    assert spikes([-1.7e308] * 40) == []
    (found,) = spikes([1.5] * 40 + [1.7e308])
    assert decode(encode(found, LossSpike), LossSpike) == found
