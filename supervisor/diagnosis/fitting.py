"""Checks whether a printed error can have ended its process, given how the process ended.

A program may print a traceback and go on: because it caught the error, because a child process
failed, or because it prints texts that hold tracebacks, as language models write them. An exception
that nobody catches ends Python with exit code 1, and little is printed after it. The failure
record, if there is one, names this exception.
"""

from __future__ import annotations

from supervisor.diagnosis.chain import Chain, Origin
from supervisor.diagnosis.failure import RankEvidence
from supervisor.diagnosis.signals import NATIVE_ENDS, signal_of
from supervisor.diagnosis.weighing import is_hearsay

_SAYS_GOODBYE = 12
"""Lines that may follow the last exception, from loggers, exit handlers and other threads."""
_UNCAUGHT = 1


def misfit(chain: Chain, rank: RankEvidence) -> str:
    """Returns why an error need not have ended the process; empty: it fits the end."""
    record, ended = rank.record, rank.exit
    if is_hearsay(chain) or chain.origin is Origin.THREAD:
        return chain.origin.told
    if record is not None:
        return "" if not record.is_mere_exit else "the program itself chose to exit after it"
    if ended.code is None and ended.signal is None:
        return ""
    if chain.origin is Origin.ABORT:
        fits = signal_of(ended) in NATIVE_ENDS
        return (
            ""
            if fits
            else f"native code ends a process with a signal after such a message, but: {ended}"
        )
    if ended.code != _UNCAUGHT:
        return f"an exception that nobody catches ends Python with exit code 1, but: {ended}"
    if chain.followed > _SAYS_GOODBYE:
        return f"{chain.followed} lines were printed after it"
    return ""
