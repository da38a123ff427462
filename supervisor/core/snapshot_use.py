"""Whether an attempt may resume from what the attempt before it left in memory.

A snapshot is as good as the process that took it was, so it is used only where that process was
ended from outside or stood still, and did no wrong that anybody knows of. And it is tried once: if
the attempt that was let have it gets no further than the last checkpoint either, the snapshot may
be what ails it.
"""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.diagnosis.failure import Failure

SOUND = frozenset({"hang", "hangup", "host-oom-kill", "sigkill", "sigkill-or-memory", "sigterm"})
"""The rules about ends that say nothing against the state in memory: a kill, a hang, a preemption.
Not among them: an exception and NaN; a crash of native code, which may have written anywhere; a
rule of the user's own, of which nobody knows."""


@dataclass(frozen=True, slots=True)
class SnapshotUse:
    """What an attempt made of the memory that it was given."""

    offered: bool
    """Whether there was a snapshot in it to resume from."""
    declined: bool
    """Whether it said that it began from something else."""
    committed: bool
    """Whether a newer checkpoint was committed since it began."""


def distrust(failure: Failure | None) -> str:
    """Why the attempt after one that ended with `failure` must not resume from memory; empty: the
    failure says nothing against it."""
    if failure is None:
        return "nothing tells how the last attempt ended"
    if failure.rule not in SOUND:
        return f"after this failure ({failure.cause}) the state in memory is not trusted"
    return ""


def refusal(distrust: str, use: SnapshotUse) -> str | None:
    """Why the next attempt may not resume from memory, as the last one used it; None: it may."""
    if distrust:
        return distrust
    if use.offered and not use.declined and not use.committed:
        return "the last attempt had them and failed before a new checkpoint"
    return None
