"""A sentence for people that carries its event's name and keys, so that tools need not parse it.

It is a `str`: code that passes sentences on needs no change, and the event log reads name and keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping


class Notice(str):
    """What a person should know, with its stable name and the keys that tools read."""

    __slots__ = ("event", "keys")
    event: str
    keys: Mapping[str, object]

    def __new__(cls, event: str, text: str, /, **keys: object) -> Notice:
        """Create the event `event` of `narrative.catalogue`; `text` is its sentence."""
        notice = super().__new__(cls, text)
        notice.event, notice.keys = event, keys
        return notice


Tell = Callable[[Notice], None]
"""Tells a person something: passes a notice to the event log."""
