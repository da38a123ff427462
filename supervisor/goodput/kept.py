"""The ledger in the snapshots of the journal, so that nobody need read a year of records for it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any

from supervisor.goodput.wall_time import Ledger
from supervisor.history.encoding import EncodingError, decode, encode
from supervisor.history.fold import History
from supervisor.ports import Transition

GOODPUT = "goodput"
"""The name of the ledger's view in the journal."""
_FORMAT = 1
"""The version of the view: one of another version is made anew from all records."""


def view_of(ledger: Ledger) -> dict[str, Any]:
    """Returns the ledger as JSON."""
    return {"v": _FORMAT, "ledger": encode(ledger, Ledger)}


def ledger_before(history: History) -> Ledger | None:
    """Returns the ledger up to the first of the history's transitions; None: it is not kept, and
    all archived records would have to be read."""
    if history.snapshot is None:
        return Ledger()
    match history.snapshot.views.get(GOODPUT):
        case {"v": 1, "ledger": body}:
            try:
                ledger: Ledger = decode(body, Ledger)
            except EncodingError:
                return None
            return ledger
    return None


def ledger_after(ledger: Ledger, transitions: Iterable[Transition]) -> Ledger:
    """Returns the ledger after all of these transitions."""
    return reduce(Ledger.after, transitions, ledger)
