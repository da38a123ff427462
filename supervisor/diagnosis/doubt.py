"""Finds what contradicts a success: the exit code is right, but the output ends in a traceback,
or in a line of a shell that the program was killed.

The attempt remains a success, because a program may print a traceback of an error that it handled;
but a person should know about it. Only where the exit code is known to be that of another process,
as in `python train.py | tee log`, is it no success.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from supervisor.diagnosis.chain import Origin
from supervisor.diagnosis.failure import Evidence, RankEvidence
from supervisor.diagnosis.log_lines import clean_lines
from supervisor.diagnosis.rootcause import chains_of_text
from supervisor.diagnosis.rules import KILLED
from supervisor.protocol.messages import printable

_TAIL_LINES = 100
"""The number of last lines in which the traceback must be."""
_LINES_AFTER = 12
"""Lines that may follow the exception: more lines of its message, and last lines of loggers."""
_MAX_SHOWN = 300
_UNCAUGHT = (Origin.MAIN,)
_ENDING = (Origin.MAIN, Origin.ABORT)
_KILLED = re.compile(KILLED)


def doubt(
    evidence: Evidence, redact: Callable[[str], str] = str, *, is_proven: bool = False
) -> str | None:
    """Returns the exception of the uncaught traceback at the end of a rank's output, or the line
    there that tells of a kill; None: no rank has one.

    `redact` removes its secrets: see `judge`. If the success `is_proven` by more than the exit
    code, a kill is no doubt.
    """
    found = [_last_error(rank.output, _UNCAUGHT) for rank in evidence.ranks]
    if not is_proven:
        found += [_last_kill(rank.output) for rank in evidence.ranks]
    line = next((line for line in found if line is not None), None)
    return printable(redact(line)[:_MAX_SHOWN]) if line is not None else None


def tells_of_kill(line: str) -> bool:
    """True if a shell or make says with `line` that SIGKILL ended a program."""
    return _KILLED.match(line) is not None


def _last_kill(output: str) -> str | None:
    tail = [line for line in output.splitlines() if line.strip()][-_LINES_AFTER - 1 :]
    return next(filter(tells_of_kill, reversed(clean_lines("\n".join(tail)))), None)


def hidden_failure(rank: RankEvidence) -> bool:
    """True if the rank failed, but has the exit code of the process that reads its output: there is
    a failure record, or its output ends in an error that ended it."""
    if not rank.code_of_reader:
        return False
    return rank.record is not None or _last_error(rank.output, _ENDING) is not None


def _last_error(output: str, origins: tuple[Origin, ...]) -> str | None:
    tail = [line for line in output.splitlines() if line.strip()][-_TAIL_LINES:]
    chains = chains_of_text("\n".join(tail))
    uncaught = [chain for chain in chains if chain.origin in origins]
    if not uncaught:
        return None
    line = uncaught[-1].members[-1].line
    end = "\n".join(tail[-_LINES_AFTER - 1 :])
    return line if line in end else None
