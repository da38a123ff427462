"""Tells what a person had changed in the config before an attempt failed: it may be the cause."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from supervisor.history.past import ConfigChange, Past
from supervisor.narrative.event_line import count

_SHOWN = 3
"""How many changed keys people are told."""
_UNDO = (
    "if that is the cause, as where the checkpoints do not fit the new values: change it back, or "
    "begin another job in another model_dir"
)


def change_before(past: Past, attempt: int | None) -> ConfigChange | None:
    """Returns the last change of the config, if `attempt` ran with it; None: it did not, or there
    was no change, or no attempt."""
    change = past.config_change
    return change if change and attempt is not None and attempt > change.after_attempt else None


def changed_key_lines(change: ConfigChange | None) -> Iterator[str]:
    """Yields the changed keys in words, and what to do if they are the cause."""
    if change is None:
        return
    for key in islice(change.keys, _SHOWN):
        yield f"the config changed after attempt {change.after_attempt}: {key}"
    if more := len(change.keys[_SHOWN:]) + change.others:
        yield f"and {count(more, 'other key')} with it: run.log names all (config-changed)"
    yield _UNDO
