"""Finds what contradicts a success: the exit code is right, but the output ends in a traceback.

In a shell, `python train.py | tee log` ends as `tee` does. The attempt remains a success, because a
program may print a traceback of an error that it handled; but a person should know about it.
"""

from __future__ import annotations

from collections.abc import Callable

from supervisor.diagnosis.chain import Origin
from supervisor.diagnosis.failure import Evidence
from supervisor.diagnosis.rootcause import chains_of_text
from supervisor.protocol.messages import printable

_TAIL_LINES = 100
"""The number of last lines in which the traceback must be."""
_LINES_AFTER = 12
"""Lines that may follow the exception: more lines of its message, and last lines of loggers."""
_MAX_SHOWN = 300


def doubt(evidence: Evidence, redact: Callable[[str], str] = str) -> str | None:
    """Returns the exception of the uncaught traceback at the end of a rank's output; None: no rank
    has one. `redact` removes its secrets: see `judge`."""
    found = (_uncaught_exception(rank.output) for rank in evidence.ranks)
    line = next((line for line in found if line is not None), None)
    return printable(redact(line)[:_MAX_SHOWN]) if line is not None else None


def _uncaught_exception(output: str) -> str | None:
    tail = [line for line in output.splitlines() if line.strip()][-_TAIL_LINES:]
    chains = chains_of_text("\n".join(tail))
    uncaught = [chain for chain in chains if chain.origin is Origin.MAIN]
    if not uncaught:
        return None
    line = uncaught[-1].members[-1].line
    end = "\n".join(tail[-_LINES_AFTER - 1 :])
    return line if line in end else None
