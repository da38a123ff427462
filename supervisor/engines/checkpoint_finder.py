"""Finds the directory in which a program commits its checkpoints, if the config names none.

A directory is the job's once the attempt has committed a step in it (`save_place`). A base model
that is only restored is old, and so is a copy with an old commit time. `checkpoint_search` says
where to look, and what proves whose a directory is.

A base model may also be copied or downloaded as the program begins, and then looks like a save. Its
step never rises. So the search goes on until the newest step is seen above an earlier one: of a
base model that is deleted, above the first save. Until then a directory whose steps rise, or one
with a lower step, takes the place of the one that was found. The core makes good what was counted
by then (`core.budget`).

Then that directory counts to the end of the attempt. The search only goes on, more slowly, to tell
of another one: a program may restore from a folder in which it saves less often.

The search runs in a thread of its own, because a file system may hang. The directory that was found
is watched like any other.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path

from supervisor.adapters.kernel.child_programs import child_programs
from supervisor.adapters.kernel.open_files import written_by
from supervisor.adapters.stores.checkpoint_watcher import DISK, Pace
from supervisor.adapters.stores.nearby import entries_below
from supervisor.config.named_program import with_shell_words
from supervisor.config.usual_names import UsualNames, is_of, kind_of, kinds_together, unnumbered
from supervisor.core.budget import has_an_epoch, is_of_a_later_epoch
from supervisor.core.start_folders import are_of_two_starts
from supervisor.engines.checkpoint_search import Search
from supervisor.engines.handles import BegunAgain, FoundPlace, Watch
from supervisor.engines.save_place import SavePlace, rounding
from supervisor.engines.telling_names import may_be_a_step
from supervisor.files.segments import JOURNAL
from supervisor.host.aside import aside
from supervisor.host.folder_changes import FolderChanges
from supervisor.protocol.committed import OwnNames, is_committed, step_entries
from supervisor.protocol.epochs import SavedStep, epochs_in, without_epochs
from supervisor.protocol.this_machine import is_posix, real_path

Steps = Callable[[Path, OwnNames | None, bool | None], Iterable[tuple[int, Path]]]
"""Returns the committed steps in a directory, with their paths, highest first. The second argument
says which names count. The third is None while the attempt runs, and
`HostFiles.newest_checkpoint`'s `closed` after it.

Raises:
    OSError: the directory cannot be read now.
"""

_WALKS = Pace(1.0, 60.0)
"""Seconds between two searches of all folders: they read thousands of entries."""
_LATER = Pace(1.0, 60.0)
"""Seconds between two looks once it is known which directory counts."""
_MAX_ENTRIES = 5000
_MAX_WALK = 2.0
"""The most seconds that a search of all folders takes."""
_MAX_WRITTEN = 500
"""The most directories and kinds of names that are kept because the program writes there."""
_MAX_TOLD = 12
"""So many kinds of names in a directory the bootstrap tells at most, numbers apart: then there may
be more (`bootstrap.written`)."""
_UNTIL_TOLD = 0.5
"""Seconds in which the bootstrap reports what the attempt writes, if it does."""
_MAX_PROGRAMS = 64
"""The most programs that the attempt starts whose command lines say where to look."""
_MAX_STEPS = 20
"""The most steps of a directory that are looked at, from the highest."""
_GRACE = 10.0
"""Seconds that a directory may be the better one before it takes the place of the present one."""


class CheckpointFinder:
    """Watches the known directory, and the found one once there is one: see `handles.Finder`."""

    def __init__(
        self,
        search: Search,
        steps: Steps,
        watch: Callable[[Path, OwnNames | None], Watch],
        watch_own: Callable[[Path, OwnNames | None], Watch],
        on_found: Callable[[FoundPlace], None],
        on_others: Callable[[Path, Mapping[Path, int]], None],
    ) -> None:
        """`watch` starts to watch a directory for new steps with names that count. `watch_own` does
        when the attempt has told which names it writes there: the newest of them is its own.

        `on_found` is called before a directory that was found is watched, and again when other
        names count there. `on_others` is called once at most. It gets the directory that counts,
        and others in which the attempt commits too, with their newest steps.
        """
        self._search = search
        self._steps = steps
        self._closed: bool | None = None
        """See `Steps`."""
        self._start_watch = watch
        self._start_watch_of_own = watch_own
        self._on_found = on_found
        self._on_others = on_others
        self._names = search.names_in(search.known, ())
        """Which names count in the directory that is watched."""
        self._watch = watch(search.known, self._names)
        self._told: set[tuple[Path, str]] = set()
        """The directories and kinds of names that the bootstrap has reported."""
        self._written: set[tuple[Path, str]] = set()
        """The directories in which the attempt writes, with the kinds of names (`kind_of`)."""
        self._written_since: dict[Path, float] = {}
        """The directories in which the attempt writes, with the time at which that was known."""
        self._own: set[Path] = set()
        """The steps that the attempt was seen to write."""
        self._inside: set[Path] = set()
        """Steps in which the attempt writes, but which may have been complete before. They are
        judged in the thread, because a file system may hang."""
        self._programs: set[tuple[tuple[str, ...], Path]] = set()
        """The programs that the attempt was seen to start, with their working directories."""
        self._places: dict[Path, SavePlace] = {}
        self._names_seen: dict[Path, OwnNames | None] = {}
        """Which names counted in each of these when it was looked at."""
        self._walked: set[Path] = set()
        """The directories that were found by a search of all folders."""
        self._has_walked = False
        """Whether such a search has seen all there is."""
        self._others: dict[Path, int] = {}
        self._current = search.known
        self._found: Path | None = None
        self._better_since: float | None = None
        """Since when a better directory than the present one is known."""
        self._walk_at, self._walk_pause = 0.0, _WALKS.least
        self._is_decided = self._is_told = self._is_stopped = False
        """Whether it is known which directory counts to the end of the attempt; whether the others
        were told; whether `stop` was called."""
        self._lock = threading.Lock()
        """Held while `_watch`, `_found` or `_is_stopped` change; never during a look."""
        self._looking = threading.Lock()
        """Held during a look."""
        self._made: set[Path] = set()
        """The folders that the attempt makes."""
        self._old_kinds: dict[Path, frozenset[str]] = {}
        """The kinds of names that were in a directory before the attempt."""
        self._changes = FolderChanges(self._may_be_a_step)
        self._thread = threading.Thread(target=self._run, name="finder", daemon=True)
        self._thread.start()

    @property
    def has_new_checkpoint(self) -> bool:
        """See `handles.Watch`."""
        return self._found is not None or self._watch.has_new_checkpoint

    @property
    def found(self) -> Path | None:
        """See `handles.Finder`."""
        return self._found

    @property
    def kinds(self) -> tuple[str, ...]:
        """See `handles.Finder`."""
        return self._names.kinds if isinstance(self._names, UsualNames) else ()

    def note_written(self, path: str) -> None:
        """See `handles.Finder`."""
        place = Path(path)
        if place.is_absolute():
            if len(self._told) < _MAX_WRITTEN:
                self._told.add((place.parent, kind_of(place.name)))
            self._note_reported(place)
            with self._lock:
                self._names_may_change()
            if len(self._made) < _MAX_WRITTEN:
                self._made.add(place)  # a file has nothing below it
            self._changes.wake()

    def _note_reported(self, path: Path) -> None:
        """Note what the bootstrap reports. A path inside a step under its final name proves nothing
        yet: a program may put its evaluation into a step of another job."""
        for step in self._search.steps_in(str(path)):
            if step in path.parents and step not in self._own:
                if len(self._inside) < _MAX_WRITTEN:
                    self._inside.add(step)
            else:
                self._note_step(step)

    def _judge_inside(self) -> None:
        """Note the steps that the attempt writes in, but those that are committed: such a step is
        the attempt's only if it has made it, which is reported as well."""
        for step in self._inside.copy():
            with suppress(OSError):
                if not is_committed(step, posix=is_posix(step)):
                    self._note_step(step)
                self._inside.discard(step)

    def _note(self, path: str) -> None:
        for step in self._search.steps_in(path):
            self._note_step(step)

    def _note_step(self, step: Path) -> None:
        self._written_since.setdefault(step.parent, time.monotonic())
        if len(self._written) < _MAX_WRITTEN:
            self._written.add((step.parent, kind_of(step.name)))
        if len(self._own) < _MAX_WRITTEN:
            self._own.add(step)

    def poll_now(self) -> None:
        """See `handles.Watch`."""
        self._watch.poll_now()
        self._changes.wake()

    def stop(self) -> None:
        """See `handles.Watch`."""
        with self._lock:
            self._is_stopped = True
            self._watch.stop()
        self._changes.wake()

    def last_look(self, *, closed: bool) -> Path | None:
        """See `handles.Finder`."""
        self._closed = closed
        try:
            if not self._is_decided:
                aside(f"{self._search.known} (search)").ask(lambda: self._look(last=True))
        except TimeoutError:
            if self._found is None:
                raise
        return self._found

    def last_lower(self, *, closed: bool) -> tuple[SavedStep, ...]:
        """See `handles.Watch`."""
        return self._watch.last_lower(closed=closed)

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        pause = DISK.least
        while not self._is_stopped and not self._is_over:
            self._look(last=False)
            asked = self._changes.wait(pause)
            pause = (_LATER if self._is_decided else DISK).after(pause, changed=asked)
        self._changes.close()

    @property
    def _is_over(self) -> bool:
        return self._is_decided and self._is_told

    def _look(self, *, last: bool) -> None:
        """Look at all directories, and take a better one; `last`: the attempt is over, so nothing
        better can come."""
        with self._looking:
            if self._is_over or (self._is_stopped and not last):
                return
            self._judge_inside()
            if not last:  # then the processes are gone, and others may have their pids
                self._note_processes()
            is_whole = (last or time.monotonic() >= self._walk_at) and self._walk()
            try:
                present = self._seen(self._current)
            except OSError:  # whoever watches this directory says so; here, we look again
                return
            better = self._better_than(present, last=last)
            self._has_walked |= is_whole
            self._is_decided |= present.rises and not has_an_epoch(str(self._current))
            if better is not None and not self._is_decided and self._is_time(better, present, last):
                self._take(better)
            if self._is_decided or last:
                self._tell_others()

    def _is_time(self, better: Path, present: SavePlace, last: bool) -> bool:
        """Whether the `better` directory takes the place of the `present` one now."""
        now = time.monotonic()
        if self._better_since is None:
            self._better_since = now
        is_at_once = last or not present.has_steps or self._is_later_epoch(better)
        return is_at_once or now - self._better_since >= _GRACE

    def _is_later_epoch(self, directory: Path) -> bool:
        return is_of_a_later_epoch(str(directory), str(self._current))

    def _take(self, directory: Path) -> None:
        place = self._places[directory]
        if self._names_in(directory) != self._names_seen[directory]:
            return  # the attempt has told since which names are its own
        again = self._begun_again(directory)
        with self._lock:
            self._found = self._current = directory
            self._better_since = None
            self._names = self._names_in(directory)
            self._on_found(FoundPlace(directory, self.kinds, place.steps, place.is_resumed, again))
            self._watch_again(self._start_watch)

    def _begun_again(self, directory: Path) -> BegunAgain | None:
        """See `FoundPlace.again`."""
        last = self._places[self._current]
        step = self._places[directory].began_below(last)
        if step is None or last.before is None:
            return None
        are_two = are_of_two_starts(str(self._current), str(directory))
        return BegunAgain(step, self._current, last.before) if are_two else None

    def _names_may_change(self) -> None:
        """Watch the directory that counts again, if the attempt writes another kind of name
        there. The lock is held."""
        names = self._names_in(self._current)
        if names == self._names:
            return
        self._names, self._found = names, self._current
        self._on_found(FoundPlace(self._current, self.kinds))
        self._watch_again(self._start_watch_of_own)

    def _watch_again(self, start: Callable[[Path, OwnNames | None], Watch]) -> None:
        if not self._is_stopped:
            self._watch.stop()
            self._watch = start(self._current, self._names)

    def _names_in(self, directory: Path) -> OwnNames | None:
        """Returns which names count in a directory: of a folder in which others may save too, the
        kinds that the attempt writes there, if the bootstrap tells them all."""
        told = {kind for place, kind in self._told.copy() if place == directory}
        written = self._written_in(directory)
        is_told = not told.isdisjoint(written) and len(set(map(unnumbered, told))) < _MAX_TOLD
        is_shared = directory in self._search.shared
        return self._search.names_in(directory, written if is_told or is_shared else ())

    def _written_in(self, directory: Path) -> set[str]:
        """Returns the kinds of names that the attempt writes in a directory."""
        return {kind for place, kind in self._written.copy() if place == directory}

    def _tell_others(self) -> None:
        """Tell of the other directories: of all if which one counts was found out in this attempt,
        else of those that had no steps before it."""
        epochs = without_epochs(str(self._current))
        is_news = self._found is not None or self._places[self._current].before is None
        others = {
            path: step
            for path, step in self._others.items()
            if without_epochs(str(path)) != epochs
            and (is_news or self._places[path].before is None)
        }
        if others:
            self._is_told = True
            self._on_others(self._current, others)

    # --- looking --------------------------------------------------------------------------------

    def _note_processes(self) -> None:
        """Note what the processes of the attempt write, and which programs they have started."""
        for path in written_by(self._search.pids(), self._may_be_a_step):
            self._note(path)
        for argv, here in child_programs(self._search.pids()):
            program = (tuple(argv), here)
            if program not in self._programs and len(self._programs) < _MAX_PROGRAMS:
                self._programs.add(program)
                self._look_where_it_says(with_shell_words(argv), here)

    def _look_where_it_says(self, argv: list[str], here: Path) -> None:
        search = self._search.also(argv, here)
        if search.roots != self._search.roots:
            self._walk_at, self._has_walked = 0.0, False
        self._search = search

    def _may_be_a_step(self, path: str) -> bool:
        return any(True for _ in self._search.steps_in(path))

    def _better_than(self, present: SavePlace, *, last: bool) -> Path | None:
        """Returns the directory of this job that takes the place of the `present` one: that of the
        latest epoch, if the present one is of an earlier one; else, of several, one whose steps
        rise, then the one with the lowest step, then the one nearest to the root, then by name, so
        that the answer does not depend on the order of the system's lists."""
        better: list[tuple[bool, int, int, Path]] = []
        later: list[tuple[tuple[int, ...], Path]] = []
        written = self._written.copy()  # the main loop adds to it meanwhile
        named = {root for root in self._search.roots if not self._is_shared(root)}
        directories = {directory for directory, _ in written} | self._made.copy() | named
        for each in directories | self._walked:
            self._changes.watch(each)
            place = self._committing(each)
            if place is None or place.newest is None:
                continue
            self._others[each] = step = place.newest
            if present.rises and not self._is_later_epoch(each):
                continue
            if not last and self._may_be_told(each):
                continue
            if place.above is not None and present.has_steps:
                continue  # the higher one is not this job's, and must not replace what is
            if self._is_later_epoch(each):
                later.append((epochs_in(str(each)), each))
            elif present.newest is None or place.rises or step < present.newest:
                better.append((not place.rises, step, len(each.parts), each))
        if later:
            return max(later)[-1]
        if not better:
            self._better_since = None
            return None
        return min(better)[-1]

    def _may_be_told(self, directory: Path) -> bool:
        """Whether the bootstrap may be about to report what the attempt writes in a directory: a
        file there was seen open just now."""
        since = self._written_since.get(directory)
        is_told = any(place == directory for place, _ in self._told.copy())
        return since is not None and not is_told and time.monotonic() - since < _UNTIL_TOLD

    def _committing(self, directory: Path) -> SavePlace | None:
        """Returns what is seen of another directory than the present one; None: it is not this
        job's, or cannot be read now."""
        if _is_same(directory, self._current):
            return None
        try:
            place = self._seen(directory)
        except OSError:
            return None
        is_ours = place.newest is not None and not _is_of_another_job(
            directory, self._search.model_dir
        )
        return place if is_ours else None

    def _seen(self, directory: Path) -> SavePlace:
        """Returns what is seen of a directory now.

        Raises:
            OSError: it cannot be read now.
        """
        place, names = self._places.get(directory), self._names_in(directory)
        if place is None:
            is_made_since = self._has_walked and directory in self._walked
            there = frozenset() if is_made_since else self._entries_of(directory)
            self._old_kinds[directory] = frozenset(self._kinds_before(directory))
            place = self._places[directory] = SavePlace(there, self._search.began)
        elif names != self._names_seen[directory]:  # what was seen may be another job's
            place = self._places[directory] = place.renewed()
        self._names_seen[directory] = names
        place.look(self._counting(directory), self._own.copy(), time.time())
        return place

    def _entries_of(self, directory: Path) -> frozenset[str]:
        try:
            with os.scandir(directory) as entries:
                return frozenset(each.name for each in entries)
        except (FileNotFoundError, NotADirectoryError):
            return frozenset()

    def _kinds_before(self, directory: Path) -> Iterator[str]:
        """Yields the kinds of the names in a directory that are from before the attempt."""
        for _, path in step_entries(directory):
            with suppress(FileNotFoundError):
                changed = path.lstat().st_mtime
                if changed < self._search.began - rounding(changed):
                    yield kind_of(path.name)

    def _counting(self, directory: Path) -> Iterator[tuple[int, Path]]:
        """Yields the committed steps of a directory that may count, highest first. In the directory
        that is known all of them count."""
        is_known = directory == self._search.known
        steps = self._steps(directory, self._names_in(directory), self._closed)
        for step, path in islice(steps, _MAX_STEPS):
            if is_known or self._may_count(directory, step, path):
                yield step, path

    def _may_count(self, directory: Path, step: int, place: Path) -> bool:
        """Whether the name of a committed step tells that it is one (`telling_names`), and that it
        is this job's, where others write too.

        Raises:
            OSError: it cannot be read now.
        """
        search, kind = self._search, kind_of(place.name)
        written = kinds_together(self._written_in(directory))
        if directory in search.shared and not is_of(place.name, written):
            return False
        if self._is_only_made(directory) and kind in self._old_kinds.get(directory, ()):
            return False  # nobody knows who saves them: another job may
        if search.has_own_layout:
            return True
        is_marked = is_committed(place, posix=is_posix(place))
        return may_be_a_step(place, step, is_marked=is_marked, now=time.time())

    def _is_only_made(self, directory: Path) -> bool:
        """Whether all that is known of a directory is that the attempt makes it, if it is not
        there yet."""
        is_known = directory in self._walked or directory == self._search.known
        return directory in self._made and not is_known and not self._written_in(directory)

    def _is_shared(self, root: Path) -> bool:
        """Whether others write in a folder too; it may lead there by a link."""
        return real_path(root) in self._search.shared

    def _walk(self) -> bool:
        """Search all folders for directories with steps whose place proves that they are this
        job's. Returns whether all folders were seen."""
        self._walk_pause = _WALKS.after(self._walk_pause, changed=False)
        began = time.monotonic()
        self._walk_at = began + self._walk_pause
        search, most = self._search, 0
        for root in search.roots:
            if self._is_shared(root):
                continue
            entries = [*entries_below((root,), _MAX_ENTRIES, began + _MAX_WALK)]
            most = max(most, len(entries))
            self._walked.update(
                entry.parent
                for entry in entries
                if search.step_of(entry.name) is not None and search.proves(entry.parent)
            )
        return most < _MAX_ENTRIES and time.monotonic() - began < _MAX_WALK


def _is_same(one: Path, other: Path) -> bool:
    return real_path(one) == real_path(other)


def _is_of_another_job(directory: Path, model_dir: Path) -> bool:
    """Whether `directory` is below the model_dir of another job, which has a journal."""
    ours = real_path(model_dir)
    for each in (directory, *directory.parents):
        if real_path(each) == ours:
            return False
        try:
            if (each / JOURNAL).exists():
                return True
        except OSError:  # it cannot be read, and says nothing about whose it is
            return True
    return False
