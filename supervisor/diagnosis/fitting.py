"""Whether an error that was printed can be what ended its process, by how that ended.

A program may print a traceback and go on: because it has caught the error, because a child of it
failed, or because it prints texts that hold tracebacks, as language models write them. An exception
that nobody catches ends Python with exit code 1 and is the last thing that it says; the failure
record, where there is one, names it.
"""

from __future__ import annotations

from supervisor.diagnosis.chain import Chain, Origin
from supervisor.diagnosis.failure import RankEvidence
from supervisor.diagnosis.signals import NATIVE_ENDS, signal_of
from supervisor.diagnosis.weighing import is_hearsay

_SAYS_GOODBYE = 12
"""Lines that may follow the last exception: loggers, exit handlers and other threads end, too."""
_UNCAUGHT = 1


def misfit(chain: Chain, rank: RankEvidence) -> str:
    """Why an error need not have ended the process; empty: it fits its end."""
    record, ended = rank.record, rank.exit
    if is_hearsay(chain) or chain.origin is Origin.THREAD:
        return chain.origin.told
    if record is not None:
        return "" if not record.is_mere_exit else "the program itself chose to exit after it"
    if ended.code is None and ended.signal is None:
        return ""
    if chain.origin is Origin.ABORT:
        fits = signal_of(ended) in NATIVE_ENDS
        return "" if fits else f"what native code says ends a process otherwise: {ended}"
    if ended.code != _UNCAUGHT:
        return f"an exception that nobody catches ends Python with exit code 1: {ended}"
    if chain.followed > _SAYS_GOODBYE:
        return f"{chain.followed} lines were printed after it"
    return ""
