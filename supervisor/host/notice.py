"""A sentence for people that knows its name and its keys, so that tools need not read it.

Whatever hands sentences on hands a `Notice` on as it is; the event log asks it for the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping


class Notice(str):
    """What a person should know, with its stable name and the keys that tools read."""

    __slots__ = ("event", "keys")
    event: str
    keys: Mapping[str, object]

    def __new__(cls, event: str, text: str, /, **keys: object) -> Notice:
        """The event `event` of `narrative.catalogue`, told by `text`."""
        notice = super().__new__(cls, text)
        notice.event, notice.keys = event, keys
        return notice


Tell = Callable[[Notice], None]
"""Tells a person something."""
