"""Decide whether an attempt may resume from a snapshot in memory of the attempt before it.

A snapshot is only as good as the process that took it. So it is used only if that process was
killed from outside or hung, and is not known to have done anything wrong. And it is tried once: if
the attempt that got it commits no newer checkpoint either, the snapshot itself may be the fault.
"""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.diagnosis.failure import Failure

SOUND = frozenset({"hang", "hangup", "host-oom-kill", "sigkill", "sigkill-or-memory", "sigterm"})
"""The rules that say nothing against the state in memory: a kill, a hang, a preemption. Not among
them: exceptions and NaN; a crash of native code, which may have written anywhere; rules of the
user's own, whose meaning we do not know."""


@dataclass(frozen=True, slots=True)
class SnapshotUse:
    """How an attempt used the snapshot memory that it was given."""

    offered: bool
    """Whether the memory had a snapshot to resume from."""
    declined: bool
    """Whether the attempt reported that it resumed from something else."""
    committed: bool
    """Whether a newer checkpoint was committed since it began."""


def distrust(failure: Failure | None) -> str:
    """Returns why the attempt after `failure` must not resume from memory; empty: it may."""
    if failure is None:
        return "nothing tells how the last attempt ended"
    if failure.rule not in SOUND:
        return f"after this failure ({failure.cause}) the state in memory is not trusted"
    return ""


def refusal(distrust: str, use: SnapshotUse) -> str | None:
    """Returns why the next attempt must not resume from memory, by `use` of the last; None: it
    may."""
    if distrust:
        return distrust
    if use.offered and not use.declined and not use.committed:
        return "the last attempt had them and failed before a new checkpoint"
    return None
