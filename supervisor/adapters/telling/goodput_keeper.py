"""Keeps the job's ledger of wall time for the journal's snapshots, and tells the goodput where the
job ends."""

from __future__ import annotations

from typing import Any

from supervisor.core.decisions import FinishJob, StartWorkers
from supervisor.goodput.goodput_text import goodput_record, goodput_text
from supervisor.goodput.kept import ledger_after, ledger_before, view_of
from supervisor.goodput.wall_time import Ledger
from supervisor.history.fold import History
from supervisor.host.notice import Notice, Tell
from supervisor.ports import Transition


class GoodputKeeper:
    """Follows the wall time of the job, if it is known from the job's first start on."""

    def __init__(self, say: Tell) -> None:
        self._ledger: Ledger | None = None
        """None: it is not known."""
        self._has_run = False
        """Whether this supervisor has started an attempt."""
        self._say = say

    def restore(self, history: History) -> None:
        """Take in what earlier supervisors did."""
        ledger = ledger_before(history)
        self._ledger = None if ledger is None else ledger_after(ledger, history.transitions)

    def observe(self, told: Transition) -> None:
        """See `ports.Observer`."""
        if self._ledger is None:
            return
        self._ledger = self._ledger.after(told)
        self._has_run |= any(isinstance(each, StartWorkers) for each in told.decisions)
        if self._has_run and any(isinstance(each, FinishJob) for each in told.decisions):
            goodput = self._ledger.so_far()
            self._say(Notice("goodput", goodput_text(goodput), **goodput_record(goodput)))

    def view(self) -> dict[str, Any] | None:
        """Returns the ledger for the journal's snapshot; None: it is not known."""
        return None if self._ledger is None else view_of(self._ledger)
