"""Looks for checkpoints near the configured place if that has none, as a hint for a person.

The search reads a bounded number of entries, because it may run in a home directory. It reads only
names, modification times and the signs of a commit.
"""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from math import inf
from pathlib import Path
from time import monotonic, time

from supervisor.checkpoints.completeness import is_complete
from supervisor.config.usual_names import is_time, speaks_of_data, unnumbered
from supervisor.files.live_status import MAX_SIZE, STATUS
from supervisor.files.segments import JOURNAL
from supervisor.protocol.checkpoint_layouts import MARKER, structure_of, structure_of_own
from supervisor.protocol.committed import OwnNames, is_committed, step_of
from supervisor.protocol.reading import UnreadableError, read_object

_MAX_ENTRIES = 5000
"""The most entries to read in all folders together."""
_MAX_JOBS = 100
"""The most other jobs whose status.json is read."""
_MAX_DEPTH = 10
"""The most levels: `_MAX_ENTRIES` bounds the search, and this only what has no end."""
_SAYS_CHECKPOINT = re.compile(
    r"(?i)ckpt|chkpt|check_?point|snap|save|state|model|weight|param|latest|last|best|step|epoch|iter"
    r"|policy|actor|critic|agent|backup|resume|restart|(?<![a-z])(net|cp|ck|w)(?![a-z])"
)
"""What the names of checkpoints and of their folders say, and hardly those of results."""
_ROW = 3
"""So many new files whose names differ only in their numbers are a row, as a program that saves
makes one, whatever their names say."""
_PAIR = 2
"""So many are, if their names say that they are checkpoints, or in the configured place."""
_MAX_TOLD = 3
_KEY = "trainer.init.checkpoint.directory"
_PATTERN = "trainer.init.checkpoint.pattern"
_PAGE = "see docs/reference/layouts.md"
_SKIPPED = re.compile(
    r"\..*|__pycache__|node_modules|compile_cache|drills|checkpoint_manifests|damaged_checkpoints"
    r"|\w+_restartable"
)
_COMPRESSED = r"\.(gz|bz2|xz|zst|lz4)"
_IS_OUTPUT = re.compile(
    r"(?i)(?<![a-z])(logs?|\w*events|std(out|err)|trace|profile|eval|results?|reports?)(?![a-z])"
    r"|\.(log|out|err|png|jpe?g|gif|svg|pdf|csv|html?|mp4|wav|py)$"
)
"""What the names of numbered files say that are neither checkpoints nor data."""
_NUMBERED = re.compile(r"([\w.-]*?)([0-9]+)([^\W\d]*(?:\.[A-Za-z]\w*)*)")
"""A name with what stands before and after its last number."""
_LOOKS_LIKE_CHECKPOINT = re.compile(
    r"(?i)(.*(ckpt|checkpoint|step|epoch|state)s?[-_.]?\d+(\.\w+)?"
    r"|.*\.(pth?|ckpt|safetensors|msgpack|npz|pkl|pickle|h5|keras|eqx|orbax))"
    rf"({_COMPRESSED})?"
)


def found_nearby(
    place: Path | None,
    roots: Sequence[Path],
    since: float,
    shared: Sequence[Path] = (),
    own: OwnNames | None = None,
    *,
    is_named: bool = False,
) -> str:
    """Returns a sentence about what below `roots`, but not in `place`, may be the checkpoints, or
    that nothing may be: see `checkpoints_nearby`. `is_named`: the config names `place`."""
    found = checkpoints_nearby(place, roots, since, shared, own)
    if found is not None:
        return found
    below = " or ".join(map(str, dict.fromkeys((*roots, *shared))))
    advice = f"set {_KEY} if they are elsewhere"
    if is_named:
        advice = f"see to it that the program saves in the folder that {_KEY} names"
    return f"nothing like a checkpoint was found below {below}: {advice} ({_PAGE})"


def checkpoints_nearby(
    place: Path | None,
    roots: Sequence[Path],
    since: float,
    shared: Sequence[Path] = (),
    own: OwnNames | None = None,
    *,
    only_new: bool = False,
    only_whole: bool = False,
) -> str | None:
    """Returns a sentence about what below `roots`, but not in `place`, may be the checkpoints.
    None: nothing may be.

    It names committed steps; or if there are none, steps that nothing commits but that are complete
    (in `place` too, if they are new); or entries whose name looks like a checkpoint's, first of all
    those that were changed after the Unix time `since`, when the program began, and beside them a
    row of new numbered files (`_rows`). Below `shared`, where other jobs save too, only what was
    changed since then counts. What is in the model_dir of another job, or where its status.json
    says that it saves, never does. If the config describes the layout, `own` is it, and only its
    names are those of steps. With `only_new` that holds everywhere, and a name that does not speak
    of checkpoints may be that of a result, unless it is one of a row. With `only_whole`, the
    attempt has failed: then only what is committed or complete counts, under any name with a number
    in it that does not speak of data.
    """
    committed: dict[Path, int] = {}
    complete: dict[Path, int] = {}
    alike: dict[str, float] = {}
    older: dict[str, float] = {}
    others: dict[Path, float] = {}
    ours = roots if place is None else (place, *roots)
    for entry, changed in _found(ours, shared, since, only_new=only_new):
        with suppress(OSError):
            step = (step_of if own is None else own.step_of)(entry.name)
            is_new = changed >= since
            is_elsewhere = entry.parent != place
            if step is not None and is_elsewhere and is_committed(entry, own=own):
                committed[entry.parent] = max(step, committed.get(entry.parent, 0))
            elif step is not None and (is_elsewhere or is_new) and _is_complete(entry, own):
                complete[entry.parent] = max(step, complete.get(entry.parent, 0))
            elif _LOOKS_LIKE_CHECKPOINT.fullmatch(entry.name):
                if only_whole and not _is_whole(entry):
                    continue
                (alike if is_new else older)[_step_with(entry, roots)] = changed
            elif is_new:
                others[entry] = changed
    if only_new and not only_whole:
        alike = _likely(alike)
    if committed:
        return f"committed checkpoints are in {_told(committed)}: set {_KEY} ({_option(committed)})"
    if complete:
        advice = "" if place in complete else f": set {_KEY} ({_option(complete)})"
        return (
            f"complete checkpoints are in {_told(complete)}, but nobody saw this program write and "
            f"close them, or their names do not say that they are checkpoints{advice} ({_PAGE})"
        )
    alike |= _rows(others, place, only_by_word=only_new or only_whole)
    return _told_alike(alike, older, place, own) if alike or older else None


def _found(
    ours: Sequence[Path], shared: Sequence[Path], since: float, *, only_new: bool
) -> Iterator[tuple[Path, float]]:
    """Yields the entries below `ours` and `shared` that no other job has, with the Unix time of
    their last change; below `shared`, and with `only_new`, those that were changed after `since`.
    """
    below_ours, below_shared = (list(entries_below(each, _MAX_ENTRIES)) for each in (ours, shared))
    theirs = _of_other_jobs([*below_ours, *below_shared], [*ours, *shared])
    for entries, least in ((below_ours, since if only_new else -inf), (below_shared, since)):
        for entry in entries:
            with suppress(OSError):
                changed = entry.stat().st_mtime
                if changed >= least and theirs.isdisjoint((entry, *entry.parents)):
                    yield entry, changed


def _of_other_jobs(entries: Sequence[Path], ours: Sequence[Path]) -> set[Path]:
    """Returns the model_dirs of other jobs that have their journals among `entries`, and where
    these jobs save; but no folder that has one of `ours` in it."""
    places = dict.fromkeys(entry.parent for entry in entries if entry.name == JOURNAL)
    jobs = [place for place in places if place not in ours]
    theirs = set(jobs)
    for job in jobs[:_MAX_JOBS]:
        with suppress(OSError, UnreadableError):
            told = read_object(job / STATUS, MAX_SIZE).get("checkpoints")
            if isinstance(told, str):
                theirs.add(Path(told))
    return {each for each in theirs if not any(one.is_relative_to(each) for one in ours)}


def _rows(
    new: Mapping[Path, float], place: Path | None, *, only_by_word: bool
) -> Mapping[str, float]:
    """Returns those of the `new` files, of any suffix, that are of one kind and numbered, as a
    program that saves makes them. Outside of `place` their names must say so with `only_by_word`;
    without it, more files will do that are no data."""
    kinds: defaultdict[tuple[Path, str], dict[str, float]] = defaultdict(dict)
    for path, changed in new.items():
        with suppress(OSError):
            pattern = _pattern_of(path.name)
            if pattern is not None and not _IS_OUTPUT.search(path.name) and _has_content(path):
                kinds[path.parent, pattern][str(path)] = changed
    told: dict[str, float] = {}
    for (folder, _), row in kinds.items():
        first = Path(next(iter(row)))
        by_word = _SAYS_CHECKPOINT.search("/".join(first.parts[-2:])) is not None
        least = _PAIR if folder == place or by_word else _ROW
        may_be = by_word or not only_by_word
        if len(row) >= least and (folder == place or (may_be and not speaks_of_data(first))):
            told |= row
    return told


def _has_content(path: Path) -> bool:
    return path.is_file() and not path.is_symlink() and path.stat().st_size > 0


def _likely(new: Mapping[str, float]) -> dict[str, float]:
    """Returns those of the `new` entries whose names speak of checkpoints, or that are of a row
    which does not speak of data; any other may be a result."""
    rows = Counter(map(unnumbered, new))
    return {
        path: changed
        for path, changed in new.items()
        if _SAYS_CHECKPOINT.search("/".join(Path(path).parts[-2:]))
        or (rows[unnumbered(path)] >= _ROW and not speaks_of_data(Path(path)))
    }


def _told_alike(
    changed: Mapping[str, float],
    older: Mapping[str, float],
    place: Path | None,
    own: OwnNames | None,
) -> str:
    """Returns the sentence about entries whose name looks like a checkpoint's, with the times of
    their last change: those that were `changed` since the program began, or else the `older`."""
    when = "changed since the start" if changed else "there since before the start"
    times = changed or older
    latest = _newest_first(times)[:_MAX_TOLD]
    told = ", ".join(latest)
    if Path(latest[0]).is_symlink():
        return (
            f"{when}, but a link, which proves no save: {latest[0]}; save the step itself under "
            f"that name, or set {_KEY} to the folder that the link leads to ({_PAGE})"
        )
    if changed and not any(map(_has_step, latest)):
        suffix = Path(re.sub(f"{_COMPRESSED}$", "", latest[0])).suffix
        return (
            f"{when}, but overwritten in place: {told}; without a step in its name nothing tells "
            "that such a file is a later one, and a kill during a save may destroy it: save with "
            f"the step in the name, such as ckpt-100{suffix} ({_PAGE})"
        )
    advice = _naming(Path(next(filter(_has_step, latest), latest[0])), place, own)
    return f"{when}, but in no known checkpoint layout: {told}; {advice} ({_PAGE})"


def _newest_first(times: Mapping[str, float]) -> list[str]:
    """Returns the paths by the `times` of their last change. The clock of a file system may stand
    still for milliseconds: of those that were changed then, the highest number comes first."""

    def age(path: str) -> tuple[float, list[int], str]:
        return -times[path], [-int(number) for number in re.findall("[0-9]+", path)], path

    return sorted(times, key=age)


def _has_step(path: str) -> bool:
    """Whether the name of a file has a number in it, or the name of its folder a step."""
    place = Path(path)
    is_numbered = re.search("[0-9]", place.stem) is not None or place.suffix[1:].isdecimal()
    return is_numbered or step_of(place.parent.name) is not None


def _step_with(entry: Path, roots: Sequence[Path]) -> str:
    """Returns the path of the step that `entry` belongs to: the folder of a step that it is a part
    of, or itself."""
    is_part = step_of(entry.parent.name) is not None and entry.parent not in roots
    return str(entry.parent if is_part else entry)


def _naming(path: Path, place: Path | None, own: OwnNames | None) -> str:
    """Returns what to do so that checkpoints with names such as that of `path` count. Where they
    are is not known, unless it is `place`: nobody may have seen the program write there."""
    if path.is_dir() and step_of(path.name) is not None:
        marker = MARKER if own is None or own.marker is None else own.marker
        also = "" if own is not None else ", or describe its name and its last file"
        return f"a folder counts once {marker} is in it: write that file last{also}"
    pattern = _pattern_of(path.name)
    is_known = structure_of(path.name, is_folder=False) is not None
    if pattern is None or is_known or path.is_dir():
        return "save with the step in the name, or describe the names"
    given = f"--set '{_PATTERN}={pattern}'"
    if path.parent != place:
        given += f" {_option({path.parent: 0})}"
    return f"give {given} if only complete ones have such a name"


def _pattern_of(name: str) -> str | None:
    """Returns a `checkpoint.pattern` for names such as this one; None: the step is not in it, or
    it is a time."""
    number = _NUMBERED.fullmatch(name)
    if number is None or is_time(int(number[2]), time()):
        return None
    return rf"{_any_number(number[1])}(\d+){_any_number(number[3])}"


def _any_number(text: str) -> str:
    """Returns a regular expression for `text`, and for the same with other numbers."""
    return re.sub(r"\d+", r"\\d+", text.replace(".", r"\."))


def _option(places: Mapping[Path, int]) -> str:
    """Returns the option of `supervise run` that chooses the first of these places."""
    return f"--set {shlex.quote(f'{_KEY}={next(iter(places))}')}"


def _told(places: Mapping[Path, int]) -> str:
    told = [f"{path} (newest: step {step})" for path, step in places.items()]
    return " and ".join(told[:_MAX_TOLD])


def _is_complete(step: Path, own: OwnNames | None) -> bool:
    """True if a step that nothing commits is complete: enough for a hint."""
    if own is not None and own.marker is not None:
        return False
    structure_in = structure_of if own is None else structure_of_own
    structure = structure_in(step.name, is_folder=step.is_dir())
    return structure is not None and is_complete(step, structure)


def _is_whole(entry: Path) -> bool:
    """Whether a file whose name is not that of a step has a number in it, is complete, and does not
    speak of data: a program that fails has hardly written a result."""
    if entry.is_dir() or entry.is_symlink() or speaks_of_data(entry):
        return False
    structure = structure_of_own(entry.name, is_folder=False)
    is_numbered = re.search("[0-9]", entry.stem) is not None
    return is_numbered and structure is not None and is_complete(entry, structure)


def entries_below(roots: Sequence[Path], most: int, deadline: float = inf) -> Iterator[Path]:
    """Yields at most `most` entries below `roots`, level by level, until the time `deadline` of the
    monotonic clock; skips folders that cannot be read."""
    level, seen, left = list(roots), set[Path](), most
    for _ in range(_MAX_DEPTH):
        folders: list[Path] = []
        for folder in level:
            if monotonic() > deadline:
                return
            if folder in seen:
                continue
            seen.add(folder)
            entries = _entries(folder, left)
            left -= len(entries)
            for entry in entries:
                if _SKIPPED.fullmatch(entry.name):
                    continue
                yield Path(entry.path)
                if _is_folder(entry):
                    folders.append(Path(entry.path))
        level = folders


def _entries(folder: Path, most: int) -> Sequence[os.DirEntry[str]]:
    """Returns at most `most` entries of `folder`, sorted by name: the first ones that the system
    lists."""
    try:
        with os.scandir(folder) as listing:
            return sorted(islice(listing, most), key=lambda entry: entry.name)
    except OSError:
        return ()


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:  # the listing has no type on some file systems: this asks for it
        return False
