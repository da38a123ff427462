"""Tells people of losses that are NaN or Inf in lines that were only taken for steps.

Nobody said that these lines tell the loss, so nothing is decided by them (see `loss_watch`).
"""

from __future__ import annotations

from math import isfinite

from supervisor.host.notice import Notice
from supervisor.protocol.messages import StepMessage

_LOSS = "loss"
_IN_A_ROW = 10


class ShownLosses:
    """The losses that the present attempt shows."""

    def __init__(self) -> None:
        self._attempt: int | None = None
        self._since: int | None = None
        self._times = 0

    def hear(self, attempt: int, message: StepMessage) -> Notice | None:
        """Take note of a step; returns what to tell, once when enough losses in a row are bad."""
        loss = message.metrics.get(_LOSS)
        if not message.recognised or loss is None:
            return None
        if attempt != self._attempt or isfinite(loss):
            self._attempt, self._since, self._times = attempt, None, 0
        if isfinite(loss):
            return None
        # Of several steps that were read together, the loss is that of the last one.
        self._since = message.step if self._since is None else self._since
        self._times += 1
        return self._notice() if self._times == _IN_A_ROW else None

    def ended(self, attempt: int) -> Notice | None:
        """The attempt has ended well; returns what to tell, if its last losses are bad and nobody
        was told."""
        is_untold = attempt == self._attempt and 0 < self._times < _IN_A_ROW
        return self._notice() if is_untold else None

    def _notice(self) -> Notice:
        text = (
            f"the lines that are taken for steps show a loss that is NaN or Inf since step "
            f"{self._since} or before. It is left alone: with progress.pattern, or reported "
            "losses, such a program is ended before it replaces every good checkpoint"
        )
        return Notice("losses-doubtful", text, step=self._since, number=self._times)
