"""Tells what is the job's among this supervisor's own children.

While the guard lives, all of the job is below it, so nothing here is. A guard that dies leaves its
orphans to us, a subreaper. But there may be others: programs that ran before us in this process's
place (`program & exec supervise run ...`), and what they orphan to us. They are *foreign*.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection

from supervisor.host import tree
from supervisor.host.waiting import reaped


class Orphans:
    """Looks at our children. What is in our own session is not the job's, and somebody here waits
    for it."""

    def __init__(self) -> None:
        """To be made before anything is started."""
        self._own = os.getsid(0)
        self._strangers: set[int] = set()
        before = map(tree.stat, tree.children(os.getpid()))
        self._has_foreign = any(one is not None and one.state not in tree.GONE for one in before)
        """Whether there are, or were, foreign children."""

    def look(self, is_dead: Callable[[], bool]) -> None:
        """Take note of foreign children, and wait for those that are dead, unless the guard
        `is_dead`."""
        seen = self._children()
        strangers = {one.session for _, one in seen}
        if is_dead():
            return
        # A session is foreign only if two looks see it: a dying guard's orphans also appear here.
        self._has_foreign |= bool(self._strangers & strangers)
        self._strangers = strangers
        for pid, one in seen:
            if one.state in tree.GONE:
                reaped(pid)

    def of_the_job(
        self, inside: Collection[int], is_known: Callable[[int, tree.Stat], bool]
    ) -> list[tuple[int, tree.Stat]]:
        """What a dead guard has left to us.

        Where some are foreign, a child may be one of them: then it has to be `inside` our cgroup,
        or known.
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
