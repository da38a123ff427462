"""Whether a program has trained as far as a committed step, or has copied it as a base model.

A base model that is copied as the program begins looks like a save, and its step may be the very
one that completes the work. The steps that the program tells show the difference: after its last
save it tells no lower steps. Steps that are only recognised in the output are enough here, because
they cannot prove a success: they only keep one from being believed.
"""

from __future__ import annotations

from supervisor.core.budget import about

_LATE = 1.0
"""Seconds after a commit in which steps may be heard of that came before it: output is read with a
delay."""


def trained_to(
    committed: int, saved: int | None, step: int | None, heard_after: float | None
) -> bool | None:
    """Returns whether the program has trained as far as the step `committed`; None: nothing shows
    it.

    `saved` is the last step that it reported to have saved, `step` the last one that it told, which
    was heard of `heard_after` seconds after the commit. None: not known.
    """
    if saved is not None and saved >= committed:
        return True
    if step is None or heard_after is None:
        return None
    if step >= committed - about(committed):
        return True
    # What came before the commit led to it, also where the output counts something else.
    return heard_after <= _LATE
