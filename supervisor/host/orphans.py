"""Finds the job's processes among this supervisor's own children.

While the guard lives, all processes of the job are below it, and none is our child. If the guard
dies, its orphans become our children, because we are a subreaper. But we may have other children:
what a shell started before it became this process (`program & exec supervise run ...`), and the
orphans of that. They are *foreign*.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection

from supervisor.host import tree
from supervisor.host.waiting import reaped


class Orphans:
    """Watches our children. Those in our own session are never the job's: whoever started them here
    reaps them."""

    def __init__(self) -> None:
        """Create it before anything is started: every child that exists now is foreign."""
        self._own = os.getsid(0)
        self._strangers: set[int] = set()
        before = map(tree.stat, tree.children(os.getpid()))
        self._has_foreign = any(one is not None and one.state not in tree.GONE for one in before)
        """Whether there are, or were, foreign children."""

    def look(self, is_dead: Callable[[], bool]) -> None:
        """Notice and reap foreign children. Does nothing if the guard `is_dead`: then children may
        be the job's."""
        seen = self._children()
        strangers = {one.session for _, one in seen}
        if is_dead():
            return
        # Only a session seen twice in a row is foreign: orphans of a dying guard appear here too.
        self._has_foreign |= bool(self._strangers & strangers)
        self._strangers = strangers
        for pid, one in seen:
            if one.state in tree.GONE:
                reaped(pid)

    def of_the_job(
        self, inside: Collection[int], is_known: Callable[[int, tree.Stat], bool]
    ) -> list[tuple[int, tree.Stat]]:
        """Return the children that a dead guard has left to us.

        If there are foreign children too, a child counts as the job's only if it is `inside` our
        cgroup, or `is_known` recognises it.
        """
        return [
            (pid, seen)
            for pid, seen in self._children()
            if not self._has_foreign or pid in inside or is_known(pid, seen)
        ]

    def _children(self) -> list[tuple[int, tree.Stat]]:
        found = ((pid, tree.stat(pid)) for pid in tree.children(os.getpid()))
        return [
            (pid, seen) for pid, seen in found if seen is not None and seen.session != self._own
        ]
