"""Proves of a step that nothing commits that its writer closed it while alive.

A program that is killed while it writes leaves a torn step, which may even look complete. So such a
step counts only once it was seen like this, during an attempt:

* it is new: not what was there when the watch of the attempt began;
* its structure is complete (`checkpoints.completeness`);
* no process has a file of it open for writing, and each file stays the same during the look;
* all workers live, before and after: none of them was killed in the middle of it. Once SIGTERM
  was sent, a shell proves nothing: in its place, what ran below it lives.

What was seen so is remembered by inode, size and time of change, and counts as long as it is the
same. When the attempt is over, a step that nobody saw counts only if all workers exited with code
0, because such an exit closes all files. After SIGTERM, that must hold for what ran below a shell
(`SurvivorWatch.have_closed_all`).

What was there before the first attempt of this supervisor counts if it is complete: it is where the
program begins.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from supervisor.adapters.kernel.open_files import is_open_by
from supervisor.checkpoints.completeness import files_of, is_complete
from supervisor.host import tree
from supervisor.protocol.checkpoint_layouts import Structure, structure_of, structure_of_own
from supervisor.protocol.committed import OwnNames, step_entries
from supervisor.protocol.reading import UnreadableError

Workers = Callable[[], Iterable[int]]
"""Returns the pids of the workers that have not exited with code 0, or in place of a shell those of
its programs (`SurvivorWatch.writers`). Safe in any thread."""
_Print = tuple[tuple[str, int, int, int, int], ...]
"""Name, device, inode, size and time of change of each file of a step."""
_SETTLED = 2.0
"""Seconds after the last change of a file from which its time of change tells a later change."""


class ClosedSteps:
    """The steps of one directory that were seen closed. Safe in any thread."""

    def __init__(self, own: OwnNames | None = None) -> None:
        """Nothing was seen yet. With `own`, only steps of its layout are looked at."""
        self._own = own
        self._lock = threading.Lock()
        self._closed: dict[Path, _Print] = {}
        self._old: dict[Path, _Print] = {}
        """What was there when the watch of the attempt began."""
        self._torn: dict[Path, _Print] = {}
        """What is not complete: it is not read again until it changes."""

    def begin(self, directory: Path) -> None:
        """An attempt begins: what is in `directory` now is not the attempt's.

        Raises:
            OSError: the directory cannot be read now.
        """
        old = {
            path: seen[1]
            for _, path in step_entries(directory, self._own)
            if (seen := self._look(path)) is not None
        }
        with self._lock:
            self._old = old

    def proves_now(self, step: Path, workers: Workers) -> bool:
        """True if `step` was seen closed by a living writer, now or earlier.

        Raises:
            OSError: it cannot be read now.
        """
        seen = self._look(step)
        if seen is None or self._is_known(step, seen[1]):
            return seen is not None and self._was_closed(step, seen[1])
        if not _all_live(workers()) or not self._is_complete(step, *seen):
            return False
        files = {(device, inode) for _, device, inode, _, _ in seen[1]}
        if is_open_by(tree.pids(), files) or self._look(step) != seen or not _all_live(workers()):
            return False
        self._note_closed(step, seen[1])
        return True

    def proves_later(self, step: Path, *, closed: bool) -> bool:
        """True if `step` counts while no worker lives: it was seen closed, or it is complete and of
        the last attempt, if any. `closed`: all workers of that attempt exited with code 0.

        Raises:
            OSError: it cannot be read now.
        """
        seen = self._look(step)
        if seen is None or self._was_closed(step, seen[1]):
            return seen is not None
        if not closed or self._is_known(step, seen[1]) or not self._is_complete(step, *seen):
            return False
        self._note_closed(step, seen[1])
        return True

    def is_whole(self, step: Path) -> bool:
        """True if `step` is complete and of the last attempt: whether its writer closed it, nobody
        has seen.

        Raises:
            OSError: it cannot be read now.
        """
        seen = self._look(step)
        if seen is None or self._is_known(step, seen[1]):
            return False
        return self._is_complete(step, *seen)

    def is_torn(self, step: Path, *, new: bool) -> bool:
        """True if `step` is of a format that nothing commits, and is not complete. `new`: and is
        not what was there when the watch of the attempt began.

        Raises:
            OSError: it cannot be read now.
        """
        seen = self._look(step)
        if seen is None or (new and self._was_there(step, seen[1])):
            return False
        return not self._is_complete(step, *seen)

    def _look(self, step: Path) -> tuple[Structure, _Print] | None:
        """Returns how the completeness of `step` is checked, and what it is now.

        None: it is gone, or only a marker or a rename can commit it.
        """
        try:
            is_described = self._own is not None and self._own.is_described
            structure_in = structure_of_own if is_described else structure_of
            structure = structure_in(step.name, is_folder=step.is_dir())
            if structure is None:
                return None
            stats = [(path, os.lstat(path)) for path in files_of(step, structure)]
        except (FileNotFoundError, NotADirectoryError, UnreadableError):
            return None
        found = (
            (str(path), each.st_dev, each.st_ino, each.st_size, each.st_mtime_ns)
            for path, each in stats
        )
        return structure, tuple(sorted(found))

    def _was_closed(self, step: Path, seen: _Print) -> bool:
        with self._lock:
            return self._closed.get(step) == seen

    def _was_there(self, step: Path, seen: _Print) -> bool:
        with self._lock:
            return self._old.get(step) == seen

    def _is_known(self, step: Path, seen: _Print) -> bool:
        """Whether an earlier look has decided about the step as it is."""
        with self._lock:
            return seen in (self._closed.get(step), self._old.get(step), self._torn.get(step))

    def _note_closed(self, step: Path, seen: _Print) -> None:
        with self._lock:
            self._closed[step] = seen

    def _is_complete(self, step: Path, structure: Structure, seen: _Print) -> bool:
        complete = is_complete(step, structure)
        changed = max((at for *_, at in seen), default=0) / 1e9
        if not complete and changed < time.time() - _SETTLED:
            with self._lock:
                self._torn[step] = seen
        return complete


def _all_live(pids: Iterable[int]) -> bool:
    workers = tuple(pids)
    return bool(workers) and all(map(tree.works, workers))
