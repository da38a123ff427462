"""Looks for checkpoints near the configured place if that has none, as a hint for a person.

The search reads a bounded number of entries, because it may run in a home directory. It reads only
names, modification times and the signs of a commit.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from math import inf
from pathlib import Path
from time import monotonic

from supervisor.checkpoints.completeness import is_complete
from supervisor.protocol.checkpoint_layouts import MARKER, structure_of, structure_of_own
from supervisor.protocol.committed import OwnNames, is_committed, step_of

_MAX_ENTRIES = 5000
"""The most entries to read in all folders together."""
_MAX_DEPTH = 5
_SAYS_CHECKPOINT = re.compile(
    r"(?i)ckpt|chkpt|check_?point|snap|save|state|model|weight|param|latest|last|best|step|epoch|iter"
    r"|policy|actor|critic|agent|backup|resume|restart|(?<![a-z])(net|cp|w)(?![a-z])"
)
"""What the names of checkpoints and of their folders say, and hardly those of results."""
_MAX_TOLD = 3
_KEY = "trainer.init.checkpoint.directory"
_PATTERN = "trainer.init.checkpoint.pattern"
_PAGE = "see docs/reference/layouts.md"
_SKIPPED = re.compile(
    r"\..*|__pycache__|node_modules|compile_cache|drills|checkpoint_manifests|damaged_checkpoints"
    r"|\w+_restartable"
)
_COMPRESSED = r"\.(gz|bz2|xz|zst|lz4)"
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
) -> str:
    """Returns a sentence about what below `roots`, but not in `place`, may be the checkpoints, or
    that nothing may be: see `checkpoints_nearby`."""
    found = checkpoints_nearby(place, roots, since, shared, own)
    if found is not None:
        return found
    below = " or ".join(map(str, dict.fromkeys((*roots, *shared))))
    return (
        f"nothing like a checkpoint was found below {below}: set {_KEY} if they are elsewhere "
        f"({_PAGE})"
    )


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
    those that were changed after the Unix time `since`, when the program began. Below `shared`,
    where other jobs save too, only what was changed since then counts. If the config describes the
    layout, `own` is it, and only its names are those of steps. With `only_new` that holds
    everywhere, and a name that does not speak of checkpoints may be that of a result. With
    `only_whole`, only steps count that are committed or complete.
    """
    committed: dict[Path, int] = {}
    complete: dict[Path, int] = {}
    alike: dict[str, float] = {}
    older: dict[str, float] = {}
    below_roots = ((entry, True) for entry in entries_below(roots, _MAX_ENTRIES))
    below_shared = ((entry, False) for entry in entries_below(shared, _MAX_ENTRIES))
    for entry, is_ours in chain(below_roots, below_shared):
        with suppress(OSError):
            step = (step_of if own is None else own.step_of)(entry.name)
            changed = entry.stat().st_mtime
            is_new = changed >= since
            if not (is_new or (is_ours and not only_new)):
                continue
            is_elsewhere = entry.parent != place
            if step is not None and is_elsewhere and is_committed(entry, own=own):
                committed[entry.parent] = max(step, committed.get(entry.parent, 0))
            elif step is not None and (is_elsewhere or is_new) and _is_complete(entry, own):
                complete[entry.parent] = max(step, complete.get(entry.parent, 0))
            elif _LOOKS_LIKE_CHECKPOINT.fullmatch(entry.name) and (
                not only_new or _SAYS_CHECKPOINT.search(f"{entry.parent.name}/{entry.name}")
            ):
                (alike if is_new else older)[_step_with(entry, roots)] = changed
    if committed:
        return f"committed checkpoints are in {_told(committed)}: set {_KEY} ({_option(committed)})"
    if complete:
        advice = "" if place in complete else f": set {_KEY} ({_option(complete)})"
        return (
            f"complete checkpoints are in {_told(complete)}, but nobody saw this program write and "
            f"close them, or their names do not say that they are checkpoints{advice} ({_PAGE})"
        )
    return None if only_whole or not (alike or older) else _told_alike(alike, older, place, own)


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
    latest = sorted(times, key=lambda path: (-times[path], path))[:_MAX_TOLD]
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
    advice = _naming(Path(latest[0]), place, own)
    return f"{when}, but in no known checkpoint layout: {told}; {advice} ({_PAGE})"


def _has_step(path: str) -> bool:
    """Whether the name of a file has a number in it, or the name of its folder a step."""
    place = Path(path)
    return re.search("[0-9]", place.stem) is not None or step_of(place.parent.name) is not None


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
    number = re.fullmatch(r"([\w.-]*?)[0-9]+([^\W\d]*(?:\.[A-Za-z]\w*)*)", path.name)
    is_known = structure_of(path.name, is_folder=False) is not None
    if number is None or is_known or path.is_dir():
        return "save with the step in the name, or describe the names"
    before, after = _any_number(number[1]), _any_number(number[2])
    given = f"--set '{_PATTERN}={before}(\\d+){after}'"
    if path.parent != place:
        given += f" {_option({path.parent: 0})}"
    return f"give {given} if only complete ones have such a name"


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
