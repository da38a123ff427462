"""Finds a loss that stands out from those before it. Pure. It tells, and decides nothing: see
`docs/adr/0108-a-loss-that-stands-out-decides-nothing.md`.

What is usual follows from the median and the median absolute deviation of the last losses, which a
few outliers do not move (Leys et al., 2013). While losses fall, that range is as wide as the fall.
So a loss is compared with the median of the last few, too: how far losses usually are from that is
the noise alone (a Hampel filter). A loss far above either range is a spike; one below is none.
Losses that stay high are told once, and are what is usual after a while.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import exp, inf, isfinite, log
from operator import itemgetter
from statistics import median, median_low
from typing import Annotated

_WINDOW = 100
"""Losses that say what is usual."""
_FEWEST = 32
"""The fewest losses before a spike is told."""
_DEVIATIONS = 8.0
"""How many standard deviations above the median a spike is, at least: of noise alone, not one in
10^15."""
_PER_MAD = 1.4826
"""Standard deviations in a median absolute deviation, of normal noise."""
_LEAST_SHARE = 0.05
"""How far above the median a spike is at least, as a share of it."""
_LEAST = 1e-3
"""The same, for losses near 0."""
_FEW = 8
"""The last losses: while losses fall, a spike is above all of them."""
_LARGEST_LOG = 700.0
"""The logarithm of about the largest number."""


Measured = Annotated[float, "as a program has measured it"]
"""A number as large as a program makes it, which the journal keeps as it is."""


@dataclass(frozen=True, slots=True)
class LossSpike:
    """A loss that stands out from those before it."""

    step: int
    loss: Measured
    """The loss of that step."""
    usual: Measured
    """The median of the losses before it, or of the last few of them."""
    bound: Measured
    """The highest loss that would have been usual."""


@dataclass(frozen=True, slots=True)
class _Heard:
    """The loss of a step."""

    step: int
    loss: float
    wanted: int
    """How many usual losses must come after it before the next spike is told."""
    apart: float | None
    """The logarithm of its ratio to the median of the few losses before it; None: there is none."""


class SpikeDetector:
    """Follows the losses of a run. A step that is told again goes back to it: all that was heard
    from that step on is forgotten."""

    def __init__(self) -> None:
        self._heard: deque[_Heard] = deque(maxlen=_WINDOW)

    def hear(self, step: int, loss: float) -> LossSpike | None:
        """Take note of the loss of a step; returns the spike that it is, if it is one. NaN and Inf
        are told elsewhere."""
        while self._heard and self._heard[-1].step >= step:
            self._heard.pop()
        if not isfinite(loss):
            return None
        known = [each.loss for each in self._heard]
        wanted = self._heard[-1].wanted if self._heard else 0
        apart = _apart(known[-_FEW:], loss)
        if len(known) < _FEWEST:
            self._heard.append(_Heard(step, loss, wanted, apart))
            return None
        if loss <= _least_bound(known):  # most are: the rest would cost a step of a small model
            self._heard.append(_Heard(step, loss, max(0, wanted - 1), apart))
            return None
        usual, bound = min(self._of_all(known), self._of_the_last(known), key=itemgetter(1))
        is_usual = loss <= bound
        self._heard.append(_Heard(step, loss, max(0, wanted - 1) if is_usual else _FEWEST, apart))
        return None if is_usual or wanted else LossSpike(step, loss, usual, bound)

    def _of_all(self, known: list[float]) -> tuple[float, float]:
        """Return the median of all known losses, and what is usual at most."""
        usual = median_low(known)  # the mean of two may be beyond all numbers
        spread = _PER_MAD * median(abs(each - usual) for each in known)
        return usual, usual + max(_DEVIATIONS * spread, _LEAST_SHARE * abs(usual), _LEAST)

    def _of_the_last(self, known: list[float]) -> tuple[float, float]:
        """Return the same of the last few; it is infinite where these tell nothing."""
        apart = [each.apart for each in self._heard if each.apart is not None]
        last = known[-_FEW:]
        if len(apart) < _FEWEST or min(last) <= 0:
            return 0.0, inf
        usual, centre = median_low(last), median(apart)
        off = [abs(each - centre) for each in apart]
        # Noise may be a larger part of a loss that has fallen: the newest count alone, too.
        spread = _PER_MAD * max(median(off), median(off[-_FEW:]), median(off[-_FEWEST:]))
        # The faster losses fall, the lower is the centre: but the fall may end at any step.
        highest = log(usual) + max(0.0, centre) + _DEVIATIONS * spread
        if highest > _LARGEST_LOG:
            return usual, inf
        return usual, max(exp(highest), max(last) * (1 + _LEAST_SHARE), max(last) + _LEAST)


def _least_bound(known: list[float]) -> float:
    """Return a lower limit of the bound, without the deviations."""
    usual, highest = median_low(known), max(known[-_FEW:])
    return min(usual + max(_LEAST_SHARE * abs(usual), _LEAST), highest + _LEAST)


def _apart(last: list[float], loss: float) -> float | None:
    if len(last) < _FEW or loss <= 0 or min(last) <= 0:
        return None
    return log(loss) - log(median_low(last))
